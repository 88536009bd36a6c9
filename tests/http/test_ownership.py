"""Batches, secrets, withdraw and refresh: what each side may do (docs/http-api.md#batches and after it)."""

import hashlib

from support.service import NOW_MS, refused

SECRETS = {"offerer": "the offerer's secret", "answerer": "the answerer's secret 😀"}


async def answered_session(service, **secrets):
    """Create a session with an answer and return its code. Each side has its secret from `secrets`, if any."""
    credentials = {side: {"secret": secret} for side, secret in (secrets or SECRETS).items()}
    code = (await service.post("/lobby/offer", info="i", offer="o", **credentials.get("offerer", {})))["code"]
    await service.post("/answer", code=code, side="answerer", answer="a", **credentials.get("answerer", {}))
    return code


async def test_database_stores_hashes_of_secrets_only(service, tmp_path):
    code = await answered_session(service)
    await service.post("/answer", code=code, side="offerer", candidate="c", secret=SECRETS["offerer"])
    body = {"code": code, "side": "offerer", "secret": "a secret that is wrong"}
    assert (await service.call("POST", "/refresh", body)).status == 404
    await service.close_store()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data0").iterdir() if path.is_file())
    for secret in SECRETS.values():
        data = secret.encode()
        assert hashlib.sha256(data).digest() in stored
        assert data not in stored
        assert hashlib.sha256(data).hexdigest().encode() not in stored
    assert b"a secret" not in stored


async def test_session_timeout_is_the_maximum_ttl(start_service):
    service = await start_service(session_timeout_ms=2000)
    assert refused(await service.call("POST", "/lobby/offer", {"info": "i", "offer": "o", "ttl": 2001}))[0] == 400
    for ttl in (None, 2000):
        await service.post("/lobby/offer", info="i", offer="o", ttl=ttl)
    assert {session["expiresAt"] for session in await service.sessions()} == {NOW_MS + 2000}
