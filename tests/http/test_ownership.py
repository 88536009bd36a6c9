"""Batches, secrets, leaving and staying: what each side may do, and what it does (contract C4, C5, C6)."""

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
LEAST, MOST = "s" * 16, "😀" * 256


async def answered(service, **secrets):
    """A session with an answer, each side with its secret if it has one; its code."""
    shown = {side: {"secret": secret} for side, secret in (secrets or SECRETS).items()}
    code = (await service.post("/lobby/offer", info="i", offer="o", **shown.get("offerer", {})))["code"]
    await service.post("/answer", code=code, side="answerer", answer="a", **shown.get("answerer", {}))
    return code


@pytest.mark.parametrize("side", ["offerer", "answerer"])
async def test_a_batch_is_taken_whole_and_in_its_order(side, service):
    other, name = ("answerer", "offerCandidates") if side == "offerer" else ("offerer", "answerCandidates")
    for count in (1, 2, 99, 100):
        code = await service.offer()
        await service.post("/answer", code=code, side=side, candidate="first")
        batch = [f"{n % 7}" for n in range(count)]
        assert await service.post("/answer", code=code, side=side, candidates=batch) == {"success": True}
        await service.post("/answer", code=code, side=side, candidate="last", candidates=None)
        assert (await service.post("/poll", code=code, side=other))[name] == ["first", *batch, "last"]


async def test_nothing_of_a_bad_batch_is_taken(service):
    code = await service.offer()
    for batch in ([], ["c"] * 101, "c", {"0": "c"}, True, ["c", ""], ["c", None], ["c", "\ud800"]):
        for each in (code, NO_SUCH_CODE):
            body = {"code": each, "side": "offerer", "candidates": batch}
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


async def raw_answer(service, target, body, origin):
    """The bytes of a response, but for its Date, its own name and its origin."""
    data = json.dumps(body).encode()
    async with service.connect() as connection:
        length = [("Content-Length", str(len(data)))]
        await connection.send(head("POST" if body else "GET", target, with_origin(origin, length)) + data)
        answer = await connection.reader.readuntil(b"\r\n\r\n")
        answer += await connection.reader.readexactly(int(re.search(rb"Content-Length: ([0-9]+)", answer)[1]))
    return re.sub(rb"(Date|X-Request-Id): [^\r]*", b"", answer).replace(origin.encode(), b"")


@pytest.mark.parametrize(("name", "side"), CASES)
async def test_a_side_does_everything_with_its_secret_and_nothing_without(name, side, service):
    path, fields = OPERATIONS[name]
    code = await answered(service)
    body = {"code": code, "side": side, **fields}
    missing = await raw_answer(service, path, body | {"code": NO_SUCH_CODE, "secret": SECRETS[side]}, ORIGIN)
    assert missing.endswith(json.dumps({"error": NOT_FOUND}, separators=(",", ":")).encode())
    assert await raw_answer(service, path, body | {"secret": SECRETS[side]}, OTHER) == missing
    other = SECRETS["answerer" if side == "offerer" else "offerer"]
    for shown in ({}, {"secret": None}, {"secret": SECRETS[side] + "!"}, {"secret": other}, {"secret": LEAST}):
        assert await raw_answer(service, path, body | shown, ORIGIN) == missing
    poll = {"code": code, "side": "answerer", "secret": SECRETS["answerer"]}
    assert await service.post("/poll", **poll) == {"offer": "o", "offerCandidates": []}
    poll = {"code": code, "side": "offerer", "secret": SECRETS["offerer"]}
    assert await service.post("/poll", **poll) == {"answer": "a", "answerCandidates": []}
    response = await service.call("POST", path, body | {"secret": SECRETS[side]})
    assert response.status == (409 if name == "another answer" else 200)


