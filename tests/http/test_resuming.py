"""Streams, polls and listings that resume from a cursor of this or another store (docs/http-api.md#long-polling)."""

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from support.sse import BOUND_S, open_stream, summarize


@pytest.fixture
def two_services(io_loop, start_service):
    """Two servers with separate data. The first one has stored more."""

    async def start_both():
        first, second = await start_service(), await start_service()
        for _ in range(5):
            await first.offer()
        return first, second

    return io_loop.run_sync(start_both)


@pytest.mark.parametrize("position", ["the end", "within the listing"])
async def test_stream_resumed_at_another_store_starts_with_the_listing(position, two_services):
    first, second = two_services
    codes = [await second.offer() for _ in range(2)]
    async with open_stream(first.port, "/lobby/events") as stream:
        await stream.listing()
        last = stream.last if position == "the end" else stream.events[1].id
    async with open_stream(second.port, "/lobby/events", last=last) as stream:
        assert summarize(await stream.listing()) == [("reset",), *(("session", code) for code in codes)]
        code = await second.offer()
        assert summarize(await stream.take()) == [("session", code)]
        assert stream.last.split(".")[0] == second.store.memory.generation != last.split(".")[0]


async def test_session_followed_at_another_store_starts_over_immediately(start_service):
    services = [await start_service(codes="content") for _ in range(2)]
    cursors = []
    for number, service in enumerate(services):
        code = await service.offer(offer="the same")
        await service.post("/answer", code=code, side="offerer", candidates=[f"{number} a", f"{number} b"])
        cursors.append((await service.post("/poll", code=code, side="answerer", wait=0))["cursor"])
    assert cursors[0] != cursors[1]
    async with asyncio.timeout(BOUND_S):
        update = await services[1].post("/poll", code=code, side="answerer", since=cursors[0], wait=60)
    assert (update["offer"], update["offerCandidates"]) == ("the same", ["1 a", "1 b"])
    assert update["cursor"] == cursors[1]
    update = await services[1].post("/poll", code=code, side="answerer", since=cursors[1], wait=0)
    assert update["offerCandidates"] == []
    target = f"/events?code={code}&side=answerer"
    async with open_stream(services[0].port, target) as stream:
        await stream.take(3)
    async with open_stream(services[1].port, target, last=stream.last) as stream:
        assert [event.name for event in await stream.take(3)] == ["offer", "candidate", "candidate"]
        assert stream.events[1].data["candidate"] == "1 a"


async def test_listing_with_a_cursor_of_another_store_responds_immediately(two_services):
    first, second = two_services
    for topic, count in [("empty", 0), ("lobby", 5)]:
        for _ in range(count):
            await second.offer()
        cursor = (await first.get(f"/{topic}/sessions?wait=0"))["cursor"]
        async with asyncio.timeout(BOUND_S):
            result = await second.get(f"/{topic}/sessions?since={cursor}&wait=60")
        assert len(result["sessions"]) == count
        assert result["cursor"] != cursor
        assert (await second.get(f"/{topic}/sessions?since={result['cursor']}&wait=0"))["cursor"] == result["cursor"]


class Follower:
    """A reader that is disconnected and resumes with its last id. It fails on repeated or misplaced events."""

    def __init__(self, port):
        self._port = port
        self._last = None
        self._stream = None
        self._ends = contextlib.AsyncExitStack()
        self.shown = {}  # the latest known expiry of each session
        self._ever = {}

    async def cut(self):
        self._stream = None
        await self._ends.aclose()

    async def reconnect(self):
        """Open the stream at the last id."""
        await self.cut()
        self._stream = await self._ends.enter_async_context(open_stream(self._port, "/lobby/events", last=self._last))

    async def read(self, blocks):
        """Read up to `blocks` blocks. Return False once none arrives in time."""
        if self._stream is None:
            await self.reconnect()
        for _ in range(blocks):
            count = len(self._stream.events)
            try:
                async with asyncio.timeout(0.02):
                    await self._stream.next()
            except TimeoutError:
                return False
            self._last = self._stream.last or self._last
            for event in self._stream.events[count:]:
                if event.name == "reset":
                    self.shown.clear()
                    self._ever.clear()
                    continue
                code = event.data["code"]
                if event.name == "session":
                    expires_ms = event.data["expiresAt"]
                    assert self._ever.get(code, 0) < expires_ms, "the session was sent twice and not refreshed"
                    assert (code in self._ever) == (code in self.shown), "the session was removed before"
                    self._ever[code] = self.shown[code] = expires_ms
                else:
                    assert code in self.shown, "removed before it was sent, or removed twice"
                    del self.shown[code]
        return True

    async def read_until(self, expiries):
        """Read until exactly the sessions with these expiries are shown and nothing more arrives."""
        async with asyncio.timeout(BOUND_S):
            while await self.read(1) or self.shown != expiries:
                pass


