"""Waiting for news: polls and listings that answer when there is something new, and their cursors (contract C1, C2)."""

import asyncio
import email.utils
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

pytest_plugins = ["support.http_fixtures"]

LONG_S = 60  # a wait that something else must end
BOUND_S = 20  # for that to happen


async def waiting(service, count):
    """Ask for the time of day until so many requests wait."""
    async with asyncio.timeout(BOUND_S):
        while len(service.store.watches) != count:
            await service.get("/health")


class Waiter:
    """A request that waits.

    Attributes:
        took_s: how long it took, once it is done.
    """

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
        """The response, whatever it is."""
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
    """Send an answer or candidates."""
    await service.post("/answer", code=code, side=side, **fields)


# Who asks for none of it.

CODE = "ffffffff-ffff-4fff-bfff-ffffffffffff"

BARE = [
    ("GET", "/", b"", 200, b'{"version":"0123456789abcdef0123456789abcdef01234567"}'),
    ("GET", "/health", b"", 200, b'{"status":"ok","timestamp":1900000000000}'),
    ("GET", "/topics", b"", 200, b'{"topics":[],"pagination":{"page":1,"limit":100,"total":0,"hasMore":false}}'),
    ("GET", "/lobby/sessions", b"", 200, b'{"sessions":[]}'),
    ("POST", "/lobby/offer", b'{"info":"i","offer":"o"}', 200, b'{"code":"%(code)b"}'),
    (
        "GET",
        "/topics?limit=5000",
        b"",
        200,
        b'{"topics":[{"topic":"lobby","count":1}],"pagination":{"page":1,"limit":1000,"total":1,"hasMore":false}}',
    ),
    ("POST", "/poll", b'{"code":"%(code)b","side":"offerer"}', 200, b'{"answer":null,"answerCandidates":[]}'),
    (
        "POST",
        "/poll",
        b'{"code":"%(code)b","side":"offerer","wait":null,"since":null,"secret":null}',
        200,
        b'{"answer":null,"answerCandidates":[]}',
    ),
    ("POST", "/poll", b'{"code":"%(code)b","side":"answerer"}', 200, b'{"offer":"o","offerCandidates":[]}'),
    ("POST", "/answer", b'{"code":"%(code)b","side":"offerer","candidate":"c1"}', 200, b'{"success":true}'),
    ("POST", "/answer", b'{"code":"%(code)b","side":"offerer","candidate":"c2"}', 200, b'{"success":true}'),
    (
        "GET",
        "/lobby/sessions",
        b"",
        200,
        b'{"sessions":[{"code":"%(code)b","info":"i","offer":"o","offerCandidates":["c1","c2"],'
        b'"createdAt":1900000000000,"expiresAt":1900000300000}]}',
    ),
    ("POST", "/answer", b'{"code":"%(code)b","side":"answerer","candidate":"d"}', 200, b'{"success":true}'),
    ("POST", "/answer", b'{"code":"%(code)b","side":"answerer","answer":"a"}', 200, b'{"success":true}'),
    ("POST", "/poll", b'{"code":"%(code)b","side":"offerer"}', 200, b'{"answer":"a","answerCandidates":["d"]}'),
    ("POST", "/poll", b'{"code":"%(code)b","side":"answerer"}', 200, b'{"offer":"o","offerCandidates":["c1","c2"]}'),
    (
        "POST",
        "/answer",
        b'{"code":"%(code)b","side":"answerer","answer":"b"}',
        409,
        b'{"error":"Session already answered"}',
    ),
    (
        "POST",
        "/answer",
        b'{"code":"%(code)b","side":"answerer"}',
        400,
        b'{"error":"Missing or invalid required parameter: answer or candidate"}',
    ),
    (
        "POST",
        "/poll",
        b'{"code":"' + CODE.encode() + b'","side":"offerer"}',
        404,
        b'{"error":"Session not found, expired, or origin mismatch"}',
    ),
]
REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 409: b"Conflict"}


