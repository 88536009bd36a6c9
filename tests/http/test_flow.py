"""The typical flow of the specification, step by step, as two peers see it, over every transport."""

import json

import pytest
from support.service import NOT_FOUND, NOW_MS, TIMEOUT_MS, TRANSPORTS, VERSION, head, refused, with_origin


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    return request.param


async def test_typical_flow(service):
    """What the specification calls the typical flow (section 4)."""
    assert await service.get("/") == {"version": VERSION}
    assert await service.get("/topics") == {
        "topics": [],
        "pagination": {"page": 1, "limit": 100, "total": 0, "hasMore": False},
    }

    code = (await service.post("/lobby/offer", info="alice", offer="offer of alice"))["code"]
    listed = {"code": code, "info": "alice", "offer": "offer of alice", "offerCandidates": []}
    times = {"createdAt": NOW_MS, "expiresAt": NOW_MS + TIMEOUT_MS}
    assert await service.get("/lobby/sessions") == {"sessions": [listed | times]}
    assert await service.topics() == [("lobby", 1)]
    early = await service.post("/poll", code=code, side="offerer")
    assert early == {"answer": None, "answerCandidates": []}

    await service.post("/answer", code=code, side="offerer", candidate="a1")
    assert (await service.sessions())[0]["offerCandidates"] == ["a1"]

    done = await service.post("/answer", code=code, side="answerer", answer="answer of bob")
    assert done == {"success": True}
    assert await service.sessions() == []
    assert await service.topics() == []

    await service.post("/answer", code=code, side="answerer", candidate="b1")
    await service.post("/answer", code=code, side="offerer", candidate="a2")
    await service.post("/answer", code=code, side="answerer", candidate="b2")
    for_alice = await service.post("/poll", code=code, side="offerer")
    assert for_alice == {"answer": "answer of bob", "answerCandidates": ["b1", "b2"]}
    for_bob = await service.post("/poll", code=code, side="answerer")
    assert for_bob == {"offer": "offer of alice", "offerCandidates": ["a1", "a2"]}

    service.clock.ms += TIMEOUT_MS
    gone = await service.call("POST", "/poll", {"code": code, "side": "offerer"})
    assert refused(gone) == (404, NOT_FOUND)


async def test_a_peer_keeps_its_connection_for_the_whole_flow(service):
    async with service.connect() as connection:

        async def call(method, target, **body):
            data = json.dumps(body).encode() if body else b""
            headers = with_origin("https://app.example", [("Content-Length", len(data))])
            await connection.send(head(method, target, headers) + data)
            response = await connection.receive(method)
            return response.status, response.body and response.json

        status, found = await call("POST", "/lobby/offer", info="i", offer="o")
        code = found["code"]
        assert status == 200
        assert (await call("GET", "/nowhere"))[0] == 404
        assert (await call("POST", "/answer", code=code))[0] == 400
        assert (await call("OPTIONS", "/answer")) == (204, b"")
        assert (await call("HEAD", "/lobby/sessions")) == (200, b"")
        assert (await call("DELETE", "/topics"))[0] == 405
        assert (await call("POST", "/answer", code=code, side="answerer", answer="a"))[0] == 200
        assert (await call("POST", "/poll", code=code, side="offerer"))[1]["answer"] == "a"
        assert (await call("GET", "/lobby/sessions")) == (200, {"sessions": []})


async def test_an_answerer_finds_the_newest_session_of_others_first(service):
    codes = {name: await service.offer(info=name, offer=f"offer of {name}") for name in ("a", "b", "me", "c")}
    others = [each for each in await service.sessions() if each["info"] != "me"]
    assert [each["info"] for each in others] == ["c", "b", "a"]
    await service.post("/answer", code=others[0]["code"], side="answerer", answer="x")
    assert [each["code"] for each in await service.sessions()] == [codes["me"], codes["b"], codes["a"]]
