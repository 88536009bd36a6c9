"""How much an address and a side may store (issue 12, point 1)."""

from support.service import OTHER

pytest_plugins = ["support.http_fixtures"]


async def test_bytes_of_an_address(start_service):
    """An address that has stored its share is told so; polls and listings go on, and it has room again in time."""
    service = await start_service(unlimited_addresses=(), max_bytes_per_address=400_000, session_timeout_ms=100_000)
    code = await service.offer(offer="o" * 100_000)
    for _ in range(2):
        await service.offer(offer="o" * 100_000)
    body = {"info": "i", "offer": "o" * 150_000}
    response = await service.call("POST", "/lobby/offer", body, origin=OTHER)  # the address counts, not the origin
    assert response.status == 429
    assert 1 <= int(response.headers["Retry-After"]) <= 100
    assert response.json == {"error": "Too many requests"}
    for fields in ({"answer": "a" * 150_000}, {"candidates": ["c" * 100_000, "d" * 100_000]}):
        response = await service.call("POST", "/answer", {"code": code, "side": "answerer", **fields})
        assert response.status == 429
    assert len(await service.sessions()) == 3
    assert (await service.post("/poll", code=code, side="answerer"))["offer"]
    await service.post("/refresh", code=code, side="offerer")
    service.clock.ms += 50_000
    await service.post("/answer", code=code, side="answerer", answer="a" * 150_000)


async def test_small_things_take_room_too(start_service):
    """A candidate of one byte counts with what it takes in the store."""
    service = await start_service(unlimited_addresses=(), max_bytes_per_address=5000)
    code = await service.offer()
    body = {"code": code, "side": "offerer", "candidates": ["c"] * 100}
    assert (await service.call("POST", "/answer", body)).status == 429


async def test_an_address_without_limits(start_service):
    """Addresses that no limit is for have none of bytes."""
    service = await start_service(max_bytes_per_address=1024)
    for _ in range(3):
        await service.offer(offer="o" * 10_000)


async def test_what_a_side_may_hold(start_service):
    """Candidates beyond the bytes of a side are refused, all of a request; the other side is not concerned."""
    service = await start_service(max_side_bytes=10_000)
    code = await service.offer(offer="o" * 6000)
    await service.post("/answer", code=code, side="offerer", candidates=["c" * 1000] * 3)
    body = {"code": code, "side": "offerer", "candidates": ["d", "d" * 1000]}
    response = await service.call("POST", "/answer", body)
    assert (response.status, response.json) == (429, {"error": "Too many requests"})
    assert "Retry-After" in response.headers
    news = await service.post("/poll", code=code, side="answerer")
    assert news["offerCandidates"] == ["c" * 1000] * 3
    await service.post("/answer", code=code, side="answerer", candidates=["c" * 10_000])
    await service.post("/answer", code=code, side="answerer", answer="a" * 10_000)