@pytest.mark.parametrize("seed", range(3))
async def test_streams_resume_after_disconnects_at_any_point(seed, service):
    rng = random.Random(seed)
    live = {}  # code: expiry
    counts = Counter()
    followers = [Follower(service.port) for _ in range(4)]

    async def publish():
        ttl = rng.choice([1000, 20_000, 60_000])
        code = (await service.post("/lobby/offer", info="i", offer="o", ttl=ttl))["code"]
        live[code] = (service.clock.ms + ttl, ttl)

    async def answer():
        code = rng.choice(list(live))
        await service.post("/answer", code=code, side="answerer", answer="a")
        del live[code]

    async def withdraw():
        code = rng.choice(list(live))
        await service.post("/withdraw", code=code, side="offerer")
        del live[code]

    async def refresh():
        code = rng.choice(list(live))
        ttl = live[code][1]
        await service.post("/refresh", code=code, side="offerer")
        live[code] = (service.clock.ms + ttl, ttl)

    async def refresh_at_expiry():
        """Refresh a session at its expiry while streams open."""
        code = min(live, key=lambda code: live[code][0])
        expires_ms, ttl = live[code]
        service.clock.ms = expires_ms - 1
        drop_expired()
        refreshing = asyncio.create_task(service.post("/refresh", code=code, side="offerer"))
        await asyncio.sleep(rng.choice([0, 0.001, 0.002]))
        service.clock.ms = expires_ms
        opening = asyncio.gather(*[follower.reconnect() for follower in followers[:2]])
        with contextlib.suppress(AssertionError):  # the refresh can be too late
            await refreshing
        await opening
        live.pop(code, None)
        live.update(
            {
                session["code"]: (session["expiresAt"], ttl)
                for session in await service.sessions()
                if session["code"] == code
            }
        )
        drop_expired()

    def drop_expired():
        for code in [code for code, (expires_ms, _) in live.items() if expires_ms <= service.clock.ms]:
            del live[code]
            counts["expired"] += 1

    async def pass_time():
        service.clock.ms += rng.choice([500, 1000, 7000])
        drop_expired()
        if rng.random() < 0.3:
            await service.store.table.sweep(service.clock.ms)

    async def cut():
        await rng.choice(followers).cut()

    async def follow():
        await rng.choice(followers).read(rng.randrange(6))

    steps = [publish, publish, publish, answer, withdraw, refresh, pass_time, cut, follow, follow, refresh_at_expiry]
    for _ in range(60):
        step = rng.choice(steps)
        if live or step in (publish, pass_time, cut, follow):
            await step()
            counts[step.__name__] += 1
    await publish()
    service.clock.ms = min(expires_ms for expires_ms, _ in live.values())  # at least one session expires
    drop_expired()
    code = (await service.post("/lobby/offer", info="i", offer="o"))["code"]
    live[code] = (0, 0)
    listed = {session["code"]: session["expiresAt"] for session in await service.sessions()}
    for follower in followers:
        await follower.read_until(listed)
        await follower.cut()
    assert counts["expired"] > 0
    assert listed.keys() == live.keys()


async def test_heartbeats_arrive_while_events_are_filtered_out(service, pass_time):
    code = await service.offer()
    async with open_stream(service.port, f"/events?code={code}&side=offerer") as stream:
        for comments in range(1, 4):
            await stream.until(lambda comments=comments: stream.comments == comments)
            for number in range(3):
                await service.post("/answer", code=code, side="offerer", candidate=str(number))
                await pass_time(8)
        assert stream.events == []