async def test_without_any_of_it_nothing_is_changed(service):
    """A request that uses no addition gets the specification's answer, heads included, byte for byte."""
    names = {b"code": b""}
    async with service.connect() as connection:
        for method, target, body, status, expected in BARE:
            length = [("Content-Length", str(len(body % names)))] if method == "POST" else []
            await connection.send(head(method, target, with_origin(ORIGIN, length)) + body % names)
            answer = await connection.reader.readuntil(b"\r\n\r\n")
            answer, date = re.sub(rb"Date: [^\r]*\r\n", b"", answer), re.search(rb"Date: ([^\r]*)\r\n", answer)
            answer, name = re.sub(rb"X-Request-Id: [^\r]*\r\n", b"", answer), b"X-Request-Id: " in answer
            assert date
            assert name
            size = int(re.search(rb"Content-Length: ([0-9]+)", answer)[1])
            answer += await connection.reader.readexactly(size)
            if b"%" in expected and not names[b"code"]:
                names[b"code"] = answer[-38:-2]
            expected %= names
            exposed = b"Access-Control-Expose-Headers: Retry-After, X-Request-Id\r\n" if status >= 400 else b""
            assert answer == (
                b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nVary: Origin\r\n"
                b"Access-Control-Allow-Origin: https://app.example\r\n%bContent-Length: %d\r\n\r\n%b"
            ) % (status, REASONS[status], exposed, len(expected), expected), (target, body)


# Polls: at once, when it comes, when it is time.

AT_ONCE = {
    "the answerer has the offer": ("answerer", [], {"offer": "an offer", "offerCandidates": []}),
    "an answer": ("offerer", [{"answer": "a"}], {"answer": "a", "answerCandidates": []}),
    "a candidate": ("offerer", [{"candidate": "c"}], {"answer": None, "answerCandidates": ["c"]}),
    "a batch before the answer": (
        "offerer",
        [{"candidates": ["c", "d"]}, {"answer": "a"}],
        {"answer": "a", "answerCandidates": ["c", "d"]},
    ),
}


@pytest.mark.parametrize("extra", [{"wait": LONG_S}, {"wait": 60.0}, {"wait": 0}, {"wait": LONG_S, "since": None}])
@pytest.mark.parametrize("case", AT_ONCE)
async def test_what_is_there_is_told_at_once(case, extra, service, poll):
    """Whoever has no cursor yet is told at once of all there is, with a cursor behind it."""
    side, sent, expected = AT_ONCE[case]
    code = await service.offer()
    for fields in sent:
        await send(service, code, "answerer", **fields)
    waiter = poll(code, side, **extra)
    found = await waiter.found()
    cursor = found.pop("cursor")
    assert found == expected
    again = await poll(code, side, since=cursor).found()
    assert again == {name: [] if type(value) is list else value for name, value in expected.items()} | {
        "cursor": cursor
    }


COMES = {
    "an answer": ("offerer", {"answer": "a"}, {"answer": "a", "answerCandidates": []}),
    "a candidate": ("offerer", {"candidate": "c"}, {"answer": None, "answerCandidates": ["c"]}),
    "a batch": ("offerer", {"candidates": ["c", "c", "d"]}, {"answer": None, "answerCandidates": ["c", "c", "d"]}),
    "of the offerer": ("answerer", {"candidates": ["c"]}, {"offer": "an offer", "offerCandidates": ["c"]}),
}


@pytest.mark.parametrize("several", [1, 7])
@pytest.mark.parametrize("case", COMES)
async def test_what_comes_is_told_when_it_comes(case, several, service, poll):
    """Everybody who waits is told of what comes, once, and of no more than that."""
    side, sent, expected = COMES[case]
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


async def test_what_oneself_sends_is_no_news(service, poll):
    """A side that waits is not woken by what it sends itself; it goes on waiting for the other."""
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
async def test_a_wait_ends_when_it_is_time(wait, seen, service, poll):
    """When nothing comes the answer is 200 after `wait`, with nothing new and the same cursor."""
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


