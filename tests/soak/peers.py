"""The peers' behaviour and records, so that every response can be compared with what was acknowledged."""

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tornado_signal.session import MIN_HELD_MS

from .client import Broken, Peer, SocketPeer, Tally

ORIGINS = ["https://one.example", "https://two.example"]
SIDES = ["offerer", "answerer"]
FOREVER_MS = float("inf")
WITHDRAWN_S = 10.0  # for a server to withdraw held offers, in addition to the grace period
SLACK_MS = 1000.0  # between this program's clock and the server's, which never goes back


def now_ms() -> int:
    """Return the Unix time in whole milliseconds, as the server does: a session expires at the start of one."""
    return time.time_ns() // 1_000_000


def subsequence(some: list[str], others: list[str]) -> bool:
    rest = iter(others)
    return all(each in rest for each in some)


@dataclass
class Known:
    """A session as its peers know it: what was sent, and what of that was acknowledged."""

    origin: str
    topic: str
    offer: str
    code: str | None = None
    least_ms: float = 0  # the session exists until then unless it is withdrawn
    most_ms: float = FOREVER_MS  # the session has expired by then
    asked: dict = field(default_factory=lambda: {side: [] for side in SIDES})
    acknowledged: dict = field(default_factory=lambda: {side: [] for side in SIDES})
    answers: set = field(default_factory=set)
    answer: str | None = None
    withdrawn: bool = False  # whether its offerer withdraws it, or has tried to
    holder: SocketPeer | None = None  # the connection that holds it

    @property
    def withdrawing(self) -> bool:
        return self.withdrawn or (self.holder is not None and not self.holder.open)