@pytest.mark.parametrize("side", SECRETS)
async def test_a_stream_without_its_secret_looks_like_one_of_no_session(side, service):
    code = await answered(service)
    missing = await raw_answer(service, f"/events?code={NO_SUCH_CODE}&side={side}", None, ORIGIN)
    for secret in ("", "&secret=" + LEAST):
        assert await raw_answer(service, f"/events?code={code}&side={side}{secret}", None, ORIGIN) == missing
    assert await raw_answer(service, f"/events?code={code}&side={side}", None, OTHER) == missing


async def test_the_secret_of_one_side_is_none_of_the_other(service):
    for secrets in ({"offerer": LEAST}, {"answerer": MOST}):
        code = await answered(service, **secrets)
        for side in SECRETS:
            shown = {"secret": secrets[side]} if side in secrets else {}
            await service.post("/answer", code=code, side=side, candidate="c", **shown)
            body = {"code": code, "side": side}
            expected = 404 if side in secrets else 200
            assert (await service.call("POST", "/poll", body)).status == expected


async def test_a_secret_counts_from_the_answer_that_shows_it(service):
    code = await service.offer()
    await service.post("/answer", code=code, side="answerer", candidate="c")
    body = {"code": code, "side": "answerer", "answer": "a"}
    await service.post("/answer", **body, secret=MOST)
    await service.post("/answer", **body, secret=MOST)  # a retry
    for fields in ({"answer": "a"}, {"answer": "b"}, {"answer": None, "candidate": "d"}):
        assert refused(await service.call("POST", "/answer", body | fields)) == (404, NOT_FOUND)
    assert (await service.post("/poll", code=code, side="offerer"))["answerCandidates"] == ["c"]


async def test_a_bad_secret_is_refused_before_any_session_is_looked_for(service):
    for secret in ("", "s" * 15, "s" * 257, "😀" * 15, 1, True, {}, ["s" * 16], "s" * 16 + "\ud800"):
        for path, fields in [*OPERATIONS.values(), ("/lobby/offer", {"info": "i", "offer": "o"})]:
            body = {"code": NO_SUCH_CODE, "side": "answerer", **fields, "secret": secret}
            assert refused(await service.call("POST", path, body)) == (400, invalid("secret")), (path, fields)


async def test_a_stream_takes_a_secret_of_any_characters_in_its_query(service):
    for secret in (LEAST, MOST, "null and \0 void....", "é" * 16):
        code = await answered(service, offerer=secret, answerer=secret)
        for side in SECRETS:
            await service.post("/poll", code=code, side=side, secret=secret)
            target = f"/events?code={code}&side={side}&secret={quote(secret)}"
            async with open_stream(service.port, target) as stream:
                await stream.take()


async def test_the_disk_holds_a_hash_of_a_secret_and_never_the_secret(service, tmp_path):
    code = await answered(service)
    await service.post("/answer", code=code, side="offerer", candidate="c", secret=SECRETS["offerer"])
    body = {"code": code, "side": "offerer", "secret": "a secret that is wrong"}
    assert (await service.call("POST", "/refresh", body)).status == 404
    await service.close_store()
    held = b"".join(path.read_bytes() for path in (tmp_path / "data0").iterdir() if path.is_file())
    for secret in SECRETS.values():
        data = secret.encode()
        assert hashlib.sha256(data).digest() in held
        assert data not in held
        assert hashlib.sha256(data).hexdigest().encode() not in held
    assert b"a secret" not in held


@pytest.mark.parametrize("side", SECRETS)
@pytest.mark.parametrize("unanswered", [True, False])
async def test_a_withdrawn_session_is_gone_for_both_sides(side, unanswered, service):
    codes = [await service.offer(), await service.offer()]
    if not unanswered:
        await service.post("/answer", code=codes[0], side="answerer", answer="a")
        await service.post("/answer", code=codes[0], side="offerer", candidates=["c"] * 100)
    assert await service.post("/withdraw", code=codes[0], side=side) == {"success": True}
    assert await service.topics() == [("lobby", 1)]
    assert [each["code"] for each in await service.sessions()] == codes[1:]
    for path, fields in OPERATIONS.values():
        body = {"code": codes[0], "side": "answerer", **fields}
        assert refused(await service.call("POST", path, body)) == (404, NOT_FOUND)
    await service.post("/withdraw", code=codes[1], side=side)
    assert await service.topics() == []