async def test_since_alone_does_not_wait(service, poll):
    """`since` without `wait`, or with null, answers at once."""
    code = await service.offer()
    cursor = (await poll(code, wait=0).found())["cursor"]
    for extra in ({}, {"wait": None}):
        assert await poll(code, since=cursor, **extra).found() == {
            "answer": None,
            "answerCandidates": [],
            "cursor": cursor,
        }


# Polls: the end of the session, and of the server.


@pytest.mark.parametrize("side", ["offerer", "answerer"])
@pytest.mark.parametrize("answered", [False, True])
async def test_withdrawn_while_waiting(side, answered, service, poll):
    """Both sides, whoever withdraws, are told 404 as soon as the session is withdrawn."""
    code = await service.offer()
    if answered:
        await send(service, code, "answerer", answer="a")
    waiters = []
    for reader in ("offerer", "answerer"):
        cursor = (await poll(code, reader, wait=0).found())["cursor"]
        waiters.append(poll(code, reader, wait=LONG_S, since=cursor))
    await waiting(service, 2)
    await service.post("/withdraw", code=code, side=side)
    for waiter in waiters:
        assert refused(await waiter.response()) == (404, NOT_FOUND)


@pytest.mark.parametrize("outcome", [200, 404])
async def test_the_date_of_an_answer(service, poll, outcome):
    """An answer that was waited for bears the time at which it was given, whatever it says."""
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


async def test_expired_while_waiting(service, poll):
    """A wait ends with 404 at the moment of expiry, whether or not the sweep has come by."""
    code = await service.offer()
    service.clock.ms += TIMEOUT_MS - 200
    waiter = poll(code, wait=LONG_S)
    await waiting(service, 1)
    service.clock.ms += 200
    assert refused(await waiter.response()) == (404, NOT_FOUND)


async def test_swept_while_waiting(service, poll):
    """The sweep wakes whoever waits for what it has deleted."""
    code = await service.offer()
    waiter = poll(code, wait=LONG_S)
    await waiting(service, 1)
    service.clock.ms += TIMEOUT_MS
    await service.store.expiry.sweep(service.clock.ms)
    assert refused(await waiter.response()) == (404, NOT_FOUND)


async def test_refreshed_while_waiting(service, poll):
    """A wait goes beyond the expiry that it began with when the session is refreshed."""
    code = await service.offer()
    service.clock.ms += TIMEOUT_MS - 100
    waiter = poll(code, wait=0.5)
    await waiting(service, 1)
    await service.post("/refresh", code=code, side="offerer")
    service.clock.ms += 100
    assert (await waiter.found())["answer"] is None
    assert waiter.took_s >= 0.5


async def test_the_server_drains(service, poll, look):
    """When the server drains, whoever waits is answered 200 at once, with a cursor that is good afterwards."""
    code = await service.offer()
    listed = await look(wait=0).found()
    waiters = [poll(code, wait=LONG_S), look(wait=LONG_S, since=listed["cursor"])]
    await waiting(service, 2)
    await service.site.drain()
    assert (await waiters[0].found())["answer"] is None
    assert await waiters[1].found() == listed
    response = await poll(code, wait=LONG_S).response()
    assert refused(response) == (503, "Service unavailable")
    assert response.headers["Retry-After"]


# Cursors.


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_lost_and_nothing_doubled(seed, service, poll):
    """Readers that wait, in disorder with those who send, each get everything once and in order."""
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


async def test_two_senders_of_one_side(service, poll):
    """What several connections send as one side at the same moment is all told, once, and in one order to all."""
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


def test_cursors_over_a_restart(start):
    """The server is killed and started again: cursors of before lose nothing and double nothing."""
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


def damaged(cursor):
    """What may become of a cursor."""
    numbers, _, tag = cursor.rpartition(".")
    return [
        "",
        ".",
        "x",
        tag,
        numbers,
        numbers + ".",
        cursor + "0",
        cursor[:-1],
        "0" + cursor,
        "1" + cursor,
        cursor.upper() if cursor.upper() != cursor else cursor + " ",
        " " + cursor,
        f"-1.{tag}",
        f"{'f' * 40}.{tag}",
        "\0",
        "😀",
        "9" * 5000,
    ]