class World:
    """All peers and their sessions, by origin and topic, and then by offer, which is unique.

    Sessions have the lifetime `timeout_ms`. A held offer outlives its connection by `grace_ms`.
    """

    def __init__(self, tally: Tally, peers: int, timeout_ms: int, grace_ms: int) -> None:
        self.tally, self.timeout_ms, self.grace_ms = tally, timeout_ms, grace_ms
        self.sessions: defaultdict[tuple[str, str], dict[str, Known]] = defaultdict(dict)
        self.done: Counter[str] = Counter()  # how often each action succeeded
        self._peers = peers
        self._topics = [f"topic-{number}" for number in range(max(1, peers // 10))]
        self._numbers = itertools.count()

    async def live(self) -> None:
        """Run peers one after the other in each place until cancelled, every second one over a WebSocket."""
        async with asyncio.TaskGroup() as places:
            for number in range(self._peers):
                places.create_task(self._place(random.Random(number), over_socket=bool(number % 2)))

    async def _place(self, rng: random.Random, over_socket: bool) -> None:
        kinds = [self.offerer, self.answerer, self.watcher, self.looker, self.abandoner, self.holder]
        while True:
            await asyncio.sleep(rng.uniform(0, 2))
            origin = rng.choice(ORIGINS)
            client = (SocketPeer if over_socket else Peer)(self.tally, origin)
            (kind,) = rng.choices(kinds, [5, 5, 2, 1, 1, 4 * over_socket])
            try:
                await kind(rng, client, origin, rng.choice(self._topics))
            except Broken:
                await asyncio.sleep(rng.uniform(0.1, 1))
            finally:
                client.close()

    def forget(self) -> None:
        before_ms = now_ms() - 5000
        for place, sessions in self.sessions.items():
            self.sessions[place] = {offer: each for offer, each in sessions.items() if each.most_ms > before_ms}

    # Behaviours

    async def offerer(self, rng: random.Random, client: Peer, origin: str, topic: str) -> None:
        """Publish, wait for the answer, exchange candidates, then withdraw or disappear."""
        known = await self._publish(rng, client, origin, topic)
        await self._send_candidates(rng, client, known, "offerer")
        end_s = time.monotonic() + rng.uniform(0.5, 1.5) * self.timeout_ms / 1000
        streaming = rng.random() < 0.3
        since = None
        while time.monotonic() < end_s and known.answer is None:
            if streaming:
                since = await self._stream_session(client, known, since, end_s - time.monotonic())
            else:
                since = await self._poll(client, known, "offerer", since=since, wait_s=rng.randrange(1, 5))
            if since is None:
                break
            if rng.random() < 0.3:
                await self._refresh(client, known)
        if known.answer is not None:
            await self._send_candidates(rng, client, known, "offerer")
            self.done["met"] += 1
        for side in SIDES:
            await self._poll(client, known, side)
        if rng.random() < 0.3:
            known.withdrawn = True
            await self._ask("withdraw", client, known, "/withdraw", {"side": "offerer"})

    async def answerer(self, rng: random.Random, client: Peer, origin: str, topic: str) -> None:
        """Find a session in a topic, answer it and exchange candidates."""
        listed = await self._list(client, origin, topic, wait_s=rng.choice([0, 0, 3]))
        if not listed:
            return
        known = rng.choice(listed)
        answer = f"{next(self._numbers)} {rng.randbytes(rng.randrange(100, 700)).hex()}"
        known.answers.add(answer)
        if await self._ask("answer", client, known, "/answer", {"side": "answerer", "answer": answer}) is None:
            return
        known.answer = answer
        await self._send_candidates(rng, client, known, "answerer")
        await self._poll(client, known, "answerer", wait_s=2)
        await asyncio.sleep(rng.uniform(0, 1))
        await self._poll(client, known, "answerer")

    async def watcher(self, rng: random.Random, client: Peer, origin: str, topic: str) -> None:
        """Read a topic's stream for a while, and resume it when it breaks."""
        last = None
        for turn in range(3):
            with contextlib.suppress(TimeoutError, Broken):
                async with (
                    asyncio.timeout(rng.uniform(1, 6)),
                    contextlib.aclosing(client.events(f"/{topic}/events", last)) as events,
                ):
                    async for event, data in events:
                        last = event.get("id", last)
                        if event.get("event") == "session":
                            self._compare_listed(data, origin, topic)
                        if "event" in event:
                            self.done["told in a resumed stream" if turn else f"told: {event['event']}"] += 1
            await asyncio.sleep(rng.uniform(0.1, 1))

    async def looker(self, rng: random.Random, client: Peer, origin: str, topic: str) -> None:
        for path in ("/topics?limit=1000", "/health", "/", f"/{topic}/sessions?limit=2"):
            await asyncio.sleep(rng.uniform(0, 1))
            status, found = await client.ask("GET", path)
            self.tally.must(status == 200, f"GET {path}: {status} {found}")
            self.done["looked"] += status == 200

    async def abandoner(self, rng: random.Random, client: Peer, origin: str, topic: str) -> None:
        """Publish and never return, or return too late."""
        known = await self._publish(rng, client, origin, topic)
        client.close()
        if rng.random() < 0.3:
            await asyncio.sleep((known.most_ms - now_ms()) / 1000 + 1)
            await self._poll(client, known, "offerer")

    async def holder(self, rng: random.Random, client: SocketPeer, origin: str, topic: str) -> None:
        """Hold an offer beyond its lifetime and across restarts until it is answered, then disconnect."""
        known = await self._publish(rng, client, origin, topic, hold=True)
        began_s, known.most_ms, known.holder = time.monotonic(), FOREVER_MS, client
        end_s = began_s + rng.uniform(0.5, 2) * self.timeout_ms / 1000
        try:
            while time.monotonic() < end_s and not known.answers:
                await asyncio.sleep(rng.uniform(0.2, 1))
                if not await self._still_hold(client, known):
                    return
            if time.monotonic() > began_s + self.timeout_ms / 1000 and not known.answers:
                self.done["held beyond its lifetime"] += 1
        finally:
            client.close()
            left_s, known.most_ms = time.monotonic(), self._latest_end_ms(hold=True)
        with contextlib.closing(Peer(self.tally, origin)) as other:
            while await self._poll(other, known, "answerer") is not None:
                if known.answers or self.tally.away(began_s, time.monotonic()):
                    return  # both sides have it, or the server that knew of it was restarted
                if time.monotonic() > left_s + self.grace_ms / 1000 + WITHDRAWN_S:
                    self.tally.wrong.append("held: it is still there long after its connection has ended")
                    return
                await asyncio.sleep(0.2)
        self.done["withdrawn after its connection"] += 1

    async def _still_hold(self, client: SocketPeer, known: Known) -> bool:
        """Check that the offer exists, and take it over if the connection was lost."""
        while True:
            since_s = time.monotonic()
            try:
                if not client.open:
                    taken = await self._ask("taken over", client, known, "/hold", {})
                    return taken is not None
                if await self._poll(client, known, "offerer") is not None:
                    return True
            except Broken:
                await asyncio.sleep(0.1)
                continue
            if not known.answers and not self.tally.away(since_s, time.monotonic()):
                self.tally.wrong.append("held: it has ended, and its connection has not")
            return False

    # Steps of behaviours

    async def _publish(self, rng: random.Random, client: Peer, origin: str, topic: str, **more: bool) -> Known:
        offer = f"{next(self._numbers)} {rng.randbytes(rng.randrange(200, 1200)).hex()}"
        known = self.sessions[origin, topic][offer] = Known(origin, topic, offer)
        sent_ms = now_ms()
        try:
            status, found = await client.ask("POST", f"/{topic}/offer", {"info": "soak", "offer": offer, **more})
        finally:
            known.most_ms = self._latest_end_ms(**more)
        if status != 200:
            self.tally.wrong.append(f"offer: {status} {found}")
            raise Broken
        known.code, known.least_ms = found["code"], sent_ms + self.timeout_ms
        self.done["offer"] += 1
        return known

    def _latest_end_ms(self, *, hold: bool = False) -> float:
        """Return the time by which a session that was renewed just now has expired, even if the server is killed."""
        return now_ms() + max(self.timeout_ms, MIN_HELD_MS if hold else 0) + SLACK_MS

    async def _refresh(self, client: Peer, known: Known) -> None:
        sent_ms = now_ms()
        before_ms, known.most_ms = known.most_ms, FOREVER_MS
        found = None
        try:
            found = await self._ask("refresh", client, known, "/refresh", {"side": "offerer"})
        except BaseException:
            before_ms = now_ms() + self.timeout_ms + SLACK_MS  # the request may have been carried out
            raise
        finally:
            known.most_ms = before_ms if found is None else now_ms() + self.timeout_ms + SLACK_MS
        if found is not None:
            known.least_ms = sent_ms + self.timeout_ms

    async def _send_candidates(self, rng: random.Random, client: Peer, known: Known, side: str) -> None:
        for _ in range(rng.randrange(1, 4)):
            await asyncio.sleep(rng.uniform(0, 0.5))
            some = [f"{next(self._numbers)} {'c' * rng.randrange(50, 150)}" for _ in range(rng.choice([1, 1, 3]))]
            what = {"candidate": some[0]} if len(some) == 1 else {"candidates": some}
            known.asked[side] += some
            if await self._ask("candidate", client, known, "/answer", {"side": side, **what}) is None:
                return
            known.acknowledged[side] += some

    async def _poll(self, client: Peer, known: Known, side: str, since=None, wait_s: float = 0) -> str | None:
        """Poll and compare. Return the cursor of a long poll, or None if the session does not exist."""
        fields: dict = {"side": side}
        if wait_s:
            fields |= {"wait": wait_s} | ({"since": since} if since else {})
        other = SIDES[1 - SIDES.index(side)]
        acknowledged, answer = [] if since else list(known.acknowledged[other]), known.answer
        found = await self._ask("wait" if wait_s else "poll", client, known, "/poll", fields, wait_s)
        if found is None:
            return None
        candidates = found["offerCandidates" if side == "answerer" else "answerCandidates"]
        all_sent = subsequence(acknowledged, candidates) and subsequence(candidates, known.asked[other])
        self.tally.must(all_sent, f"poll: candidates of the {other} are not those that were sent")
        if side == "answerer":
            self.tally.must(found["offer"] == known.offer, "poll: another offer")
        elif found["answer"] not in ({answer} if answer else {*known.answers, None}):
            self.tally.wrong.append("poll: another answer, or none")
        elif found["answer"]:
            known.answer = found["answer"]
        return found.get("cursor", "")

    async def _stream_session(self, client: Peer, known: Known, last: str | None, for_s: float) -> str | None:
        """Read a session's stream until its answer. Return the last id, or None at the end of the stream."""
        try:
            async with asyncio.timeout(for_s):
                path = f"/events?code={known.code}&side=offerer"
                async with contextlib.aclosing(client.events(path, last)) as events:
                    async for event, data in events:
                        last = event.get("id", last)
                        self.done["told by a stream"] += 1
                        if event.get("event") == "candidate":
                            sent = data["candidate"] in known.asked["answerer"]
                            self.tally.must(sent, "stream: a candidate that nobody sent")
                        if event.get("event") == "answer":
                            self.tally.must(data["answer"] in known.answers, "stream: another answer")
                            known.answer = data["answer"]
                            return last
        except TimeoutError:
            return last
        return None

    async def _list(self, client: Peer, origin: str, topic: str, wait_s: float = 0) -> list[Known]:
        """List a topic, and check that it contains all sessions that must exist."""
        before = [(known, known.least_ms) for known in self.sessions[origin, topic].values() if known.code]
        status, found = await client.ask("GET", f"/{topic}/sessions" + f"?wait={wait_s}" * bool(wait_s), None, wait_s)
        after_ms = now_ms()
        if status != 200:
            self.tally.wrong.append(f"sessions: {status} {found}")
            return []
        self.done["listing"] += 1
        listed = [self._compare_listed(each, origin, topic) for each in found["sessions"]]
        offers = {each["offer"] for each in found["sessions"]}
        for known, least_ms in before:
            fine = known.offer in offers or known.answers or known.withdrawing or least_ms <= after_ms
            self.tally.must(fine, "sessions: one that was acknowledged is not listed")
        return [known for known in listed if known and known.code]

    def _compare_listed(self, entry: dict, origin: str, topic: str) -> Known | None:
        known = self.sessions[origin, topic].get(entry["offer"])
        if known is None:
            self.tally.wrong.append("a session is listed that nobody published there, or long after its end")
        elif known.code not in (entry["code"], None):
            self.tally.wrong.append("a session is listed under another's code")
        elif not subsequence(entry["offerCandidates"], known.asked["offerer"]):
            self.tally.wrong.append("a session is listed with candidates that nobody sent")
        return known

    async def _ask(self, what: str, client: Peer, known: Known, path: str, fields: dict, wait_s=0) -> dict | None:
        """Send a request about a session, which must exist until its expiry and not after. Return a success's JSON."""
        # A session that is refreshed at the last moment may be expired for others until the new time is on disk.
        sent_ms, least_ms = now_ms(), known.least_ms
        status, found = await client.ask("POST", path, {"code": known.code, **fields}, wait_s)
        if status == 200:
            self.done[what] += 1
            if sent_ms > known.most_ms:
                self.tally.wrong.append(f"{what}: found {sent_ms - known.most_ms:.0f} ms after its end")
            return found
        if status == 409 and what == "answer" and len(known.answers) > 1:
            return None
        if status != 404 or not (known.withdrawing or now_ms() >= least_ms):
            self.tally.wrong.append(f"{what}: {status} {found}, {least_ms - now_ms():.0f} ms before its end")
        return None

    async def find_all(self) -> int:
        """Check that everything acknowledged exists until its expiry. Return the number of these sessions."""
        clients = {origin: Peer(self.tally, origin) for origin in ORIGINS}
        known_ones = [known for sessions in self.sessions.values() for known in sessions.values()]
        living = [known for known in known_ones if known.code and known.least_ms > now_ms()]
        for known in living:
            for side in SIDES:
                await self._poll(clients[known.origin], known, side)
        for origin, topic in {(known.origin, known.topic) for known in living}:
            await self._list(clients[origin], origin, topic)
        for client in clients.values():
            client.close()
        return len(living)
