"""Waiting for news: polls and listings that answer when there is something new, and their cursors (contract C1, C2)."""

import asyncio
import email.utils
import http
import json
import random
import re
import signal

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

from tornado_signal.system.clock import Clock

LONG_S = 60  # a wait that something else must end
BOUND_S = 20  # for that to happen


async def waiting(service, count):
    """Ask for the time of day until so many requests wait."""
    async with asyncio.timeout(BOUND_S):
        while len(service.store.watches) != count:
            await service.get("/health")


class Waiter:
    """A request that waits, and how long it took once it is done."""

    def __init__(self, asked):
        self._asked = asked
        self.task = asyncio.ensure_future(self._ask())

    async def _ask(self):
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        response = await self._asked
        self.took_s = loop.time() - began_s
        return response

    async def response(self):
        return await asyncio.wait_for(self.task, BOUND_S)

    async def found(self):
        """The JSON of the response, which must be a success."""
        response = await self.response()
        assert response.status == 200, response
        return response.json


@pytest.fixture
def poll(service):
    """A function that begins to poll."""

    def begin(code, side="offerer", **fields):
        return Waiter(service.call("POST", "/poll", {"code": code, "side": side, **fields}))

    return begin


@pytest.fixture
def look(service):
    """A function that begins to list the topic `lobby`."""

    def begin(*, limit=None, **fields):
        fields |= {} if limit is None else {"limit": limit}
        return Waiter(service.call("GET", "/lobby/sessions?" + "&".join(f"{n}={v}" for n, v in fields.items())))

    return begin


async def send(service, code, side, **fields):
    await service.post("/answer", code=code, side=side, **fields)


# Who asks for none of it.

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
    "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n"
    "Vary: Origin\r\nAccess-Control-Allow-Origin: https://app.example\r\n\r\n"
)
EXPOSED = "Access-Control-Expose-Headers: Retry-After, X-Request-Id\r\n"


async def test_without_an_addition_answers_are_those_of_the_specification_byte_for_byte(service):
    code = ""
    async with service.connect() as connection:
        for target, fields, status, expected in BARE:
            body = json.dumps(fields).replace("%s", code).encode() if fields else b""
            length = [("Content-Length", str(len(body)))] if fields else []
            await connection.send(head("POST" if fields else "GET", target, with_origin(ORIGIN, length)) + body)
            answer = (await connection.reader.readuntil(b"\r\n\r\n")).decode()
            for name in ("Date", "X-Request-Id"):
                answer, found = re.subn(rf"{name}: [^\r]*\r\n", "", answer)
                assert found == 1
            size = int(re.search("Content-Length: ([0-9]+)", answer)[1])
            answer += (await connection.reader.readexactly(size)).decode()
            if target == "/lobby/offer":
                code = answer[-38:-2]
            expected = expected.replace("%s", code)
            exposed = EXPOSED if status >= 400 else ""
            begins = HEAD % (status, http.HTTPStatus(status).phrase, exposed, len(expected))
            assert answer == begins + expected, (target, fields)


# Polls: at once, when it comes, when it is time.

AT_ONCE = [
    ("answerer", [], {"offer": "an offer", "offerCandidates": []}),
    ("offerer", [{"answer": "a"}], {"answer": "a", "answerCandidates": []}),
    ("offerer", [{"candidate": "c"}], {"answer": None, "answerCandidates": ["c"]}),
    ("offerer", [{"candidates": ["c", "d"]}, {"answer": "a"}], {"answer": "a", "answerCandidates": ["c", "d"]}),
]


@pytest.mark.parametrize(("side", "sent", "expected"), AT_ONCE)
async def test_what_is_there_comes_at_once(side, sent, expected, service, poll):
    code = await service.offer()
    for fields in sent:
        await send(service, code, "answerer", **fields)
    for extra in ({"wait": LONG_S}, {"wait": 60.0}, {"wait": 0}, {"wait": LONG_S, "since": None}):
        found = await poll(code, side, **extra).found()
        cursor = found.pop("cursor")
        assert found == expected
    nothing_new = {name: [] if type(value) is list else value for name, value in expected.items()}
    for extra in ({}, {"wait": None}, {"wait": 0}):
        assert await poll(code, side, since=cursor, **extra).found() == nothing_new | {"cursor": cursor}