async def test_a_page_that_closes_withdraws_with_a_body_of_any_type(service):
    for kind in ("text/plain;charset=UTF-8", "text/plain", "application/x-www-form-urlencoded"):
        code = await service.offer()
        body = json.dumps({"code": code, "side": "offerer"}).encode()
        response = await service.call("POST", "/withdraw", body, headers=[("Content-Type", kind)])
        assert (response.status, response.body) == (200, b'{"success":true}')
        assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert await service.topics() == []


async def test_a_session_that_is_not_there_is_neither_withdrawn_nor_refreshed(service):
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
async def test_a_refreshed_session_keeps_what_it_has_and_its_place(side, unanswered, service):
    code, newer = await service.offer(), await service.offer()
    if not unanswered:
        await service.post("/answer", code=code, side="answerer", answer="a")
    for step in range(1, 4):
        service.clock.ms += TIMEOUT_MS - 1
        await service.post("/refresh", code=newer, side="offerer")
        expires_ms = NOW_MS + step * (TIMEOUT_MS - 1) + TIMEOUT_MS
        assert await service.post("/refresh", code=code, side=side) == {"expiresAt": expires_ms}
        assert await service.topics() == [("lobby", 1 + unanswered)]
        listed = {each["code"]: each for each in await service.sessions()}
        assert list(listed) == ([newer, code] if unanswered else [newer])
        if unanswered:
            assert (listed[code]["createdAt"], listed[code]["expiresAt"]) == (NOW_MS, expires_ms)
        await service.store.expiry.sweep(service.clock.ms)
    service.clock.ms += TIMEOUT_MS - 1
    found = await service.post("/poll", code=code, side="offerer")
    assert found == {"answer": None if unanswered else "a", "answerCandidates": []}
    service.clock.ms += 1
    assert refused(await service.call("POST", "/poll", {"code": code, "side": "offerer"})) == (404, NOT_FOUND)
    assert await service.topics() == []
    await service.store.expiry.sweep(service.clock.ms)


@pytest.mark.parametrize("ttl", [1000, 1001, TIMEOUT_MS - 1, TIMEOUT_MS])
async def test_an_offer_lives_as_long_as_it_asked_for_and_again_from_a_refresh_on(ttl, service):
    code = (await service.post("/lobby/offer", info="i", offer="o", ttl=ttl))["code"]
    (listed,) = await service.sessions()
    assert listed["expiresAt"] - listed["createdAt"] == ttl
    service.clock.ms += ttl - 1
    assert await service.topics() == [("lobby", 1)]
    assert await service.post("/refresh", code=code, side="answerer") == {"expiresAt": service.clock.ms + ttl}
    service.clock.ms += ttl - 1
    assert [each["code"] for each in await service.sessions()] == [code]
    service.clock.ms += 1
    assert (await service.sessions(), await service.topics()) == ([], [])
    assert refused(await service.call("POST", "/refresh", {"code": code, "side": "offerer"})) == (404, NOT_FOUND)


async def test_a_bad_ttl_is_refused(service):
    for ttl in (0, -1, 999, TIMEOUT_MS + 1, 10**30, 1000.5, "1000", True, [], {}):
        body = {"info": "i", "offer": "o", "ttl": ttl}
        assert refused(await service.call("POST", "/lobby/offer", body)) == (400, invalid("ttl"))
    assert await service.topics() == []


async def test_the_configured_timeout_is_the_longest_ttl(start_service):
    service = await start_service(session_timeout_ms=2000)
    assert refused(await service.call("POST", "/lobby/offer", {"info": "i", "offer": "o", "ttl": 2001}))[0] == 400
    for ttl in (None, 2000):
        await service.post("/lobby/offer", info="i", offer="o", ttl=ttl)
    assert {each["expiresAt"] for each in await service.sessions()} == {NOW_MS + 2000}
