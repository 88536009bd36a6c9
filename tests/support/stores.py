"""A clock turned by hand, and stores as one origin sees them."""

from tornado_signal.session import Side, TopicPosition

TIMEOUT_MS = 1000
BEGIN_MS = 1_700_000_000_000


class HandClock:
    """Time that stands still until a test turns it, `clock.ms += 5`; to the server it is a `Clock`."""

    def __init__(self, ms=BEGIN_MS):
        self.ms = ms

    def now_ms(self):
        return self.ms


class Under:
    """A store as one origin sees it at what is now by a clock: every operation without its first and last argument."""

    def __init__(self, store, clock, origin):
        self.store, self.clock, self.origin = store, clock, origin

    async def create(self, topic="topic", info="info", offer="offer", **options):
        return await self.store.create(self.origin, topic, info, offer, self.clock.ms, **options)

    async def answer(self, code, answer="answer", **options):
        await self.store.answer(self.origin, code, answer, self.clock.ms, **options)

    async def add(self, code, side, *candidates, **options):
        await self.store.add_candidates(self.origin, code, side, candidates, self.clock.ms, **options)

    async def read(self, code, side, **options):
        """What one side has sent."""
        return await self.store.read(self.origin, code, side.other, self.clock.ms, **options)

    async def withdraw(self, code, side=Side.OFFERER, **options):
        await self.store.withdraw(self.origin, code, side, self.clock.ms, **options)

    async def refresh(self, code, side=Side.OFFERER, **options):
        return await self.store.refresh(self.origin, code, side, self.clock.ms, **options)

    async def begin(self):
        """Where a reader of a topic begins that knows nothing of it."""
        return await self.store.begin_topic(self.clock.ms)

    async def events(self, position, topic="topic"):
        """All that has happened to a topic since a position: triples of the position after it, code, and reason.

        The reason is None for what has come. A position is as a client has it: without the store's own key.
        """
        found, more = [], True
        while more:
            step = await self.store.topic_step(self.origin, topic, position, self.clock.ms)
            found += [(TopicPosition(each.serial, position.listed), each.code, each.reason) for each in step.left]
            for listed in step.arrived:
                found.append((TopicPosition(step.position.serial, listed.session.serial), listed.session.code, None))
            position, more = step.position, step.more
        return found

    async def news(self, position, topic="topic"):
        """The same without positions."""
        return [event[1:] for event in await self.events(position, topic)]

    async def state(self, topic="topic"):
        return await self.store.listing_state(self.origin, topic, self.clock.ms)

    async def sessions(self, topic="topic", limit=None):
        steps = [step async for step in self.store.sessions(self.origin, topic, self.clock.ms, limit)]
        return [listed for step in steps for listed in step]

    async def codes(self, topic="topic"):
        return [listed.session.code for listed in await self.sessions(topic)]

    async def topics(self, offset=0, limit=1000):
        return await self.store.topics(self.origin, offset, limit, self.clock.ms)


async def sweep(store, now_ms):
    """Sweep until nothing is left to do; how many keys went in each step."""
    steps = []
    while deleted := await store.sweep(now_ms):
        steps.append(deleted)
    return steps
