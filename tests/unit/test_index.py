"""The listings of topics and the counts for GET /topics, compared with a plain list of sessions."""

import itertools
from itertools import groupby

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tornado_signal.errors import TooMany
from tornado_signal.stores.leveldb.topic_index import ANY_SERIAL, Reservations, TopicIndex
from tornado_signal.stores.quotas import Quotas

ORIGINS = ["https://one.example", "null"]
TOPICS = ["", "a", "a\x00", "b", "é", "\uffff", "\U0001f600"]
STEPS = [1, 2, 500]


def prune_all(index, origin, now_ms, steps=500):
    """Prune until the counts are exact and return the number of calls."""
    calls = 1
    while not index.prune(origin, now_ms, steps):
        calls += 1
    return calls


def entry_count(index):
    """Return the number of entries of any kind in memory."""
    origins = list(index._origins.values())
    values = [value for o in origins for value in o.topics.values()]
    return sum(len(o.due) for o in origins) + sum(
        1 if isinstance(value, bytes) else len(value.expiries) + len(value.serials) + len(value.codes)
        for value in values
    )


def grouped(sessions):
    """Yield sessions in the form that `fill` needs: origin, topic, and expiry, serial and code in any order."""
    for (origin, topic), group in groupby(sorted(sessions), key=lambda session: session[:2]):
        yield origin, topic, [session[2:] for session in group]


def code(serial):
    return serial.to_bytes(16, "big")


class Counts(RuleBasedStateMachine):
    """Sessions are added, answered and expire in any order while time passes."""

    @initialize()
    def begin(self):
        self.index = TopicIndex()
        self.now_ms = 0
        self.serials = itertools.count(1)
        self.sessions = []

    @rule(origin=st.sampled_from(ORIGINS), topic=st.sampled_from(TOPICS), lifetime_ms=st.integers(-2, 12))
    def add(self, origin, topic, lifetime_ms):
        serial = next(self.serials)
        session = (origin, topic, max(0, self.now_ms + lifetime_ms), serial, code(serial))
        self.index.add(*session)
        self.sessions.append(session)

    @rule(data=st.data())
    def remove(self, data):
        if self.sessions:
            session = data.draw(st.sampled_from(self.sessions))
            self.index.remove(*session[:4])
            self.sessions.remove(session)

    @rule(data=st.data(), lifetime_ms=st.integers(1, 12))
    def refresh(self, data, lifetime_ms):
        live = [session for session in self.sessions if self.now_ms < session[2]]
        if live:
            session = data.draw(st.sampled_from(live))
            self.index.remove(*session[:4])
            self.sessions.remove(session)
            session = (*session[:2], self.now_ms + lifetime_ms, *session[3:])
            self.index.add(*session)
            self.sessions.append(session)

    @rule(
        origin=st.sampled_from(ORIGINS),
        topic=st.sampled_from(TOPICS),
        after=st.integers(0, 30),
        before=st.just(ANY_SERIAL) | st.integers(0, 30),
        oldest_first=st.booleans(),
    )
    def listing(self, origin, topic, after, before, oldest_first):
        mine = {session[3]: session[2] for session in self.sessions if session[:2] == (origin, topic)}
        listed = list(self.index.listing(origin, topic, after, before, oldest_first=oldest_first))
        assert listed == [
            (serial, code(serial)) for serial in sorted({each for each, _ in listed}, reverse=not oldest_first)
        ]
        live = {serial for serial, expires_ms in mine.items() if self.now_ms < expires_ms}
        within = {serial for serial in mine if after < serial < before}
        assert live & within <= {serial for serial, _ in listed} <= within

    @rule(origin=st.sampled_from(ORIGINS), topic=st.sampled_from(TOPICS), expires_ms=st.integers(0, 100))
    def remove_missing(self, origin, topic, expires_ms):
        self.index.remove(origin, topic, expires_ms, next(self.serials))

    @rule(passed_ms=st.integers(0, 8))
    def pass_time(self, passed_ms):
        self.now_ms += passed_ms

    @rule(origin=st.sampled_from(ORIGINS), steps=st.sampled_from(STEPS))
    def prune_a_step(self, origin, steps):
        self.index.prune(origin, self.now_ms, steps)

    @rule(
        origin=st.sampled_from(ORIGINS), offset=st.integers(0, 8), limit=st.integers(1, 8), steps=st.sampled_from(STEPS)
    )
    def page(self, origin, offset, limit, steps):
        prune_all(self.index, origin, self.now_ms, steps)
        live = [
            topic
            for session_origin, topic, expires_ms, *_ in self.sessions
            if session_origin == origin and self.now_ms < expires_ms
        ]
        counts = [(topic, live.count(topic)) for topic in sorted(set(live))]
        assert self.index.page(origin, offset, limit) == (counts[offset : offset + limit], len(counts))

    @rule()
    def count_topics(self):
        for origin in ORIGINS:
            prune_all(self.index, origin, self.now_ms)
        assert self.index.topic_count == len({session[:2] for session in self.sessions if self.now_ms < session[2]})

    @rule(origin=st.sampled_from(ORIGINS), topic=st.sampled_from(TOPICS))
    def counted(self, origin, topic):
        mine = [
            expires_ms
            for *names, expires_ms, _, _ in self.sessions
            if names == [origin, topic] and self.now_ms < expires_ms
        ]
        assert self.index.counted(origin, topic, self.now_ms) == (len(mine), min(mine, default=None))

    @rule()
    def fill(self):
        self.index = TopicIndex()
        self.index.fill(grouped(self.sessions))

    @invariant()
    def known_origins(self):
        live = {origin for origin, _, expires_ms, *_ in self.sessions if self.now_ms < expires_ms}
        assert live <= set(self.index.origins()) <= set(ORIGINS)

    def teardown(self):
        for origin in ORIGINS:
            prune_all(self.index, origin, 10**6)
        for session in self.sessions:
            self.index.remove(*session[:4])
        assert entry_count(self.index) == 0


