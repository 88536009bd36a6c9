"""Batches, secrets, leaving and staying: what each side may do, and what it does (contract C4, C5, C6)."""

import hashlib
import json
import re

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
from support.sse import open_stream, told

pytest_plugins = ["support.http_fixtures"]

SECRETS = {"offerer": "the offerer's secret", "answerer": "the answerer's secret 😀"}
LEAST, MOST = "s" * 16, "😀" * 256


async def answered(service, **secrets):
    """A session with an answer, each side with its secret; its code."""
    secrets = secrets or SECRETS
    fields = {"info": "i", "offer": "o"} | ({"secret": secrets["offerer"]} if "offerer" in secrets else {})
    code = (await service.post("/lobby/offer", **fields))["code"]
    fields = {"secret": secrets["answerer"]} if "answerer" in secrets else {}
    await service.post("/answer", code=code, side="answerer", answer="a", **fields)
    return code


# Batches (C4).


@pytest.mark.parametrize("count", [1, 2, 99, 100])
@pytest.mark.parametrize("side", ["offerer", "answerer"])
async def test_batches(side, count, service):
    """A batch of 1 to 100 candidates is taken whole, in its order, behind what came before."""
    code = await service.offer()
    await service.post("/answer", code=code, side=side, candidate="first")
    batch = [f"{n % 7}" for n in range(count)]
    assert await service.post("/answer", code=code, side=side, candidates=batch) == {"success": True}
    await service.post("/answer", code=code, side=side, candidate="last", candidates=None)
    other, name = ("answerer", "offerCandidates") if side == "offerer" else ("offerer", "answerCandidates")
    assert (await service.post("/poll", code=code, side=other))[name] == ["first", *batch, "last"]


BAD_BATCHES = [
    [],
    ["c"] * 101,
    "c",
    {},
    {"0": "c"},
    1,
    True,
    ["c", ""],
    ["c", None],
    ["c", 1],
    [["c"]],
    ["c", "\ud800"],
]


@pytest.mark.parametrize("batch", BAD_BATCHES, ids=lambda batch: repr(batch)[:20])
async def test_bad_batches(batch, service):
    """A batch with anything wrong in it is 400 `candidates`, and nothing of it is taken."""
    code = await service.offer()
    for each in (code, NO_SUCH_CODE):
        body = {"code": each, "side": "offerer", "candidates": batch}
        assert refused(await service.call("POST", "/answer", body)) == (400, invalid("candidates"))
    assert (await service.post("/poll", code=code, side="answerer"))["offerCandidates"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"candidate": "c", "candidates": ["c"]},
        {"answer": "a", "candidates": ["c"]},
        {"answer": "a", "candidate": "c", "candidates": ["c"]},
        {"answer": None, "candidate": None, "candidates": None},
    ],
    ids=lambda fields: "+".join(fields),
)
async def test_one_of_three(fields, service):
    """Exactly one of `answer`, `candidate` and `candidates` must be there; null counts as absent."""
    body = {"code": await service.offer(), "side": "answerer", **fields}
    assert refused(await service.call("POST", "/answer", body)) == (400, invalid("answer or candidate"))


# Secrets (C5).

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
async def test_the_right_secret(name, side, service):
    """A side that has shown a secret does everything with it."""
    path, fields = OPERATIONS[name]
    code = await answered(service)
    response = await service.call("POST", path, {"code": code, "side": side, "secret": SECRETS[side], **fields})
    assert response.status == (409 if name == "another answer" else 200)


@pytest.mark.parametrize(("name", "side"), CASES)
async def test_a_wrong_secret_is_no_session(name, side, service):
    """Without its secret a side can do nothing, and the answer is that of a session that is not there, to the byte."""
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


@pytest.mark.parametrize("side", SECRETS)
async def test_a_stream_without_its_secret(side, service):
    """A stream that does not show the secret is answered as one of a missing session, to the byte."""
    code = await answered(service)
    missing = await raw_answer(service, f"/events?code={NO_SUCH_CODE}&side={side}", None, ORIGIN)
    for secret in ("", "&secret=" + LEAST):
        assert await raw_answer(service, f"/events?code={code}&side={side}{secret}", None, ORIGIN) == missing
    assert await raw_answer(service, f"/events?code={code}&side={side}", None, OTHER) == missing


