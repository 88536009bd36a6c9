"""What every endpoint answers when all is well: exact fields and types, topics, pages, order, expiry and codes."""

import re
import uuid

import pytest
from support.service import (
    NO_SUCH_CODE,
    NOT_FOUND,
    NOW_MS,
    ORIGIN,
    OTHER,
    TIMEOUT_MS,
    VERSION,
    allowed_origin,
    refused,
    segment,
)

pytest_plugins = ["support.http_fixtures"]

UUID4 = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
UUID8 = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

TOPICS = [
    "lobby",
    "Lobby",
    "lobby ",
    " lobby",
    "a/b",
    "a",
    "a\0",
    "a\0b",
    "a\0\0",
    "a\0\xff",
    "\0",
    "a%2Fb",
    "a b",
    "a+b",
    "%",
    "%25",
    "?",
    "?x=1&y",
    "#",
    "a#b",
    ".",
    "..",
    "/",
    "//",
    "sessions",
    "offer",
    "topics",
    "topics/sessions",
    "é",
    "e\u0301",
    "ß",
    "ё",
    "日本",
    "😀",
    "👩‍👩‍👧",
    "\uffff",
    "\U0010ffff",
    "\x7f",
    "\u202e",
    "\n",
    '"\\',
    "<script>",
    "x" * 256,
    "😀" * 256,
    "é" * 256,
]
TEXTS = ["x", "\0", '"\\\n\u2028', "😀" * 1024, "\x7f\x1f", "é" * 1024, " ", "null", "x" * 1024]


def page(number, limit, total, *, more):
    return {"page": number, "limit": limit, "total": total, "hasMore": more}


# Fields and types.


async def test_version(service):
    """GET / says the commit and nothing else."""
    assert await service.get("/") == {"version": VERSION}


async def test_health(service):
    """GET /health says ok and the server's time as an integer."""
    assert await service.get("/health") == {"status": "ok", "timestamp": NOW_MS}
    service.clock.ms += 1
    found = await service.get("/health", origin="null")
    assert found["timestamp"] == NOW_MS + 1
    assert type(found["timestamp"]) is int


async def test_offer(service):
    """POST /:topic/offer answers a random UUID, another one each time, also for the same content."""
    codes = []
    for _ in range(20):
        found = await service.post("/lobby/offer", info="i", offer="o")
        assert set(found) == {"code"}
        assert UUID4.fullmatch(found["code"])
        codes.append(found["code"])
    assert len(set(codes)) == 20


async def test_listing_fields(service):
    """GET /:topic/sessions has exactly the specification's fields, in their types."""
    code = await service.offer(info="i", offer="o")
    found = await service.get("/lobby/sessions")
    assert found == {
        "sessions": [
            {
                "code": code,
                "info": "i",
                "offer": "o",
                "offerCandidates": [],
                "createdAt": NOW_MS,
                "expiresAt": NOW_MS + TIMEOUT_MS,
            }
        ]
    }
    assert [type(value) for value in found["sessions"][0].values()] == [str, str, str, list, int, int]
    assert await service.get("/nobody/sessions") == {"sessions": []}


async def test_topics_fields(service):
    """GET /topics has exactly the specification's fields, in their types."""
    await service.offer()
    found = await service.get("/topics")
    assert found == {"topics": [{"topic": "lobby", "count": 1}], "pagination": page(1, 100, 1, more=False)}
    assert [type(value) for value in found["pagination"].values()] == [int, int, int, bool]


async def test_answer_and_poll_fields(service):
    """POST /answer says success; POST /poll says what the other side sent, and never what the own side did."""
    code = await service.offer()
    assert await service.post("/poll", code=code, side="offerer") == {"answer": None, "answerCandidates": []}
    assert await service.post("/poll", code=code, side="answerer") == {"offer": "an offer", "offerCandidates": []}
    for fields in ({"side": "offerer", "candidate": "o1"}, {"side": "answerer", "candidate": "a1"}):
        assert await service.post("/answer", code=code, **fields) == {"success": True}
    assert await service.post("/answer", code=code, side="answerer", answer="a") == {"success": True}
    assert await service.post("/poll", code=code, side="offerer") == {"answer": "a", "answerCandidates": ["a1"]}
    assert await service.post("/poll", code=code, side="answerer") == {"offer": "an offer", "offerCandidates": ["o1"]}


