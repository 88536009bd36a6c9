"""Batches, secrets, withdraw and refresh: what each side may do (docs/http-api.md#batches and after it)."""

import hashlib
import json
import re
from urllib.parse import quote

import pytest
from support.service import (
    NO_SUCH_CODE,
    NOT_FOUND,
    NOW_MS,
    ORIGIN,
    OTHER,
    TIMEOUT_MS,
    head,
    invalid,
    refused,
    with_origin,
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


async def test_invalid_batch_is_refused_entirely(service):
    code = await service.offer()
    for batch in ([], ["c"] * 101, "c", {"0": "c"}, True, ["c", ""], ["c", None], ["c", "\ud800"]):
        for any_code in (code, NO_SUCH_CODE):
            body = {"code": any_code, "side": "offerer", "candidates": batch}
            assert refused(await service.call("POST", "/answer", body)) == (400, invalid("candidates"))
    for fields in (
        {"candidate": "c", "candidates": ["c"]},
        {"answer": "a", "candidates": ["c"]},
        {"answer": "a", "candidate": "c", "candidates": ["c"]},
        {"answer": None, "candidate": None, "candidates": None},
    ):
        body = {"code": code, "side": "answerer", **fields}
        assert refused(await service.call("POST", "/answer", body)) == (400, invalid("answer or candidate"))
    assert (await service.post("/poll", code=code, side="answerer"))["offerCandidates"] == []
    assert await service.post("/poll", code=code, side="offerer") == {"answer": None, "answerCandidates": []}


OPERATIONS = {
    "poll": ("/poll", {}),
    "wait": ("/poll", {"wait": 30}),
    "candidate": ("/answer", {"candidate": "c"}),
    "batch": ("/answer", {"candidates": ["c", "d"]}),
    "answer again": ("/answer", {"answer": "a"}),
    "another answer": ("/answer", {"answer": "b"}),
    "refresh": ("/refresh", {}),
    "withdraw": ("/withdraw", {}),
}
CASES = [(name, side) for name in OPERATIONS for side in SECRETS if side == "answerer" or "answer" not in name]


async def raw_response(service, target, body, origin):
    """Return the bytes of a response without its date, request id and origin."""
    data = json.dumps(body).encode()
    async with service.connect() as connection:
        length = [("Content-Length", str(len(data)))]
        await connection.send(head("POST" if body else "GET", target, with_origin(origin, length)) + data)
        response = await connection.reader.readuntil(b"\r\n\r\n")
        response += await connection.reader.readexactly(int(re.search(rb"Content-Length: ([0-9]+)", response)[1]))
    return re.sub(rb"(Date|X-Request-Id): [^\r]*", b"", response).replace(origin.encode(), b"")


@pytest.mark.parametrize(("name", "side"), CASES)
async def test_every_operation_of_a_side_needs_its_secret(name, side, service):
    path, fields = OPERATIONS[name]
    code = await answered_session(service)
    body = {"code": code, "side": side, **fields}
    missing = await raw_response(service, path, body | {"code": NO_SUCH_CODE, "secret": SECRETS[side]}, ORIGIN)
    assert missing.endswith(json.dumps({"error": NOT_FOUND}, separators=(",", ":")).encode())
    assert await raw_response(service, path, body | {"secret": SECRETS[side]}, OTHER) == missing
    other = SECRETS["answerer" if side == "offerer" else "offerer"]
    for credentials in ({}, {"secret": None}, {"secret": SECRETS[side] + "!"}, {"secret": other}, {"secret": SHORTEST}):
        assert await raw_response(service, path, body | credentials, ORIGIN) == missing
    poll = {"code": code, "side": "answerer", "secret": SECRETS["answerer"]}
    assert await service.post("/poll", **poll) == {"offer": "o", "offerCandidates": []}
    poll = {"code": code, "side": "offerer", "secret": SECRETS["offerer"]}
    assert await service.post("/poll", **poll) == {"answer": "a", "answerCandidates": []}
    response = await service.call("POST", path, body | {"secret": SECRETS[side]})
    assert response.status == (409 if name == "another answer" else 200)


@pytest.mark.parametrize("side", SECRETS)
async def test_stream_without_the_secret_has_the_response_of_a_missing_session(side, service):
    code = await answered_session(service)
    missing = await raw_response(service, f"/events?code={NO_SUCH_CODE}&side={side}", None, ORIGIN)
    for secret in ("", "&secret=" + SHORTEST):
        assert await raw_response(service, f"/events?code={code}&side={side}{secret}", None, ORIGIN) == missing
    assert await raw_response(service, f"/events?code={code}&side={side}", None, OTHER) == missing


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


async def test_invalid_secret_is_400_even_if_the_session_does_not_exist(service):
    for secret in ("", "s" * 15, "s" * 257, "😀" * 15, 1, True, {}, ["s" * 16], "s" * 16 + "\ud800"):
        for path, fields in [*OPERATIONS.values(), ("/lobby/offer", {"info": "i", "offer": "o"})]:
            body = {"code": NO_SUCH_CODE, "side": "answerer", **fields, "secret": secret}
            assert refused(await service.call("POST", path, body)) == (400, invalid("secret")), (path, fields)


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
    for path, fields in OPERATIONS.values():
        body = {"code": codes[0], "side": "answerer", **fields}
        assert refused(await service.call("POST", path, body)) == (404, NOT_FOUND)
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


async def test_withdraw_and_refresh_of_a_missing_session_are_404(service):
    code = await service.offer()
    for path in ("/withdraw", "/refresh"):
        for body, origin in [
            ({"code": NO_SUCH_CODE, "side": "offerer"}, ORIGIN),
            ({"code": code, "side": "offerer"}, OTHER),
            ({"code": "x", "side": "offerer"}, ORIGIN),
        ]:
            assert refused(await service.call("POST", path, body, origin=origin)) == (404, NOT_FOUND)
        for fields, parameter in [
            ({"side": "offerer"}, "code"),
            ({"code": ""}, "code"),
            ({"code": code}, "side"),
            ({"code": code, "side": "Offerer"}, "side"),
        ]:
            assert refused(await service.call("POST", path, fields)) == (400, invalid(parameter))
    assert await service.topics() == [("lobby", 1)]
    service.clock.ms += TIMEOUT_MS
    for path in ("/withdraw", "/refresh"):
        assert refused(await service.call("POST", path, {"code": code, "side": "offerer"})) == (404, NOT_FOUND)


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


async def test_invalid_ttl_is_400(service):
    for ttl in (0, -1, 999, TIMEOUT_MS + 1, 10**30, 1000.5, "1000", True, [], {}):
        body = {"info": "i", "offer": "o", "ttl": ttl}
        assert refused(await service.call("POST", "/lobby/offer", body)) == (400, invalid("ttl"))
    assert await service.topics() == []


async def test_session_timeout_is_the_maximum_ttl(start_service):
    service = await start_service(session_timeout_ms=2000)
    assert refused(await service.call("POST", "/lobby/offer", {"info": "i", "offer": "o", "ttl": 2001}))[0] == 400
    for ttl in (None, 2000):
        await service.post("/lobby/offer", info="i", offer="o", ttl=ttl)
    assert {session["expiresAt"] for session in await service.sessions()} == {NOW_MS + 2000}