async def test_each_side_for_itself(service):
    """Each side may have a secret or not; one's secret is not the other's business."""
    for secrets in ({"offerer": LEAST}, {"answerer": MOST}):
        code = await answered(service, **secrets)
        for side in SECRETS:
            shown = {"secret": secrets[side]} if side in secrets else {}
            await service.post("/answer", code=code, side=side, candidate="c", **shown)
            body = {"code": code, "side": side}
            expected = 404 if side in secrets else 200
            assert (await service.call("POST", "/poll", body)).status == expected


async def test_a_secret_where_none_is_kept(service):
    """A secret that a side did not show at first is not asked for, and showing one later changes nothing."""
    code = await service.offer()
    await service.post("/answer", code=code, side="answerer", answer="a")
    await service.post("/poll", code=code, side="offerer", secret=LEAST)
    await service.post("/answer", code=code, side="answerer", answer="a", secret=LEAST)
    await service.post("/answer", code=code, side="answerer", candidate="c")
    assert (await service.post("/poll", code=code, side="offerer"))["answerCandidates"] == ["c"]


async def test_before_the_answer(service):
    """Candidates may come before the answer that shows the secret; from the answer on it is needed."""
    code = await service.offer()
    await service.post("/answer", code=code, side="answerer", candidate="c")
    await service.post("/answer", code=code, side="answerer", answer="a", secret=MOST)
    body = {"code": code, "side": "answerer", "candidate": "d"}
    assert refused(await service.call("POST", "/answer", body)) == (404, NOT_FOUND)
    assert (await service.post("/poll", code=code, side="offerer"))["answerCandidates"] == ["c"]


async def test_an_answer_that_is_sent_again(service):
    """The retry of an answer must carry its secret; another one's answer does not learn that it came too late."""
    code = await answered(service)
    body = {"code": code, "side": "answerer", "answer": "a"}
    assert await service.post("/answer", **body, secret=SECRETS["answerer"]) == {"success": True}
    for answer in ("a", "b"):
        assert refused(await service.call("POST", "/answer", body | {"answer": answer})) == (404, NOT_FOUND)


BAD_SECRETS = ["", "s" * 15, "s" * 257, "😀" * 15, 1, True, [], {}, ["s" * 16], "s" * 16 + "\ud800"]


@pytest.mark.parametrize("secret", BAD_SECRETS, ids=lambda secret: repr(secret)[:20])
async def test_bad_secrets(secret, service):
    """A secret that is no string of 16 to 256 characters is 400 `secret`, before any session is looked for."""
    for path, fields in [*OPERATIONS.values(), ("/lobby/offer", {"info": "i", "offer": "o"})]:
        body = {"code": NO_SUCH_CODE, "side": "answerer", **fields, "secret": secret}
        assert refused(await service.call("POST", path, body)) == (400, invalid("secret")), (path, fields)


@pytest.mark.parametrize("secret", [LEAST, MOST, "null and \0 void....", "é" * 16])
async def test_good_secrets(secret, service):
    """Any string of 16 to 256 characters is a secret, in a stream's query too."""
    code = await answered(service, offerer=secret, answerer=secret)
    for side in SECRETS:
        await service.post("/poll", code=code, side=side, secret=secret)
        encoded = "".join(f"%{byte:02x}" for byte in secret.encode())
        async with open_stream(service.port, f"/events?code={code}&side={side}&secret={encoded}") as stream:
            await stream.take()


async def test_what_is_kept_of_a_secret(service, tmp_path):
    """On disk there is the SHA-256 of each secret, and the secret itself nowhere."""
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
    assert b"secret" not in held


async def test_the_same_content_by_another(start_service):
    """Where the same content gives the same code, another one's secret does not get hold of a session."""
    service = await start_service(codes="content")
    offer = {"info": "i", "offer": "o"}
    code = (await service.post("/lobby/offer", **offer, secret=LEAST))["code"]
    assert (await service.post("/lobby/offer", **offer, secret=LEAST))["code"] == code
    for shown in ({}, {"secret": MOST}):
        assert refused(await service.call("POST", "/lobby/offer", offer | shown)) == (404, NOT_FOUND)
    service.clock.ms += TIMEOUT_MS
    assert (await service.post("/lobby/offer", **offer, secret=MOST))["code"] == code
    assert refused(await service.call("POST", "/poll", {"code": code, "side": "offerer"})) == (404, NOT_FOUND)


# Leaving (C6).


@pytest.mark.parametrize("side", SECRETS)
@pytest.mark.parametrize("unanswered", [True, False])
async def test_withdraw(side, unanswered, service):
    """A withdrawn session is gone for both sides and from every listing, and only that one."""
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