@pytest.mark.parametrize("text", TEXTS)
async def test_strings_come_back_as_they_went(text, service):
    """Info, offer, answer and candidates are opaque: what was sent is what is read."""
    code = await service.offer(info=text, offer=text)
    for side in ("offerer", "answerer"):
        for candidate in (text, text, text + "!"):
            await service.post("/answer", code=code, side=side, candidate=candidate)
    (listed,) = await service.sessions()
    assert (listed["info"], listed["offer"], listed["offerCandidates"]) == (text, text, [text, text, text + "!"])
    await service.post("/answer", code=code, side="answerer", answer=text)
    for_offerer = await service.post("/poll", code=code, side="offerer")
    assert for_offerer == {"answer": text, "answerCandidates": [text, text, text + "!"]}
    for_answerer = await service.post("/poll", code=code, side="answerer")
    assert for_answerer == {"offer": text, "offerCandidates": [text, text, text + "!"]}


async def test_codes_in_any_case(service):
    """A code is found in upper case too, as UUIDs are (RFC 9562, 4)."""
    code = (await service.offer()).upper()
    await service.post("/answer", code=code, side="answerer", answer="a")
    assert (await service.post("/poll", code=code, side="offerer"))["answer"] == "a"


async def test_null_is_absent(service):
    """In /answer a null counts as absent (contract B4)."""
    code = await service.offer()
    await service.post("/answer", code=code, side="answerer", answer="a", candidate=None)
    await service.post("/answer", code=code, side="answerer", answer=None, candidate="c")
    assert await service.post("/poll", code=code, side="offerer") == {"answer": "a", "answerCandidates": ["c"]}


async def test_candidates_whatever_the_state(service):
    """Candidates of both sides are taken before and after the answer, in the order of their coming."""
    code = await service.offer()
    for number in range(5):
        for side in ("offerer", "answerer"):
            await service.post("/answer", code=code, side=side, candidate=f"{side} {number}")
        if number == 2:
            await service.post("/answer", code=code, side="answerer", answer="a")
    found = await service.post("/poll", code=code, side="offerer")
    assert found["answerCandidates"] == [f"answerer {number}" for number in range(5)]
    found = await service.post("/poll", code=code, side="answerer")
    assert found["offerCandidates"] == [f"offerer {number}" for number in range(5)]


# Topics and origins.


async def test_topics_are_listed_counted_and_isolated(service):
    """Every topic, whatever is in it, is listed as itself, counted as itself and holds its own sessions."""
    codes = {}
    for number, topic in enumerate(TOPICS):
        for _ in range(number % 3 + 1):
            codes.setdefault(topic, []).insert(0, await service.offer(topic, info=str(number)))
    assert len(codes) == len(TOPICS)
    for topic in TOPICS:
        assert [each["code"] for each in await service.sessions(topic)] == codes[topic], topic
    expected = [(topic, len(codes[topic])) for topic in sorted(TOPICS)]  # Python compares by code point
    assert await service.topics() == expected
    for topic in TOPICS[::2]:
        for code in codes.pop(topic):
            await service.post("/answer", code=code, side="answerer", answer="a")
        assert await service.sessions(topic) == []
    assert await service.topics() == [(topic, len(codes[topic])) for topic in sorted(codes)]


async def test_percent_encoding_does_not_matter(service):
    """A topic is what its segment decodes to, however much of it is encoded, and a plus is a plus."""
    code = await service.offer("a+b~é")
    for written in ("a+b~%C3%A9", "a%2Bb~%c3%a9", "%61%2b%62%7E%C3%a9"):
        found = await service.get(f"/{written}/sessions")
        assert [each["code"] for each in found["sessions"]] == [code], written
    assert await service.sessions("a b~é") == []