async def test_damaged_cursors(service, poll):
    """A cursor that is not as it was made, or no string, is 400 `since`, before the session is looked for."""
    code = await service.offer()
    cursor = (await poll(code, wait=0).found())["cursor"]
    for since in [*damaged(cursor), "\ud800", 0, 1, True, [], {}, [cursor]]:
        assert refused(await poll(code, since=since).response()) == (400, invalid("since")), since
    assert refused(await poll(NO_SUCH_CODE, since="x").response()) == (400, invalid("since"))


async def test_cursors_of_something_else(service, poll, look):
    """A cursor of another session, side, origin or listing is 400 `since`."""
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


async def test_a_cursor_of_what_is_gone(service, poll):
    """A good cursor of a session that has ended is 404, as everything about that session is."""
    code = await service.offer()
    cursor = (await poll(code, wait=0).found())["cursor"]
    await service.post("/withdraw", code=code, side="offerer")
    assert refused(await poll(code, since=cursor, wait=LONG_S).response()) == (404, NOT_FOUND)


@pytest.mark.parametrize("end", ["withdrawn", "expired"])
async def test_a_cursor_of_an_earlier_session_of_the_same_content(end, start_service):
    """Where the same content gives the same code, a cursor of the session before is 400 `since`: it hides nothing."""
    service = await start_service(codes="content")
    code = await service.offer()
    for n in range(3):
        await send(service, code, "answerer", candidate=str(n))
    cursor = (await service.post("/poll", code=code, side="offerer", wait=0))["cursor"]
    if end == "withdrawn":
        await service.post("/withdraw", code=code, side="offerer")
    else:
        service.clock.ms += TIMEOUT_MS
    assert await service.offer() == code
    await send(service, code, "answerer", answer="a")
    body = {"code": code, "side": "offerer", "since": cursor}
    assert refused(await service.call("POST", "/poll", body)) == (400, invalid("since"))
    assert (await service.post("/poll", code=code, side="offerer", wait=LONG_S))["answer"] == "a"


BAD_WAITS = [-1, -0.001, 60.001, 61, 1e300, True, False, "", "5", "x", [], {}, [1], 10**400]


@pytest.mark.parametrize("wait", BAD_WAITS, ids=lambda wait: repr(wait)[:20])
async def test_bad_waits(wait, service, poll):
    """A wait that is no number from 0 to 60 is 400 `wait`."""
    code = await service.offer()
    assert refused(await poll(code, wait=wait).response()) == (400, invalid("wait"))
    assert refused(await poll(NO_SUCH_CODE, wait=wait, since="x").response()) == (400, invalid("wait"))


BAD_QUERIES = {
    "wait": ["", "-1", "60.5", "61", "x", "1e1", "NaN", "inf", "+1", "1,5", "%201", "1&wait=1", "%D9%A3", "1" * 400],
    "since": ["", "x", "0.0.00000000", "%00", "1&since=1"],
    "limit": ["", "0", "-1", "1.5", "x", "1&limit=1"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD_QUERIES.items() for value in values])
async def test_bad_queries(name, value, service):
    """A listing's `wait`, `since` or `limit` that is something else, or comes twice, is 400 naming it."""
    assert refused(await service.call("GET", f"/lobby/sessions?{name}={value}")) == (400, invalid(name))


# Listings.


async def test_a_listing_that_is_not_empty_comes_at_once(service, look):
    """Whoever has no cursor yet gets a listing at once if there is anything in it."""
    code = await service.offer()
    waiter = look(wait=LONG_S)
    found = await waiter.found()
    assert [each["code"] for each in found["sessions"]] == [code]
    assert set(found) == {"sessions", "cursor"}
    assert found["sessions"] == await service.sessions()