async def test_withdraw_as_a_page_that_closes_does(service):
    """`sendBeacon` sends the body as text/plain, and a text as UTF-8 with that said."""
    for kind in ("text/plain;charset=UTF-8", "text/plain", "application/x-www-form-urlencoded"):
        code = await service.offer()
        body = json.dumps({"code": code, "side": "offerer"}).encode()
        response = await service.call("POST", "/withdraw", body, headers=[("Content-Type", kind)])
        assert (response.status, response.body) == (200, b'{"success":true}')
        assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert await service.topics() == []


async def test_withdraw_leaves_others_that_end_in_the_same_millisecond(service):
    """Withdrawing an answered session takes nothing out of the count of those that expire with it."""
    codes = [await service.offer() for _ in range(3)]
    await service.post("/answer", code=codes[0], side="answerer", answer="a")
    assert await service.topics() == [("lobby", 2)]
    await service.post("/withdraw", code=codes[0], side="offerer")
    assert await service.topics() == [("lobby", 2)]
    service.clock.ms += TIMEOUT_MS - 1
    assert await service.topics() == [("lobby", 2)]
    service.clock.ms += 1
    assert await service.topics() == []


async def test_withdraw_of_what_is_not_there(service):
    """Withdrawing or refreshing a session that is missing, expired or another origin's is 404."""
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


# Staying (C6).


@pytest.mark.parametrize("side", SECRETS)
@pytest.mark.parametrize("unanswered", [True, False])
async def test_refresh(side, unanswered, service):
    """A refreshed session lives from now for its timeout, is shown so, and keeps all that it has and its place."""
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
async def test_ttl(ttl, service):
    """An offer lives exactly as long as it asked for, and from a refresh on for as long again."""
    code = (await service.post("/lobby/offer", info="i", offer="o", ttl=ttl))["code"]
    (listed,) = await service.sessions()
    assert listed["expiresAt"] - listed["createdAt"] == ttl
    service.clock.ms += ttl - 1
    assert await service.topics() == [("lobby", 1)]
    assert await service.post("/refresh", code=code, side="answerer") == {"expiresAt": service.clock.ms + ttl}
    service.clock.ms += ttl - 1
    assert [each["code"] for each in await service.sessions()] == [code]
    service.clock.ms += 1
    assert await service.sessions() == []
    assert await service.topics() == []
    assert refused(await service.call("POST", "/refresh", {"code": code, "side": "offerer"})) == (404, NOT_FOUND)


BAD_TTLS = [0, -1, 999, TIMEOUT_MS + 1, 10**30, 1000.5, "1000", True, [], {}]


@pytest.mark.parametrize("ttl", BAD_TTLS, ids=repr)
async def test_bad_ttls(ttl, service):
    """A `ttl` that is no whole number from 1000 up to the configured maximum is 400 `ttl`."""
    body = {"info": "i", "offer": "o", "ttl": ttl}
    assert refused(await service.call("POST", "/lobby/offer", body)) == (400, invalid("ttl"))
    assert await service.topics() == []


async def test_ttl_of_a_short_configured_maximum(start_service):
    """The maximum is the configured timeout; null counts as absent."""
    service = await start_service(session_timeout_ms=2000)
    assert refused(await service.call("POST", "/lobby/offer", {"info": "i", "offer": "o", "ttl": 2001}))[0] == 400
    for ttl in (None, 2000):
        await service.post("/lobby/offer", info="i", offer="o", ttl=ttl)
    assert {each["expiresAt"] for each in await service.sessions()} == {NOW_MS + 2000}


async def test_short_lives_are_told_in_their_order(service):
    """Sessions with lives of their own end each at its time, in listings, counts and streams."""
    codes = {
        ttl: (await service.post("/lobby/offer", info="i", offer="o", ttl=ttl))["code"] for ttl in (3000, 1000, 2000)
    }
    async with open_stream(service.port, "/lobby/events") as stream:
        await stream.listing()
        for ttl in (1000, 2000, 3000):
            service.clock.ms = NOW_MS + ttl
            left = [code for each, code in codes.items() if each > ttl]
            assert sorted(each["code"] for each in await service.sessions()) == sorted(left)
            assert await service.topics() == ([("lobby", len(left))] if left else [])
            await service.store.expiry.sweep(service.clock.ms)
            assert told(await stream.take()) == [("gone", codes[ttl], "expired")]
