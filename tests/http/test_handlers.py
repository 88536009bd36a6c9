"""Successful responses of the endpoints: the typical flow, texts, topics, origins, pages, listings and codes."""

from support.rpc import RpcClient
from support.service import ORIGIN, segment

TEXTS = ["x", "\0", '"\\\n\u2028', "😀" * 1024, "\x7f\x1f", "é" * 1024, " ", "null", "x" * 1024]


def page(number, limit, total, *, more):
    return {"page": number, "limit": limit, "total": total, "hasMore": more}


async def test_strings_are_returned_unchanged(service):
    for topic, text in enumerate(TEXTS):
        await check_unchanged(service, str(topic), text)


async def check_unchanged(service, topic, text):
    code = await service.offer(topic, info=text, offer=text)
    for side in ("offerer", "answerer"):
        for candidate in (text, text, text + "!"):
            await service.post("/answer", code=code, side=side, candidate=candidate)
    (listed,) = await service.sessions(topic)
    assert (listed["info"], listed["offer"], listed["offerCandidates"]) == (text, text, [text, text, text + "!"])
    await service.post("/answer", code=code, side="answerer", answer=text)
    for_offerer = await service.post("/poll", code=code, side="offerer")
    assert for_offerer == {"answer": text, "answerCandidates": [text, text, text + "!"]}
    for_answerer = await service.post("/poll", code=code, side="answerer")
    assert for_answerer == {"offer": text, "offerCandidates": [text, text, text + "!"]}


async def test_codes_are_case_insensitive_and_null_means_absent(service):
    code = (await service.offer()).upper()
    await service.post("/answer", code=code, side="answerer", answer="a", candidate=None)
    await service.post("/answer", code=code, side="answerer", answer=None, candidate="c")
    assert await service.post("/poll", code=code, side="offerer") == {"answer": "a", "answerCandidates": ["c"]}


async def test_page_has_100_topics_by_default_and_at_most_1000(service):
    for number in range(1005):
        await service.store.create(ORIGIN, f"{number:04}", "i", "o")
    for query, number, limit in [
        ("", 1, 100),
        ("?page=1", 1, 100),
        ("?limit=1000", 1, 1000),
        (f"?limit={2**53}", 1, 1000),
        ("?page=2&limit=1001", 2, 1000),
        (f"?page={2**53}", 2**53, 100),
        (f"?page={2**53}&limit={2**53}", 2**53, 1000),
        ("?page=002&limit=0005", 2, 5),
        ("?page=201&limit=5", 201, 5),
        ("?limit=5&other=x&page=2", 2, 5),
        ("?p%61ge=2&limit=%35", 2, 5),
    ]:
        result = await service.get("/topics" + query)
        assert len(result["topics"]) == max(0, min(limit, 1005 - (number - 1) * limit)), query
        assert result["pagination"] == page(number, limit, 1005, more=number * limit < 1005), query


async def test_topics_that_begin_with_a_prefix(service):
    for topic in ("a", "a/1", "a/2", "b", "é%_", "é\U0001f600", "\U0001f600"):
        await service.offer(topic)
    for prefix, expected in (
        ("", ["a", "a/1", "a/2", "b", "é%_", "é\U0001f600", "\U0001f600"]),
        ("a", ["a", "a/1", "a/2"]),
        ("a/", ["a/1", "a/2"]),
        ("é%", ["é%_"]),
        ("A", []),
        ("%", []),
        ("x" * 256, []),
    ):
        found = await service.get(f"/topics?limit=2&prefix={segment(prefix)}")
        assert [topic["topic"] for topic in found["topics"]] == expected[:2], prefix
        assert (found["pagination"]["total"], found["pagination"]["hasMore"]) == (len(expected), len(expected) > 2)
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws", ORIGIN) as client:
        found = (await client.ask("topics", prefix="a/"))["result"]
        assert [topic["topic"] for topic in found["topics"]] == ["a/1", "a/2"]
        assert len((await client.ask("topics", prefix=None))["result"]["topics"]) == 7