def test_counts_match_a_plain_list():
    run_state_machine_as_test(Counts)


@pytest.mark.parametrize("neighbours", [0, 1])
def test_short_lived_topics_do_not_accumulate(neighbours):
    index = TopicIndex()
    for number in range(neighbours):
        index.add("o", f"other {number}", 10**9, number, code(number))
    for number in range(1000):
        index.add("o", f"topic {number}", 1000, number, code(number))
        index.remove("o", f"topic {number}", 1000, number)
        assert entry_count(index) == 2 * neighbours
    greatest = 0
    for now_ms in range(5000):
        index.add("o", "topic", now_ms + 1000, now_ms, code(now_ms))
        index.remove("o", "topic", now_ms + 1000, now_ms)
        prune_all(index, "o", now_ms)
        greatest = max(greatest, entry_count(index))
    assert greatest <= 4 + neighbours * 2


def test_pruning_is_bounded():
    index = TopicIndex()
    for number in range(1000):
        index.add("o", f"topic {number:04}", 5, number, code(number))
    index.add("o", "topic 0000", 9, 1000, code(1000))
    assert index.prune("o", 4, 0)
    assert not index.prune("o", 5, 10)
    assert index.page("o", 0, 1)[1] == 991
    assert prune_all(index, "o", 5, 10) == 99
    assert index.page("o", 0, 10) == ([("topic 0000", 1)], 1)


def test_many_sessions_of_a_topic_expire_in_one_step():
    index = TopicIndex()
    for number in range(5000):
        index.add("o", "topic", number, number, code(number))
    assert index.prune("o", 4998, 1)
    assert index.page("o", 0, 10) == ([("topic", 1)], 1)


def test_unknown_origin_has_no_topics():
    index = TopicIndex()
    index.fill(iter(()))
    assert index.prune("o", 0, 1)
    index.remove("o", "topic", 5, 1)
    assert index.page("o", 0, 10) == ([], 0)
    assert index.counted("o", "topic", 0) == (0, None)
    assert (index.origins(), entry_count(index)) == ([], 0)


@pytest.mark.parametrize(
    ("quota", "reserved", "refused"),
    [
        ({"sessions_per_origin": 3}, ["listed", "a"], "b"),
        ({"sessions_per_topic": 3}, ["listed", "a", "listed"], "listed"),
        ({"topics_per_origin": 3}, ["listed", "b", "b", "a"], "c"),
    ],
)
def test_sessions_that_are_being_written_use_the_quotas(quota, reserved, refused):
    index = TopicIndex()
    index.add("null", "listed", 1, 1, code(1))
    reservations = Reservations(Quotas(**quota))
    for topic in reserved:
        reservations.reserve(index, "null", topic)
    for _ in range(2):
        with pytest.raises(TooMany):
            reservations.reserve(index, "null", refused)
    reservations.reserve(index, "https://one.example", refused)
    reservations.release("null", reserved[-1])
    reservations.reserve(index, "null", refused)
