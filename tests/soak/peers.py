"""The peers' behaviour and records, so that every response can be compared with what was acknowledged."""

import asyncio
import contextlib
import functools
import itertools
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from support.writers import subsequence

from tornado_signal.session import MIN_HELD_MS

from .client import Peer, SocketPeer
from .tally import Broken

ORIGINS = ["https://one.example", "https://two.example"]
SIDES = ["offerer", "answerer"]
FOREVER_MS = float("inf")
WITHDRAWN_S = 10.0  # for a server to withdraw held offers, in addition to the grace period
SLACK_MS = 1000.0  # between this program's clock and the server's, which never goes back


def now_ms() -> int:
    """Return the Unix time in whole milliseconds, as the server does: a session expires at the start of one."""
    return time.time_ns() // 1_000_000


@dataclass
class SessionRecord:
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

    They are those of a `Soak`. Its sessions have the lifetime `timeout_ms`. A held offer outlives its connection by
    `grace_ms`. Peers appear `pause` times slower than usual.
    """

    def __init__(self, soak, peers: int) -> None:
        self.tally, self.timeout_ms, self.grace_ms = soak.tally, soak.timeout_ms, soak.grace_ms
        self.tally_of, self._pause = soak.tally_of, soak.pause
        self.sessions: defaultdict[tuple[str, str], dict[str, SessionRecord]] = defaultdict(dict)
        self.done: Counter[str] = Counter()  # how often each action succeeded
        self._peers = peers
        self._topics = [f"topic-{number}" for number in range(max(1, peers // 10))]
        self._numbers = itertools.count()

    async def live(self) -> None:
        """Run peers one after the other in each place until cancelled, every second one over a WebSocket."""
        async with asyncio.TaskGroup() as places:
            for number in range(self._peers):
                places.create_task(self._place(random.Random(number), number, over_socket=bool(number % 2)))

    async def _place(self, rng: random.Random, number: int, over_socket: bool) -> None:
        kinds = [self.offerer, self.answerer, self.watcher, self.looker, self.abandoner, self.holder]
        while True:
            await asyncio.sleep(rng.uniform(0, 2) * self._pause)
            origin = rng.choice(ORIGINS)
            client = (SocketPeer if over_socket else Peer)(functools.partial(self.tally_of, number), origin)
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
        record = await self._publish(rng, client, origin, topic)
        await self._send_candidates(rng, client, record, "offerer")
        end_s = time.monotonic() + rng.uniform(0.5, 1.5) * self.timeout_ms / 1000
        streaming = rng.random() < 0.3
        since = None
        while time.monotonic() < end_s and record.answer is None:
            if streaming:
                since = await self._stream_session(client, record, since, end_s - time.monotonic())
            else:
                since = await self._poll(client, record, "offerer", since=since, wait_s=rng.randrange(1, 5))
            if since is None:
                break
            if rng.random() < 0.3:
                await self._refresh(client, record)
        if record.answer is not None:
            await self._send_candidates(rng, client, record, "offerer")
            self.done["met"] += 1
        for side in SIDES:
            await self._poll(client, record, side)
        if rng.random() < 0.3:
            record.withdrawn = True
            await self._ask("withdraw", client, record, "/withdraw", {"side": "offerer"})

    async def answerer(self, rng: random.Random, client: Peer, origin: str, topic: str) -> None:
        """Find a session in a topic, answer it and exchange candidates."""
        listed = await self._list(client, origin, topic, wait_s=rng.choice([0, 0, 3]))
        if not listed:
            return
        record = rng.choice(listed)
        answer = f"{next(self._numbers)} {rng.randbytes(rng.randrange(100, 700)).hex()}"
        record.answers.add(answer)
        if await self._ask("answer", client, record, "/answer", {"side": "answerer", "answer": answer}) is None:
            return
        record.answer = answer
        await self._send_candidates(rng, client, record, "answerer")
        await self._poll(client, record, "answerer", wait_s=2)
        await asyncio.sleep(rng.uniform(0, 1))
        await self._poll(client, record, "answerer")

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
                            self.done["event of a resumed stream" if turn else f"event: {event['event']}"] += 1
            await asyncio.sleep(rng.uniform(0.1, 1))

    async def looker(self, rng: random.Random, client: Peer, origin: str, topic: str) -> None:
        for path in ("/topics?limit=1000", "/health", "/", f"/{topic}/sessions?limit=2"):
            await asyncio.sleep(rng.uniform(0, 1))
            status, found = await client.ask("GET", path)
            self.tally.must(status == 200, f"GET {path}: {status} {found}")
            self.done["looked"] += status == 200

    async def abandoner(self, rng: random.Random, client: Peer, origin: str, topic: str) -> None:
        """Publish and never return, or return too late."""
        record = await self._publish(rng, client, origin, topic)
        client.close()
        if rng.random() < 0.3:
            await asyncio.sleep((record.most_ms - now_ms()) / 1000 + 1)
            await self._poll(client, record, "offerer")

    async def holder(self, rng: random.Random, client: SocketPeer, origin: str, topic: str) -> None:
        """Hold an offer beyond its lifetime and across restarts until it is answered, then disconnect."""
        record = await self._publish(rng, client, origin, topic, hold=True)
        began_s, record.most_ms, record.holder = time.monotonic(), FOREVER_MS, client
        end_s = began_s + rng.uniform(0.5, 2) * self.timeout_ms / 1000
        try:
            while time.monotonic() < end_s and not record.answers:
                await asyncio.sleep(rng.uniform(0.2, 1))
                if not await self._still_hold(client, record):
                    return
            if time.monotonic() > began_s + self.timeout_ms / 1000 and not record.answers:
                self.done["held beyond its lifetime"] += 1
        finally:
            client.close()
            left_s, record.most_ms = time.monotonic(), self._latest_end_ms(hold=True)
        with contextlib.closing(Peer(lambda: self.tally, origin)) as other:
            while await self._poll(other, record, "answerer") is not None:
                if record.answers or self.tally.away(began_s, time.monotonic()):
                    return  # both sides have it, or the server that knew of it was restarted
                if time.monotonic() > left_s + self.grace_ms / 1000 + WITHDRAWN_S:
                    self.tally.wrong.append("held: it is still there long after its connection has ended")
                    return
                await asyncio.sleep(0.2)
        self.done["withdrawn after its connection"] += 1

    async def _still_hold(self, client: SocketPeer, record: SessionRecord) -> bool:
        """Check that the offer exists, and take it over if the connection was lost."""
        while True:
            since_s = time.monotonic()
            try:
                if not client.open:
                    taken = await self._ask("taken over", client, record, "/hold", {})
                    return taken is not None
                if await self._poll(client, record, "offerer") is not None:
                    return True
            except Broken:
                await asyncio.sleep(0.1)
                continue
            if not record.answers and not self.tally.away(since_s, time.monotonic()):
                self.tally.wrong.append("held: it has ended, and its connection has not")
            return False

    # Steps of behaviours

    async def _publish(self, rng: random.Random, client: Peer, origin: str, topic: str, **more: bool) -> SessionRecord:
        offer = f"{next(self._numbers)} {rng.randbytes(rng.randrange(200, 1200)).hex()}"
        record = self.sessions[origin, topic][offer] = SessionRecord(origin, topic, offer)
        sent_ms = now_ms()
        try:
            status, found = await client.ask("POST", f"/{topic}/offer", {"info": "soak", "offer": offer, **more})
        finally:
            record.most_ms = self._latest_end_ms(**more)
        if status != 200:
            self.tally.wrong.append(f"offer: {status} {found}")
            raise Broken
        record.code, record.least_ms = found["code"], sent_ms + self.timeout_ms
        self.done["offer"] += 1
        return record

    def _latest_end_ms(self, *, hold: bool = False) -> float:
        """Return the time by which a session that was renewed just now has expired, even if the server is killed."""
        return now_ms() + max(self.timeout_ms, MIN_HELD_MS if hold else 0) + SLACK_MS

    async def _refresh(self, client: Peer, record: SessionRecord) -> None:
        sent_ms = now_ms()
        before_ms, record.most_ms = record.most_ms, FOREVER_MS
        response = None
        try:
            response = await self._ask("refresh", client, record, "/refresh", {"side": "offerer"})
        except BaseException:
            before_ms = now_ms() + self.timeout_ms + SLACK_MS  # the request may have been carried out
            raise
        finally:
            record.most_ms = before_ms if response is None else now_ms() + self.timeout_ms + SLACK_MS
        if response is not None:
            record.least_ms = sent_ms + self.timeout_ms

    async def _send_candidates(self, rng: random.Random, client: Peer, record: SessionRecord, side: str) -> None:
        for _ in range(rng.randrange(1, 4)):
            await asyncio.sleep(rng.uniform(0, 0.5))
            some = [f"{next(self._numbers)} {'c' * rng.randrange(50, 150)}" for _ in range(rng.choice([1, 1, 3]))]
            what = {"candidate": some[0]} if len(some) == 1 else {"candidates": some}
            record.asked[side] += some
            if await self._ask("candidate", client, record, "/answer", {"side": side, **what}) is None:
                return
            record.acknowledged[side] += some

    async def _poll(self, client: Peer, record: SessionRecord, side: str, since=None, wait_s: float = 0) -> str | None:
        """Poll and compare. Return the cursor of a long poll, or None if the session does not exist."""
        fields: dict = {"side": side}
        if wait_s:
            fields |= {"wait": wait_s} | ({"since": since} if since else {})
        other = SIDES[1 - SIDES.index(side)]
        acknowledged, answer = [] if since else list(record.acknowledged[other]), record.answer
        update = await self._ask("wait" if wait_s else "poll", client, record, "/poll", fields, wait_s)
        if update is None:
            return None
        candidates = update["offerCandidates" if side == "answerer" else "answerCandidates"]
        all_sent = subsequence(acknowledged, candidates) and subsequence(candidates, record.asked[other])
        self.tally.must(all_sent, f"poll: candidates of the {other} are not those that were sent")
        if side == "answerer":
            self.tally.must(update["offer"] == record.offer, "poll: another offer")
        elif update["answer"] not in ({answer} if answer else {*record.answers, None}):
            self.tally.wrong.append("poll: another answer, or none")
        elif update["answer"]:
            record.answer = update["answer"]
        return update.get("cursor", "")

    async def _stream_session(self, client: Peer, record: SessionRecord, last: str | None, for_s: float) -> str | None:
        """Read a session's stream until its answer. Return the last id, or None at the end of the stream."""
        try:
            async with asyncio.timeout(for_s):
                path = f"/events?code={record.code}&side=offerer"
                async with contextlib.aclosing(client.events(path, last)) as events:
                    async for event, data in events:
                        last = event.get("id", last)
                        self.done["event of a session"] += 1
                        if event.get("event") == "candidate":
                            sent = data["candidate"] in record.asked["answerer"]
                            self.tally.must(sent, "stream: a candidate that was not sent")
                        if event.get("event") == "answer":
                            self.tally.must(data["answer"] in record.answers, "stream: another answer")
                            record.answer = data["answer"]
                            return last
        except TimeoutError:
            return last
        return None

    async def _list(self, client: Peer, origin: str, topic: str, wait_s: float = 0) -> list[SessionRecord]:
        """List a topic, and check that it contains all sessions that must exist."""
        before = [(record, record.least_ms) for record in self.sessions[origin, topic].values() if record.code]
        status, response = await client.ask(
            "GET", f"/{topic}/sessions" + f"?wait={wait_s}" * bool(wait_s), None, wait_s
        )
        after_ms = now_ms()
        if status != 200:
            self.tally.wrong.append(f"sessions: {status} {response}")
            return []
        self.done["listing"] += 1
        listed = [self._compare_listed(session, origin, topic) for session in response["sessions"]]
        offers = {session["offer"] for session in response["sessions"]}
        for record, least_ms in before:
            fine = record.offer in offers or record.answers or record.withdrawing or least_ms <= after_ms
            self.tally.must(fine, "sessions: one that was acknowledged is not listed")
        return [record for record in listed if record and record.code]

    def _compare_listed(self, entry: dict, origin: str, topic: str) -> SessionRecord | None:
        record = self.sessions[origin, topic].get(entry["offer"])
        if record is None:
            self.tally.wrong.append("a session is listed that was not published there, or long after its end")
        elif record.code not in (entry["code"], None):
            self.tally.wrong.append("a session is listed under another's code")
        elif not subsequence(entry["offerCandidates"], record.asked["offerer"]):
            self.tally.wrong.append("a session is listed with candidates that were not sent")
        return record

    async def _ask(
        self, what: str, client: Peer, record: SessionRecord, path: str, fields: dict, wait_s=0
    ) -> dict | None:
        """Send a request about a session, which must exist until its expiry and not after. Return a success's JSON."""
        # After a refresh at the last moment, others may see the session as expired until the time is on disk.
        sent_ms, least_ms = now_ms(), record.least_ms
        status, response = await client.ask("POST", path, {"code": record.code, **fields}, wait_s)
        if status == 200:
            self.done[what] += 1
            if sent_ms > record.most_ms:
                self.tally.wrong.append(f"{what}: found {sent_ms - record.most_ms:.0f} ms after its end")
            return response
        if status == 409 and what == "answer" and len(record.answers) > 1:
            return None
        if status != 404 or not (record.withdrawing or now_ms() >= least_ms):
            self.tally.wrong.append(f"{what}: {status} {response}, {least_ms - now_ms():.0f} ms before its end")
        return None

    async def find_all(self) -> int:
        """Check that everything acknowledged exists until its expiry. Return the number of these sessions."""
        clients = {origin: Peer(lambda: self.tally, origin) for origin in ORIGINS}
        records = [record for sessions in self.sessions.values() for record in sessions.values()]
        living = [record for record in records if record.code and record.least_ms > now_ms()]
        for record in living:
            for side in SIDES:
                await self._poll(clients[record.origin], record, side)
        for origin, topic in {(record.origin, record.topic) for record in living}:
            await self._list(clients[origin], origin, topic)
        for client in clients.values():
            client.close()
        return len(living)
