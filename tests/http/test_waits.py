"""Long polling: polls and listings that wait for changes, and their cursors (docs/http-api.md#long-polling)."""

import asyncio
import email.utils
import http
import json
import re

import pytest
from support.service import NO_SUCH_CODE, NOT_FOUND, ORIGIN, TIMEOUT_MS, invalid, refused, request

LONG_S = 45  # the longest wait, longer than any of these tests takes
BOUND_S = 20  # limit for each response


async def json_of(waiter):
    response = await asyncio.wait_for(waiter, BOUND_S)
    assert response.status == 200, response
    return response.json


async def until_waiting(service, *waiters):
    """Send requests until others wait."""
    async with asyncio.timeout(BOUND_S):
        while len(service.store.watches) != len(waiters):
            await service.get("/health")
    assert not any(waiter.done() for waiter in waiters)


async def until_over(service, pass_time, wait_s, *waiters):
    """Let all of the time pass that requests wait for, and check that they do."""
    await until_waiting(service, *waiters)
    await pass_time(0.5 * wait_s)
    await service.get("/health")
    assert not any(waiter.done() for waiter in waiters)
    await pass_time(0.5 * wait_s + 1)


@pytest.fixture
def poll(service):
    def begin(code, side="offerer", **fields):
        return asyncio.ensure_future(service.call("POST", "/poll", {"code": code, "side": side, **fields}))

    return begin


@pytest.fixture
def list_sessions(service):
    def begin(**fields):
        query = "&".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        return asyncio.ensure_future(service.call("GET", f"/lobby/sessions?{query}"))

    return begin


