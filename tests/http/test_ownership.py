"""Batches, secrets, withdraw and refresh: what each side may do (docs/http-api.md#batches and after it)."""

import hashlib
import json
from urllib.parse import quote

import pytest
from support.service import (
    NOT_FOUND,
    NOW_MS,
    ORIGIN,
    TIMEOUT_MS,
    refused,
)
from support.sse import open_stream

SECRETS = {"offerer": "the offerer's secret", "answerer": "the answerer's secret 😀"}
SHORTEST, LONGEST = "s" * 16, "😀" * 256


async def answered_session(service, **secrets):
    """Create a session with an answer and return its code. Each side has its secret from `secrets`, if any."""
    credentials = {side: {"secret": secret} for side, secret in (secrets or SECRETS).items()}
    code = (await service.post("/lobby/offer", info="i", offer="o", **credentials.get("offerer", {})))["code"]
    await service.post("/answer", code=code, side="answerer", answer="a", **credentials.get("answerer", {}))
    return code


@pytest.mark.parametrize("side", ["offerer", "answerer"])
async def test_batch_is_stored_completely_and_in_order(side, service):
    other, name = ("answerer", "offerCandidates") if side == "offerer" else ("offerer", "answerCandidates")
    for count in (1, 2, 99, 100):
        code = await service.offer()
        await service.post("/answer", code=code, side=side, candidate="first")
        batch = [f"{n % 7}" for n in range(count)]
        assert await service.post("/answer", code=code, side=side, candidates=batch) == {"success": True}
        await service.post("/answer", code=code, side=side, candidate="last", candidates=None)
        assert (await service.post("/poll", code=code, side=other))[name] == ["first", *batch, "last"]


async def test_secret_of_one_side_does_not_apply_to_the_other(service):
    for secrets in ({"offerer": SHORTEST}, {"answerer": LONGEST}):
        code = await answered_session(service, **secrets)
        for side in SECRETS:
            credentials = {"secret": secrets[side]} if side in secrets else {}
            await service.post("/answer", code=code, side=side, candidate="c", **credentials)
            body = {"code": code, "side": side}
            expected = 404 if side in secrets else 200
            assert (await service.call("POST", "/poll", body)).status == expected


async def test_answerer_secret_applies_from_the_answer_on(service):
    code = await service.offer()
    await service.post("/answer", code=code, side="answerer", candidate="c")
    body = {"code": code, "side": "answerer", "answer": "a"}
    await service.post("/answer", **body, secret=LONGEST)
    await service.post("/answer", **body, secret=LONGEST)  # a retry
    for fields in ({"answer": "a"}, {"answer": "b"}, {"answer": None, "candidate": "d"}):
        assert refused(await service.call("POST", "/answer", body | fields)) == (404, NOT_FOUND)
    assert (await service.post("/poll", code=code, side="offerer"))["answerCandidates"] == ["c"]


async def test_stream_accepts_secrets_of_any_characters_in_its_query(service):
    for secret in (SHORTEST, LONGEST, "null and \0 void....", "é" * 16):
        code = await answered_session(service, offerer=secret, answerer=secret)
        for side in SECRETS:
            await service.post("/poll", code=code, side=side, secret=secret)
            target = f"/events?code={code}&side={side}&secret={quote(secret)}"
            async with open_stream(service.port, target) as stream:
                await stream.take()


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


@pytest.mark.parametrize("side", SECRETS)
@pytest.mark.parametrize("unanswered", [True, False])
async def test_withdrawn_session_is_404_for_both_sides(side, unanswered, service):
    codes = [await service.offer(), await service.offer()]
    if not unanswered:
        await service.post("/answer", code=codes[0], side="answerer", answer="a")
        await service.post("/answer", code=codes[0], side="offerer", candidates=["c"] * 100)
    assert await service.post("/withdraw", code=codes[0], side=side) == {"success": True}
    assert await service.topics() == [("lobby", 1)]
    assert [session["code"] for session in await service.sessions()] == codes[1:]
    assert refused(await service.call("POST", "/poll", {"code": codes[0], "side": "answerer"})) == (404, NOT_FOUND)
    await service.post("/withdraw", code=codes[1], side=side)
    assert await service.topics() == []


async def test_withdraw_accepts_a_body_of_any_content_type(service):
    for kind in ("text/plain;charset=UTF-8", "text/plain", "application/x-www-form-urlencoded"):
        code = await service.offer()
        body = json.dumps({"code": code, "side": "offerer"}).encode()
        response = await service.call("POST", "/withdraw", body, headers=[("Content-Type", kind)])
        assert (response.status, response.body) == (200, b'{"success":true}')
        assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert await service.topics() == []


@pytest.mark.parametrize("side", SECRETS)
@pytest.mark.parametrize("unanswered", [True, False])
async def test_refreshed_session_keeps_its_content_and_place(side, unanswered, service):
    code, newer = await service.offer(), await service.offer()
    if not unanswered:
        await service.post("/answer", code=code, side="answerer", answer="a")
    for step in range(1, 4):
        service.clock.ms += TIMEOUT_MS - 1
        await service.post("/refresh", code=newer, side="offerer")
        expires_ms = NOW_MS + step * (TIMEOUT_MS - 1) + TIMEOUT_MS
        assert await service.post("/refresh", code=code, side=side) == {"expiresAt": expires_ms}
        assert await service.topics() == [("lobby", 1 + unanswered)]
        listed = {session["code"]: session for session in await service.sessions()}
        assert list(listed) == ([newer, code] if unanswered else [newer])
        if unanswered:
            assert (listed[code]["createdAt"], listed[code]["expiresAt"]) == (NOW_MS, expires_ms)
        await service.store.expiry.sweep(service.clock.ms)
    service.clock.ms += TIMEOUT_MS - 1
    poll = await service.post("/poll", code=code, side="offerer")
    assert poll == {"answer": None if unanswered else "a", "answerCandidates": []}
    service.clock.ms += 1
    assert refused(await service.call("POST", "/poll", {"code": code, "side": "offerer"})) == (404, NOT_FOUND)
    assert await service.topics() == []
    await service.store.expiry.sweep(service.clock.ms)


@pytest.mark.parametrize("ttl", [1000, 1001, TIMEOUT_MS - 1, TIMEOUT_MS])
async def test_offer_expires_after_its_ttl_and_refresh_restarts_it(ttl, service):
    code = (await service.post("/lobby/offer", info="i", offer="o", ttl=ttl))["code"]
    (listed,) = await service.sessions()
    assert listed["expiresAt"] - listed["createdAt"] == ttl
    service.clock.ms += ttl - 1
    assert await service.topics() == [("lobby", 1)]
    assert await service.post("/refresh", code=code, side="answerer") == {"expiresAt": service.clock.ms + ttl}
    service.clock.ms += ttl - 1
    assert [session["code"] for session in await service.sessions()] == [code]
    service.clock.ms += 1
    assert (await service.sessions(), await service.topics()) == ([], [])
    assert refused(await service.call("POST", "/refresh", {"code": code, "side": "offerer"})) == (404, NOT_FOUND)


async def test_session_timeout_is_the_maximum_ttl(start_service):
    service = await start_service(session_timeout_ms=2000)
    assert refused(await service.call("POST", "/lobby/offer", {"info": "i", "offer": "o", "ttl": 2001}))[0] == 400
    for ttl in (None, 2000):
        await service.post("/lobby/offer", info="i", offer="o", ttl=ttl)
    assert {session["expiresAt"] for session in await service.sessions()} == {NOW_MS + 2000}