async def test_alphabetical_is_by_code_point(service):
    """Topics are sorted by code point, also where UTF-16 would sort them otherwise (contract B12)."""
    for topic in ("b", "B", "\uffff", "😀", "a", "é", "aa", "a\0", "Z", "10", "9"):
        await service.offer(topic)
    names = [topic for topic, _ in await service.topics()]
    assert names == ["10", "9", "B", "Z", "a", "a\0", "aa", "b", "é", "\uffff", "😀"]


async def test_origins_share_nothing(service):
    """Every operation sees and touches sessions of its own origin only (specification 5)."""
    origins = ["https://a.example", "https://a.example:443", "http://a.example", "https://A.example", "null"]
    codes = {origin: await service.offer(origin=origin, info=origin) for origin in origins}
    for origin in origins:
        assert [each["info"] for each in await service.sessions(origin=origin)] == [origin]
        assert await service.topics(origin=origin) == [("lobby", 1)]
        for other, code in codes.items():
            if other != origin:
                for path, body in [
                    ("/poll", {"side": "offerer"}),
                    ("/answer", {"side": "answerer", "answer": "x"}),
                    ("/answer", {"side": "offerer", "candidate": "x"}),
                ]:
                    response = await service.call("POST", path, {"code": code, **body}, origin=origin)
                    assert refused(response) == (404, NOT_FOUND)
    for origin, code in codes.items():
        found = await service.post("/poll", code=code, side="offerer", origin=origin)
        assert found == {"answer": None, "answerCandidates": []}


# Pages.