def date(service):
    """Return the header that states the service's time."""
    return email.utils.formatdate(service.clock.ms // 1000, usegmt=True)


async def send(service, code, side, **fields):
    await service.post("/answer", code=code, side=side, **fields)


OFFERER, ANSWERER = ({"code": "%s", "side": side} for side in ("offerer", "answerer"))
LAST_PAGE = '"pagination":{"page":1,"limit":1000,"total":1,"hasMore":false}}'
CANDIDATES_AND_TIMES = '"offerCandidates":["c1","c2"],"createdAt":1900000000000,"expiresAt":1900000300000}]}'

BARE = [
    ("/", None, 200, '{"version":"0123456789abcdef0123456789abcdef01234567"}'),
    ("/health", None, 200, '{"status":"ok","timestamp":1900000000000}'),
    ("/topics", None, 200, '{"topics":[],"pagination":{"page":1,"limit":100,"total":0,"hasMore":false}}'),
    ("/lobby/sessions", None, 200, '{"sessions":[]}'),
    ("/lobby/offer", {"info": "i", "offer": "o"}, 200, '{"code":"%s"}'),
    ("/topics?limit=5000", None, 200, '{"topics":[{"topic":"lobby","count":1}],' + LAST_PAGE),
    ("/poll", OFFERER, 200, '{"answer":null,"answerCandidates":[]}'),
    ("/poll", OFFERER | dict.fromkeys(("wait", "since", "secret")), 200, '{"answer":null,"answerCandidates":[]}'),
    ("/poll", ANSWERER, 200, '{"offer":"o","offerCandidates":[]}'),
    ("/answer", OFFERER | {"candidate": "c1"}, 200, '{"success":true}'),
    ("/answer", OFFERER | {"candidate": "c2"}, 200, '{"success":true}'),
    ("/lobby/sessions", None, 200, '{"sessions":[{"code":"%s","info":"i","offer":"o",' + CANDIDATES_AND_TIMES),
    ("/answer", ANSWERER | {"candidate": "d"}, 200, '{"success":true}'),
    ("/answer", ANSWERER | {"answer": "a"}, 200, '{"success":true}'),
    ("/poll", OFFERER, 200, '{"answer":"a","answerCandidates":["d"]}'),
    ("/poll", ANSWERER, 200, '{"offer":"o","offerCandidates":["c1","c2"]}'),
    ("/answer", ANSWERER | {"answer": "b"}, 409, '{"error":"Session already answered"}'),
    ("/answer", ANSWERER, 400, f'{{"error":"{invalid("answer or candidate")}"}}'),
    ("/poll", OFFERER | {"code": NO_SUCH_CODE}, 404, f'{{"error":"{NOT_FOUND}"}}'),
]
HEAD = (
    "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nContent-Length: %d\r\n"
    "Vary: Origin\r\nAccess-Control-Allow-Origin: https://app.example\r\n"
    "Access-Control-Expose-Headers: Retry-After, WWW-Authenticate, X-Request-Id\r\n\r\n"
)


async def test_responses_without_optional_features_match_the_specification_byte_for_byte(service):
    code = ""
    async with service.connect() as connection:
        for target, fields, status, expected in BARE:
            body = json.dumps(fields).replace("%s", code).encode() if fields else b""
            await connection.send(request("POST" if fields else "GET", target, body or None))
            response = (await connection.reader.readuntil(b"\r\n\r\n")).decode()
            for name in ("Date", "X-Request-Id"):
                response, removed = re.subn(rf"{name}: [^\r]*\r\n", "", response)
                assert removed == 1
            size = int(re.search("Content-Length: ([0-9]+)", response)[1])
            response += (await connection.reader.readexactly(size)).decode()
            if target == "/lobby/offer":
                code = response[-38:-2]
            expected = expected.replace("%s", code)
            expected_head = HEAD % (status, http.HTTPStatus(status).phrase, len(expected))
            assert response == expected_head + expected, (target, fields)


COMES = [
    ("offerer", {"answer": "a"}, {"answer": "a", "answerCandidates": []}),
    ("offerer", {"candidate": "c"}, {"answer": None, "answerCandidates": ["c"]}),
    ("offerer", {"candidates": ["c", "c", "d"]}, {"answer": None, "answerCandidates": ["c", "c", "d"]}),
    ("answerer", {"candidates": ["c"]}, {"offer": "an offer", "offerCandidates": ["c"]}),
]


@pytest.mark.parametrize(("side", "sent", "expected"), COMES)
async def test_every_waiting_poll_gets_a_change_of_the_other_side_once(side, sent, expected, service, poll):
    code = await service.offer()
    cursor = (await json_of(poll(code, side, wait=0)))["cursor"]
    waiters = [poll(code, side, wait=LONG_S, since=cursor) for _ in range(7)]
    await until_waiting(service, *waiters)
    other = await service.offer()
    for wrong in ((code, side), (other, "answerer"), (other, "offerer")):  # these wake no other side
        await send(service, *wrong, candidate="not for it")
    await until_waiting(service, *waiters)
    service.clock.ms += 5999
    await send(service, code, "answerer" if side == "offerer" else "offerer", **sent)
    for waiter in waiters:
        response = await asyncio.wait_for(waiter, BOUND_S)
        assert (response.status, response.headers["Date"]) == (200, date(service))  # not that of the request
        result = response.json
        assert result.pop("cursor") != cursor
        assert result == expected
    assert len(service.store.watches) == 0


@pytest.mark.parametrize("wait", [0, 30, 60])
@pytest.mark.parametrize("seen", [False, True])
async def test_poll_that_times_out_returns_the_same_cursor(wait, seen, service, poll, pass_time):
    """It does so after 45 seconds at most, because proxies give up after 50 or 60."""
    code = await service.offer()
    await send(service, code, "answerer", answer="a")
    await send(service, code, "answerer", candidate="c")
    cursor = (await json_of(poll(code, wait=0)))["cursor"]
    if not seen:
        code = await service.offer()
        cursor = (await json_of(poll(code, wait=0)))["cursor"]
    waiter = poll(code, wait=wait, since=cursor)
    if wait:
        await until_over(service, pass_time, min(wait, LONG_S), waiter)
    assert await json_of(waiter) == {"answer": "a" if seen else None, "answerCandidates": [], "cursor": cursor}


@pytest.mark.parametrize("end", ["withdrawn by the offerer", "withdrawn by the answerer", "expired", "swept"])
@pytest.mark.parametrize("answered", [False, True])
async def test_end_of_a_session_ends_the_polls_of_both_sides(end, answered, service, poll):
    code = await service.offer()
    if answered:
        await send(service, code, "answerer", answer="a")
    service.clock.ms += TIMEOUT_MS - 5999
    waiters = []
    for reader in ("offerer", "answerer"):
        cursor = (await json_of(poll(code, reader, wait=0)))["cursor"]
        waiters.append(poll(code, reader, wait=LONG_S, since=cursor))
    await until_waiting(service, *waiters)
    service.clock.ms += 5998
    if "withdrawn" in end:
        await service.post("/withdraw", code=code, side=end.split()[-1])
    else:
        service.clock.ms += 1
    if end == "swept":
        await service.store.sweep(service.clock.ms)
    for waiter in (*waiters, poll(code, reader, wait=LONG_S, since=cursor)):
        response = await asyncio.wait_for(waiter, BOUND_S)
        assert (refused(response), response.headers["Date"]) == ((404, NOT_FOUND), date(service))


async def test_waits_outlast_an_expiry_that_a_refresh_has_moved(service, poll, list_sessions, pass_time):
    code = await service.offer()
    service.clock.ms += TIMEOUT_MS - 100
    cursor = (await json_of(list_sessions(wait=0)))["cursor"]
    polled, listed = poll(code, wait=10), list_sessions(wait=10, since=cursor)
    await until_waiting(service, polled, listed)
    await service.post("/refresh", code=code, side="offerer")
    service.clock.ms += 100
    await until_over(service, pass_time, 10, polled, listed)
    assert (await json_of(polled))["answer"] is None
    result = await json_of(listed)
    assert (result["cursor"], [session["code"] for session in result["sessions"]]) == (cursor, [code])


async def test_listing_waits_only_while_it_is_empty_or_unchanged(service, list_sessions, pass_time):
    waiter = list_sessions(wait=60)
    await until_over(service, pass_time, LONG_S, waiter)
    empty = await json_of(waiter)
    assert empty["sessions"] == []
    waiters = [list_sessions(wait=LONG_S), list_sessions(wait=LONG_S, since=empty["cursor"])]
    await until_waiting(service, *waiters)
    code = await service.offer()
    for waiter in (*waiters, list_sessions(wait=LONG_S)):
        result = await json_of(waiter)
        assert set(result) == {"sessions", "cursor"}
        assert [session["code"] for session in result["sessions"]] == [code]
        assert result["sessions"] == await service.sessions()
    waiter = list_sessions(wait=LONG_S, since=result["cursor"])
    await until_waiting(service, waiter)
    await send(service, code, "answerer", answer="a")
    assert (await json_of(waiter))["sessions"] == []


async def test_limit_returns_the_newest_sessions_up_to_1000(service, list_sessions):
    codes = [await service.offer(info=str(n)) for n in range(120)][::-1]
    for limit in (1, 51, 120, 2000):
        for extra in ({}, {"wait": 0}):
            result = await json_of(list_sessions(limit=limit, **extra))
            assert [session["code"] for session in result["sessions"]] == codes[:limit]
            assert ("cursor" in result) == bool(extra)
    await asyncio.gather(*(service.store.create(ORIGIN, "lobby", "i", "o") for _ in range(890)))
    assert len((await json_of(list_sessions(limit=5000)))["sessions"]) == 1000
    assert len((await json_of(list_sessions()))["sessions"]) == 1010