CHANGES = {
    "one comes": "come",
    "one is answered": "answer",
    "one is withdrawn": "withdraw",
    "one expires": "expire",
    "one is swept": "sweep",
}


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("case", CHANGES)
async def test_a_listing_comes_when_it_changes(case, limit, service, look):
    """A listing comes as soon as it differs, whatever made it differ, and is whole."""
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
    match CHANGES[case]:
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


async def test_the_last_one_goes(service, look):
    """A listing that becomes empty is a change too, and so is one that was empty."""
    code = await service.offer()
    cursor = (await look(wait=0).found())["cursor"]
    waiter = look(wait=LONG_S, since=cursor)
    await waiting(service, 1)
    await send(service, code, "answerer", answer="a")
    found = await waiter.found()
    assert found["sessions"] == []
    waiter = look(wait=LONG_S, since=found["cursor"])
    await waiting(service, 1)
    code = await service.offer()
    assert [each["code"] for each in (await waiter.found())["sessions"]] == [code]


async def test_what_does_not_change_a_listing(service, look):
    """Other topics and origins, candidates, refreshes, and who expired unlisted, wake nobody."""
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


async def test_a_refreshed_one_stays(service, look):
    """A wait passes the expiry that a session had before it was refreshed."""
    code = await service.offer()
    service.clock.ms += TIMEOUT_MS - 100
    cursor = (await look(wait=0).found())["cursor"]
    waiter = look(wait=0.5, since=cursor)
    await waiting(service, 1)
    await service.post("/refresh", code=code, side="offerer")
    service.clock.ms += 100
    found = await waiter.found()
    assert (found["cursor"], [each["code"] for each in found["sessions"]]) == (cursor, [code])
    assert waiter.took_s >= 0.5


async def test_an_empty_listing_waits(service, look):
    """A wait on nothing ends in time, with nothing, or when the first one comes."""
    waiter = look(wait=0.2)
    found = await waiter.found()
    assert found["sessions"] == []
    assert waiter.took_s >= 0.2
    waiters = [look(wait=LONG_S), look(wait=LONG_S, since=found["cursor"])]
    await waiting(service, 2)
    code = await service.offer()
    for waiter in waiters:
        assert [each["code"] for each in (await waiter.found())["sessions"]] == [code]


@pytest.mark.parametrize("limit", [1, 2, 50, 51, 119, 120, 121, 1000, 2000])
async def test_limits_of_a_listing(limit, service, look):
    """`limit` takes that many of the newest, alone or with a wait."""
    codes = [await service.offer(info=str(n)) for n in range(120)][::-1]
    for extra in ({}, {"wait": 0}):
        found = await look(limit=limit, **extra).found()
        assert [each["code"] for each in found["sessions"]] == codes[:limit]
        assert ("cursor" in found) == bool(extra)


async def test_more_than_a_thousand(service, look):
    """A limit over 1000 counts as 1000; without one a listing is whole."""
    await asyncio.gather(*(service.store.create(ORIGIN, "lobby", "i", "o") for _ in range(1010)))
    assert len((await look(limit=5000).found())["sessions"]) == 1000
    assert len((await look().found())["sessions"]) == 1010


@pytest.mark.parametrize("seed", range(5))
async def test_a_listing_is_followed_through_anything(seed, service, look):
    """Whoever follows a listing by its cursors sees what they see who look once, and another cursor if it differs."""
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


async def test_by_the_servers_own_clock(start_service):
    """With the real clock a session's end is told when it comes, to a poll and to a listing."""
    service = await start_service(clock=RealClock())
    code = (await service.post("/lobby/offer", info="i", offer="o", ttl=1000))["code"]
    cursor = (await service.get("/lobby/sessions?wait=0"))["cursor"]
    polled = Waiter(service.call("POST", "/poll", {"code": code, "side": "offerer", "wait": LONG_S}))
    listed = Waiter(service.call("GET", f"/lobby/sessions?wait={LONG_S}&since={cursor}"))
    assert refused(await polled.response()) == (404, NOT_FOUND)
    assert (await listed.found())["sessions"] == []
    for waiter in (polled, listed):
        assert waiter.took_s >= 0.9