async def test_pages(service):
    """Every page of every limit holds its share, with totals and hasMore that are right."""
    names = sorted(f"t{number}" for number in range(23))
    for name in reversed(names):
        await service.offer(name)
    for limit in (1, 2, 7, 22, 23, 24, 1000):
        for number in range(1, 23 // limit + 3):
            found = await service.get(f"/topics?page={number}&limit={limit}")
            shown = names[(number - 1) * limit : number * limit]
            assert [each["topic"] for each in found["topics"]] == shown
            assert found["pagination"] == page(number, limit, 23, more=number * limit < 23)


async def test_page_defaults_and_maximum(service):
    """A page is 100 topics unless said otherwise and at most 1000, whatever is asked for (contract B8)."""
    for number in range(1005):
        await service.store.create(ORIGIN, f"{number:04}", "i", "o", NOW_MS)
    for query, limit, more in [
        ("", 100, True),
        ("?page=1", 100, True),
        ("?limit=1000", 1000, True),
        ("?limit=1001", 1000, True),
        (f"?limit={2**53}", 1000, True),
        ("?page=2&limit=1000000", 1000, False),
    ]:
        found = await service.get("/topics" + query)
        number = 2 if "page=2" in query else 1
        assert len(found["topics"]) == min(limit, 1005 - (number - 1) * limit)
        assert found["pagination"] == page(number, limit, 1005, more=more), query


@pytest.mark.parametrize(
    ("query", "number", "limit"),
    [
        (f"page={2**53}", 2**53, 100),
        (f"page={2**53}&limit={2**53}", 2**53, 1000),
        ("page=002&limit=0005", 2, 5),
        ("limit=5&other=x&page=2", 2, 5),
        ("p%61ge=2&limit=%35", 2, 5),
    ],
)
async def test_odd_pages(query, number, limit, service):
    """A page far behind the last is empty, and numbers may be written in every decimal way."""
    await service.offer()
    found = await service.get("/topics?" + query)
    assert found == {"topics": [], "pagination": page(number, limit, 1, more=False)}


# Listings.


@pytest.mark.parametrize("count", [49, 50, 51, 100, 333])
async def test_long_listings(count, service):
    """A listing of any length is whole, newest first, every session once, in steps or not."""
    made = []
    for number in range(count):
        service.clock.ms += number % 2
        code = await service.store.create(ORIGIN, "lobby", f"info {number}", "o" * 300, service.clock.ms)
        made.insert(0, (str(uuid.UUID(bytes=code)), f"info {number}", service.clock.ms))
    found = await service.sessions()
    assert [(each["code"], each["info"], each["createdAt"]) for each in found] == made
    bare = await service.call("HEAD", "/lobby/sessions")
    assert (bare.status, bare.body) == (200, b"")


async def test_newest_first_within_a_millisecond(service):
    """Of sessions of the same millisecond the later created comes first (contract B11)."""
    codes = [await service.offer() for _ in range(10)]
    assert [each["code"] for each in await service.sessions()] == codes[::-1]


async def test_time_does_not_go_backwards(service):
    """After the clock was put back a new session is not older than the last one (contract B11)."""
    await service.offer(info="first")
    service.clock.ms -= 1000
    await service.offer(info="second")
    second, first = await service.sessions()
    assert [second["info"], first["info"]] == ["second", "first"]
    assert second["createdAt"] == first["createdAt"] == NOW_MS
    service.clock.ms = NOW_MS


async def test_listing_and_topics_agree(service):
    """What a listing shows is what the topic counts, while sessions come, are answered and expire."""
    for number in range(30):
        service.clock.ms += TIMEOUT_MS // 10
        topic = f"t{number % 3}"
        code = await service.offer(topic)
        if number % 4 == 0:
            await service.post("/answer", code=code, side="answerer", answer="a")
        listed = [(f"t{each}", len(await service.sessions(f"t{each}"))) for each in range(3)]
        assert await service.topics() == [each for each in listed if each[1]]


# Expiry (contract B10).


@pytest.mark.parametrize("timeout_ms", [100, TIMEOUT_MS, 604_800_000])
async def test_expiry_to_the_millisecond(timeout_ms, start_service):
    """A session lives until the millisecond before expiresAt and is gone from everything at expiresAt."""
    service = await start_service(session_timeout_ms=timeout_ms)
    code = await service.offer()
    answered = await service.offer()
    await service.post("/answer", code=answered, side="answerer", answer="a")
    (listed,) = await service.sessions()
    assert (listed["createdAt"], listed["expiresAt"]) == (NOW_MS, NOW_MS + timeout_ms)

    service.clock.ms = listed["expiresAt"] - 1
    assert await service.topics() == [("lobby", 1)]
    assert len(await service.sessions()) == 1
    for each in (code, answered):
        await service.post("/answer", code=each, side="offerer", candidate="c")
        assert (await service.post("/poll", code=each, side="answerer"))["offerCandidates"] == ["c"]

    service.clock.ms = listed["expiresAt"]
    found = await service.get("/topics")
    assert found == {"topics": [], "pagination": page(1, 100, 0, more=False)}
    assert await service.sessions() == []
    for each in (code, answered, NO_SUCH_CODE):
        for path, body in [
            ("/poll", {"side": "offerer"}),
            ("/poll", {"side": "answerer"}),
            ("/answer", {"side": "answerer", "answer": "a"}),
            ("/answer", {"side": "offerer", "candidate": "c"}),
        ]:
            assert refused(await service.call("POST", path, {"code": each, **body})) == (404, NOT_FOUND)


async def test_counts_follow_every_expiry(service):
    """Counts, totals and hasMore are exact at every instant, though nothing is swept."""
    for number in range(20):
        await service.offer(f"t{number // 4}")
        service.clock.ms += 1
    service.clock.ms = NOW_MS + TIMEOUT_MS - 1
    for gone in range(21):
        found = await service.get("/topics?limit=2")
        counts = {}
        for number in range(gone, 20):
            counts[f"t{number // 4}"] = counts.get(f"t{number // 4}", 0) + 1
        shown = [{"topic": topic, "count": count} for topic, count in list(counts.items())[:2]]
        assert found == {"topics": shown, "pagination": page(1, 2, len(counts), more=len(counts) > 2)}
        assert await service.sessions("t4") == (await service.sessions("t4"))[: counts.get("t4", 0)]
        service.clock.ms += 1


async def test_sweeping_changes_no_answer(service):
    """What the sweep takes away is what nobody could see any more."""
    for topic in ("a", "b"):
        await service.offer(topic)
        service.clock.ms += 10
    service.clock.ms = NOW_MS + TIMEOUT_MS
    before = await service.topics(), await service.sessions("a"), await service.sessions("b")
    assert before[0] == [("b", 1)]
    while await service.store.sweep(service.clock.ms):
        pass
    assert (await service.topics(), await service.sessions("a"), await service.sessions("b")) == before


# Codes made from content (contract B16).


@pytest.fixture
def by_content(io_loop, start_service):
    """A server whose codes are made from content."""
    return io_loop.run_sync(lambda: start_service(codes="content"))


async def test_content_codes(by_content):
    """The code depends on origin, topic and offer, not on info, and is a UUID of version 8."""
    same = [await by_content.offer(info=info) for info in ("a", "b", "a")]
    assert len(set(same)) == 1
    others = [
        await by_content.offer(topic="lobb"),
        await by_content.offer(topic="lobby\0"),
        await by_content.offer(offer="an offer "),
        await by_content.offer(topic="lobbya", offer="n offer"),
        await by_content.offer(origin=OTHER),
    ]
    assert len({*same, *others}) == 6
    assert all(UUID8.fullmatch(code) for code in (*same, *others))
    assert len(await by_content.sessions()) == 2


async def test_the_same_content_again(by_content):
    """Published again, an unanswered session lives longer, keeps its first info, candidates and creation time."""
    code = await by_content.offer(info="first")
    await by_content.post("/answer", code=code, side="offerer", candidate="c")
    by_content.clock.ms += TIMEOUT_MS - 1
    assert await by_content.offer(info="second") == code
    (listed,) = await by_content.sessions()
    assert (listed["info"], listed["offerCandidates"], listed["createdAt"]) == ("first", ["c"], NOW_MS)
    assert listed["expiresAt"] == NOW_MS + TIMEOUT_MS - 1 + TIMEOUT_MS
    assert await by_content.topics() == [("lobby", 1)]
    by_content.clock.ms = listed["expiresAt"] - 1
    assert len(await by_content.sessions()) == 1
    by_content.clock.ms += 1
    assert await by_content.sessions() == []


async def test_answered_content_again(by_content):
    """Published again, an answered session is left as it is: answered, with the same expiry."""
    code = await by_content.offer()
    await by_content.post("/answer", code=code, side="answerer", answer="a")
    by_content.clock.ms += TIMEOUT_MS - 1
    assert await by_content.offer(info="again") == code
    assert await by_content.sessions() == []
    assert (await by_content.post("/poll", code=code, side="offerer"))["answer"] == "a"
    by_content.clock.ms += 1
    gone = await by_content.call("POST", "/poll", {"code": code, "side": "offerer"})
    assert refused(gone) == (404, NOT_FOUND)


async def test_expired_content_again(by_content):
    """Published again, an expired session begins anew: unanswered, with nothing of the old one."""
    code = await by_content.offer(info="old")
    await by_content.post("/answer", code=code, side="answerer", answer="a")
    await by_content.post("/answer", code=code, side="offerer", candidate="c")
    await by_content.post("/answer", code=code, side="answerer", candidate="c")
    by_content.clock.ms += TIMEOUT_MS
    assert await by_content.offer(info="new") == code
    (listed,) = await by_content.sessions()
    assert (listed["info"], listed["offerCandidates"]) == ("new", [])
    assert (listed["createdAt"], listed["expiresAt"]) == (NOW_MS + TIMEOUT_MS, NOW_MS + 2 * TIMEOUT_MS)
    assert await by_content.post("/poll", code=code, side="offerer") == {"answer": None, "answerCandidates": []}


async def test_the_cors_of_a_success(service):
    """Every success tells the page of its origin that it may read it."""
    code = await service.offer()
    for method, path, body in [
        ("GET", "/", None),
        ("GET", "/health", None),
        ("GET", "/topics", None),
        ("GET", "/lobby/sessions", None),
        ("POST", "/poll", {"code": code, "side": "offerer"}),
        ("POST", "/answer", {"code": code, "side": "offerer", "candidate": "c"}),
        ("POST", "/lobby/offer", {"info": "i", "offer": "o"}),
    ]:
        response = await service.call(method, path, body)
        assert (response.status, allowed_origin(response)) == (200, ORIGIN)


def test_the_tables_are_what_they_seem():
    """No two topics of the table are the same, and each can be said in a path."""
    assert len({segment(topic) for topic in TOPICS}) == len(TOPICS)
    assert max(map(len, TOPICS)) == 256