COMES = [
    ("offerer", {"answer": "a"}, {"answer": "a", "answerCandidates": []}),
    ("offerer", {"candidate": "c"}, {"answer": None, "answerCandidates": ["c"]}),
    ("offerer", {"candidates": ["c", "c", "d"]}, {"answer": None, "answerCandidates": ["c", "c", "d"]}),
    ("answerer", {"candidates": ["c"]}, {"offer": "an offer", "offerCandidates": ["c"]}),
]


@pytest.mark.parametrize("several", [1, 7])
@pytest.mark.parametrize(("side", "sent", "expected"), COMES)
async def test_everybody_who_waits_gets_what_comes_once(side, sent, expected, several, service, poll):
    code = await service.offer()
    cursor = (await poll(code, side, wait=0).found())["cursor"]
    waiters = [poll(code, side, wait=LONG_S, since=cursor) for _ in range(several)]
    await waiting(service, several)
    assert not any(waiter.task.done() for waiter in waiters)
    await send(service, code, "answerer" if side == "offerer" else "offerer", **sent)
    for waiter in waiters:
        found = await waiter.found()
        assert found.pop("cursor") != cursor
        assert found == expected
    assert len(service.store.watches) == 0


async def test_a_side_is_not_woken_by_what_it_sends_itself(service, poll):
    code = await service.offer()
    waiter = poll(code, wait=LONG_S)
    await waiting(service, 1)
    await send(service, code, "offerer", candidates=["o1", "o2"])
    other = await service.offer()
    await send(service, other, "answerer", answer="not for it")
    assert not waiter.task.done()
    await send(service, code, "answerer", answer="a")
    assert (await waiter.found())["answer"] == "a"


@pytest.mark.parametrize("wait", [0, 0.05, 0.3])
@pytest.mark.parametrize("seen", [False, True])
async def test_a_wait_ends_in_time_with_the_same_cursor(wait, seen, service, poll):
    code = await service.offer()
    await send(service, code, "answerer", answer="a")
    await send(service, code, "answerer", candidate="c")
    cursor = (await poll(code, wait=0).found())["cursor"]
    if not seen:
        code = await service.offer()
        cursor = (await poll(code, wait=0).found())["cursor"]
    waiter = poll(code, wait=wait, since=cursor)
    assert await waiter.found() == {"answer": "a" if seen else None, "answerCandidates": [], "cursor": cursor}
    assert waiter.took_s >= wait


@pytest.mark.parametrize("side", ["offerer", "answerer"])
@pytest.mark.parametrize("answered", [False, True])
async def test_both_sides_that_wait_are_told_of_a_withdrawal(side, answered, service, poll):
    code = await service.offer()
    if answered:
        await send(service, code, "answerer", answer="a")
    waiters = []
    for reader in ("offerer", "answerer"):
        cursor = (await poll(code, reader, wait=0).found())["cursor"]
        waiters.append(poll(code, reader, wait=LONG_S, since=cursor))
    await waiting(service, 2)
    await service.post("/withdraw", code=code, side=side)
    for waiter in (*waiters, poll(code, reader, wait=LONG_S, since=cursor)):
        assert refused(await waiter.response()) == (404, NOT_FOUND)


