"""The store compared with a dict: random operations while time passes and clocks are set, with sweeps and reopening."""

import asyncio
import functools
import itertools
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.stores import ENGINES, NEVER_MS, HandClock, Under, covers, sweep

from tornado_signal.errors import AlreadyAnswered, SessionNotFound
from tornado_signal.session import MIN_HELD_MS, Position, Removed, SessionPosition, Side, TopicRange, hash_secret

ORIGINS = ["https://one.example", "https://one.example\x00", "null"]
TOPICS = ["a", "a\x00", "a\x00\xff", "\uffff", "\U0001f600" * 256]  # in order, unlike in UTF-16
TIMEOUTS_MS = [40, 100]
LATER_S = 10**9
SKIP = 256  # numbers that Redis leaves out when another node takes over
STATES = 8  # of a listing, with which its next one is compared
SETTINGS = hypothesis.settings(stateful_step_count=50)
ON_SERVERS = 7  # examples, each step of which asks a server dozens of things

texts = st.sampled_from(["x", "y", "ö\x00", "\U0001f600"])
moments = st.integers(0, 60)
sides = st.sampled_from(Side)
leases = st.sampled_from([bytes([number]) * 12 for number in range(3)])
secrets = st.just(b"") | st.sampled_from([hash_secret("one"), hash_secret("two")])
offsets = st.integers(0, 6) | st.just(2**53 * 1000)  # the last page of the largest number and size
foreign = st.none() | st.sampled_from(ORIGINS)
topic_ranges = st.none() | st.sampled_from(
    [
        [],
        [TopicRange("", True)],
        [TopicRange("a", True), TopicRange("\uffff", False)],
        [TopicRange("a", False), TopicRange("a\x00", True), TopicRange("c", False), TopicRange("\U0001f600", True)],
        [TopicRange("\ud83d", True), TopicRange("\ud83e", False)],  # halves of surrogate pairs
    ]
)


async def await_all(operations):
    return await asyncio.gather(*operations, return_exceptions=True)


@dataclass
class Follower:
    """Someone who follows a topic's events, as a client does that comes back to a stream now and then."""

    origin: str
    topic: str
    position: Position
    known: dict  # for each code the number of announcements and the last expiry


@dataclass
class Expected:
    topic: str
    info: str
    offer: str
    created_ms: int
    expires_ms: int
    timeout_ms: int
    place: int
    secrets: dict
    answer: str | None = None
    answer_number: int = 0
    serial: int = 0
    leases: list = field(default_factory=list)
    candidates: dict = field(default_factory=lambda: {side: [] for side in Side})
    last: dict = field(default_factory=lambda: {Side.OFFERER: 1, Side.ANSWERER: 0})

    def take_number(self, side):
        self.last[side] += 1
        return self.last[side]

    def hold(self, *leases):
        self.leases = list(leases)
        self.timeout_ms = max(self.timeout_ms, MIN_HELD_MS)

    def add(self, side, texts):
        self.candidates[side] += [(self.take_number(side), text) for text in texts]

    def adopt_numbers(self, side, news):
        """Take over the numbers of messages. Those after the move of a slot, as after a failover, skip some."""
        mine = [number for number, _ in self.candidates[side]]
        found = [number for number, _ in news.candidates]
        if side is Side.ANSWERER and self.answer is not None:
            mine, found = sorted([*mine, self.answer_number]), sorted([*found, news.description_number])
            self.answer_number = news.description_number
        skipped = [their - my for my, their in zip(mine, found, strict=True)]
        assert skipped == sorted(skipped)
        assert not any(each % SKIP for each in skipped)
        self.candidates[side] = [
            (number, text) for (number, _), (_, text) in zip(news.candidates, self.candidates[side], strict=True)
        ]
        self.last[side] = max([self.last[side], *found])

    def take_answer(self, answer, secret):
        self.leases = []
        self.answer, self.answer_number = answer, self.take_number(Side.ANSWERER)
        self.secrets[Side.ANSWERER] = secret