@pytest.mark.parametrize("outcome", [200, 404])
async def test_an_answer_bears_the_time_at_which_it_was_given(service, poll, outcome):
    code = await service.offer()
    waiter = poll(code, wait=LONG_S)
    await waiting(service, 1)
    service.clock.ms += 5000
    if outcome == 200:
        await service.post("/answer", code=code, side="answerer", answer="an answer")
    else:
        await service.post("/withdraw", code=code, side="offerer")
    response = await waiter.response()
    assert response.status == outcome
    assert response.headers["Date"] == email.utils.formatdate((NOW_MS + 5000) // 1000, usegmt=True)


@pytest.mark.parametrize("swept", [False, True])
async def test_a_wait_ends_when_its_session_expires_swept_or_not(swept, service, poll):
    code = await service.offer()
    service.clock.ms += TIMEOUT_MS - 200
    waiter = poll(code, wait=LONG_S)
    await waiting(service, 1)
    service.clock.ms += 200
    if swept:
        await service.store.expiry.sweep(service.clock.ms)
    assert refused(await waiter.response()) == (404, NOT_FOUND)


async def test_waits_pass_an_expiry_that_a_refresh_has_moved(service, poll, look):
    code = await service.offer()
    service.clock.ms += TIMEOUT_MS - 100
    cursor = (await look(wait=0).found())["cursor"]
    polled, listed = poll(code, wait=0.5), look(wait=0.5, since=cursor)
    await waiting(service, 2)
    await service.post("/refresh", code=code, side="offerer")
    service.clock.ms += 100
    assert (await polled.found())["answer"] is None
    found = await listed.found()
    assert (found["cursor"], [each["code"] for each in found["sessions"]]) == (cursor, [code])
    assert min(polled.took_s, listed.took_s) >= 0.5


async def test_when_the_server_drains_waits_are_answered_with_good_cursors(service, poll, look):
    code = await service.offer()
    listed = await look(wait=0).found()
    waiters = [poll(code, wait=LONG_S), look(wait=LONG_S, since=listed["cursor"])]
    await waiting(service, 2)
    await service.shared.drain()
    assert (await waiters[0].found())["answer"] is None
    assert await waiters[1].found() == listed
    response = await poll(code, wait=LONG_S).response()
    assert refused(response) == (503, "Service unavailable")
    assert response.headers["Retry-After"]


@pytest.mark.parametrize("seed", range(6))
async def test_readers_that_wait_get_everything_once_and_in_order(seed, service, poll):
    rng = random.Random(seed)
    code = await service.offer()
    sent = {"offerer": [], "answerer": []}

    async def write(side):
        answer_at = rng.randrange(25) if side == "answerer" else None
        for step in range(25):
            if step == answer_at:
                await send(service, code, side, answer="the answer")
            texts = [f"{side} {step} {n}" for n in range(rng.choice([1, 1, 2, 30]))]
            sent[side] += texts
            await send(service, code, side, **({"candidates": texts} if len(texts) > 1 else {"candidate": texts[0]}))
            if rng.random() < 0.3:
                await service.get("/health")
        await send(service, code, side, candidate="the end")

    async def read(side):
        theirs = "answer" if side == "offerer" else "offer"
        got, description, cursor = [], None, None
        while "the end" not in got:
            extra = {"since": cursor} if cursor else {}
            found = await poll(code, side, wait=rng.choice([LONG_S, LONG_S, 0, 0.02]), **extra).found()
            cursor = found["cursor"]
            assert description is None or found[theirs] == description
            description = found[theirs]
            got += found[f"{theirs}Candidates"]
        return got[:-1]

    sides = ["offerer", "offerer", "offerer", "answerer", "answerer"]
    _, _, *got = await asyncio.gather(write("offerer"), write("answerer"), *map(read, sides))
    for side, texts in zip(sides, got, strict=True):
        assert texts == sent["answerer" if side == "offerer" else "offerer"]


async def test_what_several_send_as_one_side_comes_in_one_order_to_all(service, poll):
    code = await service.offer()

    async def write(name):
        for n in range(20):
            await send(service, code, "answerer", candidates=[f"{name} {n} {m}" for m in range(3)])

    async def read():
        got, extra = [], {}
        while len(got) < 5 * 60:
            found = await poll(code, wait=LONG_S, **extra).found()
            extra = {"since": found["cursor"]}
            got += found["answerCandidates"]
        return got

    *_, first, second = await asyncio.gather(*map(write, "abcde"), read(), read())
    assert first == second
    for name in "abcde":
        assert [text for text in first if text[0] == name] == [f"{name} {n} {m}" for n in range(20) for m in range(3)]


def test_cursors_are_good_after_the_server_was_killed(start):
    server = start()
    code = server.offer()
    poll = {"code": code, "side": "offerer"}
    got, cursors, lists = [], [], []
    for step in range(3):
        server.call("/answer", {"code": code, "side": "answerer", "candidates": [f"{step} a", f"{step} b"]})
        found = server.call("/poll", poll | {"wait": 5} | ({"since": cursors[-1]} if cursors else {}))[1]
        got += found["answerCandidates"]
        cursors.append(found["cursor"])
        server.call("/answer", {"code": code, "side": "answerer", "candidate": f"{step} c"})
        listed = server.call("/lobby/sessions?wait=0")[1]
        lists.append(listed["cursor"])
        server.stop(signal.SIGKILL)
        server = start(port=server.url.rpartition(":")[2])
        again = server.call(f"/lobby/sessions?wait=0.1&since={listed['cursor']}")[1]
        assert again == listed
    everything = [f"{step} {name}" for step in range(3) for name in "abc"]
    for at, cursor in zip((2, 5, 8), cursors, strict=True):
        found = server.call("/poll", poll | {"since": cursor})[1]
        assert found["answerCandidates"] == everything[at:]
    assert got == everything[:8]
    assert len(set(lists)) == 1
    server.call("/answer", {"code": code, "side": "answerer", "answer": "a"})
    found = server.call(f"/lobby/sessions?wait=5&since={lists[0]}")[1]
    assert found["sessions"] == []


async def test_a_damaged_cursor_is_refused_before_the_session_is_looked_for(service, poll):
    code = await service.offer()
    cursor = (await poll(code, wait=0).found())["cursor"]
    numbers, _, tag = cursor.rpartition(".")
    damaged = ["", ".", "x", tag, numbers, numbers + ".", cursor + "0", cursor[:-1], "0" + cursor, cursor + " "]
    damaged += [f"-1.{tag}", f"{'f' * 40}.{tag}", "\0", "😀", "9" * 5000, "\ud800", 0, 1, True, [], {}, [cursor]]
    for each in (code, NO_SUCH_CODE):
        for since in damaged:
            assert refused(await poll(each, since=since).response()) == (400, invalid("since")), since


async def test_a_cursor_of_something_else_is_refused(service, poll, look):
    codes = [await service.offer(), await service.offer()]
    cursor = (await poll(codes[0], wait=0).found())["cursor"]
    listing = (await look(wait=0).found())["cursor"]
    for code, side, since in [
        (codes[1], "offerer", cursor),
        (codes[0], "answerer", cursor),
        (NO_SUCH_CODE, "offerer", cursor),
        (codes[0], "offerer", listing),
    ]:
        assert refused(await poll(code, side, since=since).response()) == (400, invalid("since"))
    foreign = await service.call("POST", "/poll", {"code": codes[0], "side": "offerer", "since": cursor}, origin=OTHER)
    assert refused(foreign) == (400, invalid("since"))
    for target, origin in [("/other/sessions", ORIGIN), ("/lobby/sessions", OTHER)]:
        response = await service.call("GET", f"{target}?since={listing}", origin=origin)
        assert refused(response) == (400, invalid("since"))
    assert refused(await look(since=cursor).response()) == (400, invalid("since"))
    assert (await poll(codes[0].upper(), since=cursor).found())["cursor"] == cursor


async def test_a_wait_that_is_no_number_from_0_to_60_is_refused(service, poll):
    code = await service.offer()
    for wait in (-0.001, 60.001, 1e300, True, "", "5", [], 10**400):
        assert refused(await poll(code, wait=wait).response()) == (400, invalid("wait"))
        assert refused(await poll(NO_SUCH_CODE, wait=wait, since="x").response()) == (400, invalid("wait"))


async def test_bad_or_doubled_parameters_of_a_listing_are_refused(service):
    for name, values in {
        "wait": ["", "-1", "60.5", "x", "NaN", "%201", "1&wait=1", "%D9%A3", "1" * 400],
        "since": ["", "x", "0.0.00000000", "%00", "1&since=1"],
        "limit": ["", "0", "-1", "1.5", "x", "1&limit=1"],
    }.items():
        for value in values:
            response = await service.call("GET", f"/lobby/sessions?{name}={value}")
            assert refused(response) == (400, invalid(name)), value


async def test_a_listing_waits_only_while_it_is_empty_or_unchanged(service, look):
    waiter = look(wait=0.2)
    empty = await waiter.found()
    assert empty["sessions"] == []
    assert waiter.took_s >= 0.2
    waiters = [look(wait=LONG_S), look(wait=LONG_S, since=empty["cursor"])]
    await waiting(service, 2)
    code = await service.offer()
    for waiter in (*waiters, look(wait=LONG_S)):
        found = await waiter.found()
        assert set(found) == {"sessions", "cursor"}
        assert [each["code"] for each in found["sessions"]] == [code]
        assert found["sessions"] == await service.sessions()
    waiter = look(wait=LONG_S, since=found["cursor"])
    await waiting(service, 1)
    await send(service, code, "answerer", answer="a")
    assert (await waiter.found())["sessions"] == []


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("change", ["come", "answer", "withdraw", "expire", "sweep"])
async def test_a_listing_comes_when_it_changes(change, limit, service, look):
    first = await service.offer(info="first")
    service.clock.ms += 150
    second = await service.offer(info="second")
    service.clock.ms += TIMEOUT_MS - 300
    before = await look(wait=0).found()
    assert [each["code"] for each in before["sessions"]] == [second, first]
    waiters = [look(wait=LONG_S, since=before["cursor"], limit=limit) for _ in range(3)]
    await waiting(service, 3)
    assert not any(waiter.task.done() for waiter in waiters)
    expected = [second]
    match change:
        case "come":
            expected = [await service.offer(), second, first]
        case "answer":
            await send(service, first, "answerer", answer="a")
        case "withdraw":
            await service.post("/withdraw", code=first, side="offerer")
        case "expire":
            service.clock.ms += 150
        case "sweep":
            service.clock.ms += 150
            await service.store.expiry.sweep(service.clock.ms)
    for waiter in waiters:
        found = await waiter.found()
        assert [each["code"] for each in found["sessions"]] == expected[:limit]
        again = await look(wait=0, since=found["cursor"], limit=limit).found()
        assert again == found


async def test_what_changes_no_listing_wakes_nobody(service, look):
    answered = await service.offer()
    await send(service, answered, "answerer", answer="a")
    code = await service.offer()
    cursor = (await look(wait=0).found())["cursor"]
    waiter = look(wait=0.4, since=cursor)
    await waiting(service, 1)
    for topic, origin in [("lobby2", ORIGIN), ("lobb", ORIGIN), ("lobby\0", ORIGIN), ("lobby", OTHER)]:
        await service.offer(topic, origin=origin)
    await send(service, code, "offerer", candidates=["c"])
    await send(service, answered, "answerer", candidates=["c"])
    await service.post("/refresh", code=code, side="offerer")
    await service.post("/withdraw", code=answered, side="answerer")
    found = await waiter.found()
    assert waiter.took_s >= 0.4
    assert found["cursor"] == cursor
    assert [each["code"] for each in found["sessions"]] == [code]


async def test_a_limit_takes_so_many_of_the_newest_and_1000_at_most(service, look):
    codes = [await service.offer(info=str(n)) for n in range(120)][::-1]
    for limit in (1, 2, 50, 51, 119, 120, 121, 1000, 2000):
        for extra in ({}, {"wait": 0}):
            found = await look(limit=limit, **extra).found()
            assert [each["code"] for each in found["sessions"]] == codes[:limit]
            assert ("cursor" in found) == bool(extra)
    await asyncio.gather(*(service.store.create(ORIGIN, "lobby", "i", "o") for _ in range(890)))
    assert len((await look(limit=5000).found())["sessions"]) == 1000
    assert len((await look().found())["sessions"]) == 1010


@pytest.mark.parametrize("seed", range(5))
async def test_whoever_follows_a_listing_sees_what_others_see(seed, service, look):
    rng = random.Random(seed)
    live = []
    shown, cursor = [], None
    for _ in range(80):
        match rng.choice("ooooawtts"):
            case "o":
                ttl = rng.choice([1000, 3000, TIMEOUT_MS])
                live.append((await service.post("/lobby/offer", info="i", offer="o", ttl=ttl))["code"])
            case "a" if live:
                body = {"code": live.pop(rng.randrange(len(live))), "side": "answerer", "answer": "a"}
                await service.call("POST", "/answer", body)
            case "w" if live:
                await service.call("POST", "/withdraw", {"code": live.pop(), "side": "offerer"})
            case "t":
                service.clock.ms += rng.choice([1, 500, 1000])
            case "s":
                await service.store.expiry.sweep(service.clock.ms)
        found = await look(wait=0, **({"since": cursor} if cursor else {})).found()
        now = [each["code"] for each in await service.sessions()]
        assert [each["code"] for each in found["sessions"]] == now
        if cursor is not None:
            assert found["cursor"] != cursor or now == shown
        shown, cursor = now, found["cursor"]


class RealClock(Clock):
    """The server's own clock, read as a HandClock is."""

    ms = property(Clock.now_ms)


async def test_the_servers_own_clock_ends_waits_in_time(start_service):
    service = await start_service(clock=RealClock())
    code = (await service.post("/lobby/offer", info="i", offer="o", ttl=1000))["code"]
    listing = await service.get("/lobby/sessions?wait=0")
    cursor, expires_ms = listing["cursor"], listing["sessions"][0]["expiresAt"]
    polled = Waiter(service.call("POST", "/poll", {"code": code, "side": "offerer", "wait": LONG_S}))
    listed = Waiter(service.call("GET", f"/lobby/sessions?wait={LONG_S}&since={cursor}"))
    found = await asyncio.gather(polled.response(), listed.found())
    assert service.clock.ms >= expires_ms
    assert (refused(found[0]), found[1]["sessions"]) == ((404, NOT_FOUND), [])