class Model(RuleBasedStateMachine):
    """A store of an engine and a dict that get the same operations."""

    codes = Bundle("codes")

    def __init__(self, make_engine, folder):
        super().__init__()
        self.clock = HandClock()
        self.wall_ms = self.clock.ms  # the store's time continues when this is set back
        self.name = str(len(list(folder.iterdir())))
        self.engine = make_engine(folder, self.clock)  # may skip the test
        self.loop = asyncio.new_event_loop()
        self.sessions = {}
        self.places = itertools.count()
        # How often a session was published or refreshed, and the expiry that its readers must know.
        self.announced = Counter()
        self.announced_ms = {}
        # When a session left its topic's listing the last time.
        self.left_ms = {}
        self.followers = []
        self.moved_slots = False
        self.readers = {}  # those who follow each topic and read all after every step
        # For each topic: the number of additions and removals, and its states with this number and its sessions.
        self.moves = Counter()
        self.states = defaultdict(list)

    def run(self, operation):
        return self.loop.run_until_complete(operation)

    @initialize(timeout_ms=st.sampled_from(TIMEOUTS_MS), by_content=st.booleans())
    def open(self, timeout_ms, by_content):
        codes = "content" if by_content else "random"
        self.timeout_ms, self.by_content = timeout_ms, by_content
        options = {"session_timeout_ms": timeout_ms, "codes": codes, "hold_grace_ms": NEVER_MS}
        self.store = self.run(self.engine.open(self.name, **options))
        self.touched, self.waits = set(), {}  # the expected events of a step, and the waiting readers

    def under(self, origin):
        return Under(self.store, origin)

    def live(self, origin, code):
        session = self.sessions.get((origin, code))
        return session if session and self.clock.ms < session.expires_ms else None

    def admitted(self, origin, code, side, secret):
        """The session, if there is one and this is the secret of the side."""
        session = self.live(origin, code)
        return session if session and session.secrets[side] in (b"", secret) else None

    def listed(self, origin, topic=None):
        """The unanswered sessions of an origin (and topic) with their codes, newest first."""
        found = [
            (code, session)
            for (of, code), session in self.sessions.items()
            if of == origin and self.live(of, code) and session.answer is None and topic in (None, session.topic)
        ]
        return sorted(found, key=lambda each: (each[1].created_ms, each[1].place), reverse=True)

    def moved(self, origin, topic):
        self.moves[origin, topic] += 1
        self.touched.add((origin, topic))

    def left(self, origin, code, session):
        self.touched.add((origin, code))
        if session.answer is None:
            self.left_ms[origin, code] = self.clock.ms
            self.moved(origin, session.topic)

    def must_learn_of(self, origin, code):
        """Whether those who know of a session that is no longer listed must be able to hear that it left."""
        session = self.sessions.get((origin, code))
        gone_ms = self.left_ms.get((origin, code), 0)
        if session and session.answer is None:
            gone_ms = max(gone_ms, session.expires_ms)
        return self.clock.ms < gone_ms + min(TIMEOUTS_MS)

    def attempt(self, operation):
        try:
            self.run(operation)
        except (SessionNotFound, AlreadyAnswered) as error:
            return type(error)
        return None

    def created(self, origin, code, topic, info, offer, ttl_ms=None, secret=b"", lease=None):
        now_ms = self.clock.ms
        session = self.sessions.get((origin, code))
        if session and now_ms < session.expires_ms:
            if session.answer is not None:
                return
        else:
            if session:
                self.touched.add((origin, code))
                if session.answer is None:
                    self.left_ms[origin, code] = session.expires_ms
            self.moved(origin, topic)
            secrets = {Side.OFFERER: secret, Side.ANSWERER: b""}
            session = Expected(topic, info, offer, now_ms, 0, ttl_ms or self.timeout_ms, next(self.places), secrets)
            self.sessions[origin, code] = session
        if lease:
            session.hold(*(each for each in session.leases if each != lease), lease)
        self.moved_to(origin, code, now_ms + session.timeout_ms)

    def moved_to(self, origin, code, expires_ms):
        """Set the expiry of a session, as an event for the readers of its topic."""
        session = self.sessions[origin, code]
        if session.answer is None and session.expires_ms != expires_ms:
            self.announced[origin, code] += 1
            self.announced_ms[origin, code] = expires_ms
            self.touched.add((origin, session.topic))
        session.expires_ms = expires_ms

    @rule(
        target=codes,
        origin=st.sampled_from(ORIGINS),
        topic=st.sampled_from(TOPICS),
        info=texts,
        offer=texts,
        ttl_ms=st.none() | st.sampled_from([2, 70]),
        secret=secrets,
        lease=st.none() | st.none() | leases,
    )
    def create(self, origin, topic, info, offer, ttl_ms, secret, lease):
        code = self.engine.code(origin, topic, offer)
        before = self.live(origin, code) if self.by_content else None
        create = self.store.create(origin, topic, info, offer, ttl_ms=ttl_ms, secret_hash=secret, lease=lease or b"")
        if before and before.secrets[Side.OFFERER] not in (b"", secret):
            assert self.attempt(create) is SessionNotFound
            return multiple()
        made, _ = self.run(create)
        if self.by_content:
            assert made == code
        else:
            assert (origin, made) not in self.sessions
        self.created(origin, made, topic, info, offer, ttl_ms, secret, lease)
        return origin, made

    @rule(name=codes, offers=st.lists(texts, max_size=4))
    def create_many_at_once(self, name, offers):
        """Publish a session's content again, and others, at one moment: they come in the order of the asking."""
        if name not in self.sessions or any(session.secrets[Side.OFFERER] for session in self.sessions.values()):
            return
        origin, topic = name[0], self.sessions[name].topic
        offers = [self.sessions[name].offer, *offers]
        one = Under(self.engine.one_process(self.store), origin)
        publish = [one.create(topic, f"info {number}", offer) for number, offer in enumerate(offers)]

        async def at_once():
            return await asyncio.gather(*publish)

        for number, (made, offer) in enumerate(zip(self.run(at_once()), offers, strict=True)):
            self.created(origin, made, topic, f"info {number}", offer)

    @rule(name=codes, foreign=foreign, answer=texts, secret=secrets)
    def answer(self, name, foreign, answer, secret):
        origin, code = foreign or name[0], name[1]
        session = self.admitted(origin, code, Side.ANSWERER, secret)
        expected = None
        if session is None:
            expected = SessionNotFound
        elif session.answer is None:
            self.left(origin, code, session)
            session.take_answer(answer, secret)
        elif session.answer != answer:
            expected = AlreadyAnswered
        assert self.attempt(self.under(origin).answer(code, answer, secret_hash=secret)) is expected

    @rule(name=codes, foreign=foreign, side=sides, texts=st.lists(texts, min_size=1, max_size=12), secret=secrets)
    def candidates(self, name, foreign, side, texts, secret):
        origin, code = foreign or name[0], name[1]
        session = self.admitted(origin, code, side, secret)
        if session:
            session.add(side, texts)
            self.touched.add((origin, code))
        adding = self.under(origin).add(code, side, *texts, secret_hash=secret)
        assert self.attempt(adding) is (None if session else SessionNotFound)

    @rule(name=codes, foreign=foreign, side=sides, secret=secrets)
    def withdraw(self, name, foreign, side, secret):
        origin, code = foreign or name[0], name[1]
        session = self.admitted(origin, code, side, secret)
        if session:
            self.left(origin, code, session)
            del self.sessions[origin, code]
        ending = self.under(origin).withdraw(code, side, secret_hash=secret)
        assert self.attempt(ending) is (None if session else SessionNotFound)

    @rule(name=codes, foreign=foreign, side=sides, secret=secrets)
    def refresh(self, name, foreign, side, secret):
        origin, code = foreign or name[0], name[1]
        session = self.admitted(origin, code, side, secret)
        staying = self.under(origin).refresh(code, side, secret_hash=secret)
        if session:
            self.moved_to(origin, code, self.clock.ms + session.timeout_ms)
            assert self.run(staying) == session.expires_ms
        else:
            assert self.attempt(staying) is SessionNotFound

    @rule(name=codes, foreign=foreign, lease=leases, secret=secrets)
    def hold(self, name, foreign, lease, secret):
        origin, code = foreign or name[0], name[1]
        session = self.admitted(origin, code, Side.OFFERER, secret)
        holding = self.under(origin).hold(code, lease, secret_hash=secret)
        if session is None:
            assert self.attempt(holding) is SessionNotFound
            return
        if session.answer is None:
            session.hold(lease)
        session.expires_ms = self.clock.ms + session.timeout_ms
        assert self.run(holding) == session.expires_ms

    @rule(name=codes, foreign=foreign, lease=leases, released=st.booleans())
    def renew_or_release(self, name, foreign, lease, released):
        origin, code = foreign or name[0], name[1]
        session = self.live(origin, code)
        operation = (self.under(origin).release if released else self.under(origin).renew)(code, lease)
        if not session or lease not in session.leases:
            assert self.attempt(operation) is SessionNotFound
        elif released:
            self.run(operation)
            session.leases.remove(lease)
            if not session.leases:
                self.left(origin, code, session)
                del self.sessions[origin, code]
        else:
            session.expires_ms = self.clock.ms + session.timeout_ms
            assert self.run(operation) == session.expires_ms

    @rule(name=codes, answers=st.lists(texts, max_size=4), number=st.integers(0, 4), late=st.booleans(), secret=secrets)
    def much_at_once(self, name, answers, number, late, secret):
        """Answers, candidates of both sides, reads and a sweep, all at one moment, the answers first or last."""
        session = self.live(*name)
        if session is None:
            return
        one, code = Under(self.engine.one_process(self.store), name[0]), name[1]
        shown = {side: {"secret_hash": session.secrets[side] or secret} for side in Side}
        others = [one.add(code, side, str(n), **shown[side]) for n in range(number) for side in Side]
        others += [one.read(code, Side.OFFERER, **shown[Side.ANSWERER]), one.topics(), one.sessions(session.topic)]
        tried = [one.answer(code, answer, **shown[Side.ANSWERER]) for answer in answers]

        async def at_once():
            parts = [await_all(others), self.engine.sweep_some(self.store), await_all(tried)]
            results = await asyncio.gather(*(parts if late else parts[::-1]))
            return results if late else results[::-1]

        results, _, outcomes = self.run(at_once())
        for turn in (late, not late):
            if turn:
                self.touched |= {name} if number else set()
                for side in Side:
                    session.add(side, map(str, range(number)))
            elif answers and session.answer is None:
                self.left(*name, session)
                session.take_answer(answers[0], shown[Side.ANSWERER]["secret_hash"])
        assert not [each for each in results if isinstance(each, Exception)]
        kinds = [type(None) if answer == session.answer else AlreadyAnswered for answer in answers]
        assert [type(each) for each in outcomes] == kinds

    @rule(name=codes, side=sides, since=st.integers(0, 30))
    def read_on(self, name, side, since):
        session = self.live(*name)
        if session:
            shown = {"secret_hash": session.secrets[side.other]}
            serial = self.run(self.under(name[0]).read(name[1], side, **shown)).serial
            news = self.run(self.under(name[0]).read(name[1], side, since=SessionPosition(serial, since), **shown))
            assert news.candidates == [each for each in session.candidates[side] if each[0] > since]
            assert news.description == (session.offer if side is Side.OFFERER else session.answer)

    @rule(name=codes, foreign=foreign, side=sides, shown=secrets)
    def read_with_some_secret(self, name, foreign, side, shown):
        origin, code = foreign or name[0], name[1]
        admitted = self.admitted(origin, code, side.other, shown)
        reading = self.under(origin).read(code, side, secret_hash=shown)
        assert self.attempt(reading) is (None if admitted else SessionNotFound)

    @rule(origin=st.sampled_from(ORIGINS), topic=st.sampled_from(TOPICS), limit=st.integers(1, 5))
    def newest(self, origin, topic, limit):
        found = self.run(self.under(origin).sessions(topic, limit))
        assert [each.session.code for each in found] == [code for code, _ in self.listed(origin, topic)[:limit]]

    @rule(origin=st.sampled_from(ORIGINS), topic=st.sampled_from(TOPICS))
    def follow(self, origin, topic):
        """Begin to follow a topic: first all that is listed now, oldest first."""
        position = self.run(self.under(origin).begin())
        events = self.run(self.under(origin).events(position, topic))
        codes = [code for _, code, _ in events]
        assert codes == [code for code, _ in self.listed(origin, topic)][::-1]
        self.followers.append(Follower(origin, topic, position, {}))

    @precondition(lambda self: self.followers)
    @rule(data=st.data(), most=st.just(99) | st.integers(0, 3), swept=st.booleans(), forked=st.booleans())
    def catch_up(self, data, most, swept, forked):
        """Come back to a stream and read some of it."""
        follower = data.draw(st.sampled_from(self.followers))
        if swept:
            self.sweep(True)
        if forked:
            self.followers.append(replace(follower, known=dict(follower.known)))
        self.read_events(follower, most)

    def read_events(self, follower, most):
        """Read some events of a stream: nothing comes twice, nothing leaves that has not come."""
        origin, topic, known = follower.origin, follower.topic, follower.known

        def forget():
            # A partition without sessions is forgotten, and so is the position of a reader's last event.
            assert self.moved_slots or not known or self.engine.may_forget(self.store, follower.position)
            known.clear()

        async def read():
            steps = self.under(origin).steps(follower.position, topic, forget)
            return [event async for step in steps for event in step]

        events = self.run(read())
        for event in events[:most]:
            assert event.position != follower.position
            follower.position = event.position
            assert self.store.knows(event.position.store)
            if isinstance(event, Removed):
                del known[event.code]
            else:
                code = event.listed.session.code
                announced = self.announced[origin, code]
                times = known[code][0] + 1 if code in known else announced
                assert times <= announced or not self.must_learn_of(origin, code)
                known[code] = times, event.listed.session.expires_ms
        if len(events) <= most:
            listed = {code for code, _ in self.listed(origin, topic)}
            assert all(known[code][1] >= self.announced_ms[origin, code] for code in listed)
            assert not any(self.must_learn_of(origin, code) for code in known.keys() - listed)

    @rule(passed_ms=moments)
    def pass_time(self, passed_ms):
        self.wall_ms += passed_ms
        self.clock.ms += passed_ms

    @rule(by_ms=st.integers(-60, 60))
    def set_the_clock(self, by_ms):
        """Set the clock back or forward. Until the store is reopened, its time only continues."""
        self.wall_ms += by_ms
        self.clock.ms = max(self.clock.ms, self.wall_ms)

    @rule()
    def pass_time_to_the_next_expiry(self):
        ends = [s.expires_ms for s in self.sessions.values() if s.expires_ms > self.clock.ms]
        if ends:
            self.pass_time(min(ends) - self.clock.ms)

    @rule(all_of_it=st.booleans())
    def sweep(self, all_of_it):
        self.run(sweep(self.store) if all_of_it else self.engine.sweep_some(self.store))

    @rule(timeout_ms=st.sampled_from(TIMEOUTS_MS), by_content=st.booleans())
    def reopen(self, timeout_ms, by_content):
        """Close and open it, maybe with other settings. Its time continues although the clock was set back."""
        before_ms, secret = self.clock.ms, self.store.secret
        self.run(self.engine.check(self.store))
        self.run(self.store.close())
        self.clock.ms = self.wall_ms
        self.open(timeout_ms, by_content)
        assert (self.clock.ms, self.store.secret) == (max(before_ms, self.wall_ms), secret)

    @precondition(lambda self: hasattr(self.engine, "move"))
    @rule(origin=st.sampled_from(ORIGINS), topic=st.sampled_from(TOPICS), share=st.sampled_from([0, 0.5, 1]))
    def move_a_slot(self, origin, topic, share):
        self.run(self.engine.move(self.store, origin, topic, share))
        self.moved_slots = True

    @rule(origin=st.sampled_from(ORIGINS), offset=offsets, limit=st.integers(1, 6), ranges=topic_ranges)
    def topics(self, origin, offset, limit, ranges):
        covered = [(name, count) for name, count in self.counts(origin) if covers(ranges, name)]
        found = self.run(self.under(origin).topics(offset, limit, ranges))
        assert found == (covered[offset : offset + limit], len(covered))

    def counts(self, origin):
        names = [session.topic for _, session in self.listed(origin)]
        return [(name, names.count(name)) for name in sorted(set(names))]

    @invariant()
    def all_is_as_expected(self):
        for origin in ORIGINS:
            one, counts = self.under(origin), self.counts(origin)
            assert self.run(one.topics()) == (counts, len(counts))
            for topic in TOPICS:
                listed = self.listed(origin, topic)
                found = {s.code: (s, *texts) for s, *texts in self.run(one.sessions(topic))}
                assert [*found] == [code for code, _ in listed]
                for code, s in listed:
                    it, texts = found[code][0], [text for _, text in s.candidates[Side.OFFERER]]
                    assert found[code][1:] == (s.offer, texts)
                    assert (it.info, it.created_ms, it.expires_ms) == (s.info, s.created_ms, s.expires_ms)
                self.state_is_as_expected(origin, topic, listed)
        for (origin, code), session in self.sessions.items():
            for side in Side:
                reading = self.under(origin).read(code, side, secret_hash=session.secrets[side.other])
                finding = self.store.find_topic(origin, code)
                if not self.live(origin, code):
                    assert self.attempt(reading) is self.attempt(finding) is SessionNotFound
                    continue
                assert self.run(finding) == session.topic
                news = self.run(reading)
                session.serial = session.serial or news.serial
                if self.moved_slots:
                    session.adopt_numbers(side, news)
                described = (session.offer, 1) if side is Side.OFFERER else (session.answer, session.answer_number)
                assert news == (*described, session.candidates[side], session.expires_ms, session.serial)

    @invariant()
    def readers_know_what_is_listed(self):
        for origin, topic in itertools.product(ORIGINS, TOPICS):
            if (origin, topic) not in self.readers:
                self.readers[origin, topic] = Follower(origin, topic, self.run(self.under(origin).begin(topic)), {})
            reader = self.readers[origin, topic]
            self.read_events(reader, sys.maxsize)
            assert reader.known.keys() == {code for code, _ in self.listed(origin, topic)}

    def state_is_as_expected(self, origin, topic, listed):
        """A listing differs from every earlier one after a change, and only then."""
        state = self.run(self.under(origin).state(topic))
        assert state.changed == bool(listed)
        names, moves = {session.place for _, session in listed}, self.moves[origin, topic]
        before = self.states[origin, topic]

        async def changes():
            return [(await self.under(origin).state(topic, each[0])).changed for each in before]

        for differs, (_, names_then, moves_then) in zip(self.run(changes()), before, strict=True):
            assert differs or names == names_then
            assert not differs or names != names_then or moves != moves_then
        if (state.position, names, moves) not in before:
            self.states[origin, topic] = [*before, (state.position, names, moves)][-STATES:]

    @invariant()
    def changes_wake_watches(self):
        self.run(self.engine.settled(self.store))
        asleep = {name for name, (_, wait) in self.waits.items() if not wait.done()}
        assert not self.touched & asleep
        self.touched = set()
        for origin, topic in itertools.product(ORIGINS, TOPICS):
            if (origin, topic) not in asleep:
                self.watch((origin, topic), self.store.watch_topic)
        for name in self.sessions:
            if name not in asleep:
                self.watch(name, self.store.watch_session)
        self.run(self.engine.settled(self.store))

    def watch(self, name, opening):
        async def begin():
            watch = self.waits[name][0] if name in self.waits else opening(*name)
            self.waits[name] = watch, watch.wait(self.loop.time() + LATER_S)

        self.run(begin())

    def teardown(self):
        """Sound as it is, sound after a restart, and empty when all has expired and is swept."""
        try:
            if hasattr(self, "store"):
                self.reopen(self.timeout_ms, self.by_content)
                self.run(self.engine.check(self.store))
                self.all_is_as_expected()
                ends = [session.expires_ms for session in self.sessions.values()]
                for _ in range(2):  # first the sessions, then that they were there
                    self.clock.ms = max([self.clock.ms, *ends]) + max(TIMEOUTS_MS)
                    self.sweep(True)
                    self.run(self.engine.check(self.store))
                self.run(self.store.probe())
                self.run(self.engine.holds_nothing(self.store))
                self.run(self.store.close())
        finally:
            if hasattr(self.engine, "move"):
                self.run(self.engine.end_move())
            self.run(self.loop.shutdown_asyncgens())
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(ENGINES))
def test_store_behaves_like_a_dict_with_expiry(name, tmp_path, monkeypatch):
    ENGINES[name].take_small_steps(monkeypatch)
    settings = SETTINGS if name == "leveldb" else hypothesis.settings(SETTINGS, max_examples=ON_SERVERS)
    run_state_machine_as_test(functools.partial(Model, ENGINES[name], tmp_path), settings=settings)
