"""The numbers of a database: those of the sessions that are there, and never what anybody has said."""

import json
import random

import pytest
from support.service import NOW_MS

from tornado_signal.session import Answer, Reason, Session, Side
from tornado_signal.stores.leveldb import changes, layout
from tornado_signal.stores.leveldb.census import Census
from tornado_signal.stores.leveldb.changes import Removal

TIMEOUT_MS = 1000


class Held:
    """Entries as the store would write them."""

    def __init__(self):
        self.entries = {layout.FORMAT_KEY: layout.pack_number(1)}
        self.serial = 0

    def apply(self, change):
        for key in change.deletes:
            self.entries.pop(key, None)
        self.entries |= dict(change.puts)

    def add(self, origin, topic, *, answered=False, candidates=0, expires_ms=NOW_MS + TIMEOUT_MS):
        self.serial += 2
        code = self.serial.to_bytes(16, "big")
        session = Session(code, topic, "their info", NOW_MS, expires_ms, TIMEOUT_MS, self.serial)
        self.apply(changes.created(origin, session, "their offer"))
        if answered:
            leaving = Removal(self.serial + 1, Reason.ANSWERED, expires_ms)
            self.apply(changes.answered(origin, session, Answer("their answer", 1), leaving))
        for side in Side:
            texts = ((number, "their candidate") for number in range(2, 2 + candidates))
            self.apply(changes.candidates_added(layout.pack_session_prefix(origin, code), side, texts))

    def census(self, most=20):
        census = Census(NOW_MS, most)
        census.count(sorted(self.entries.items()))
        return census.end()


def test_an_empty_database_counts_nothing():
    held = Held()
    numbers = held.census()
    assert (numbers.pop("entries"), numbers.pop("total_bytes")) == (1, 9)
    assert numbers.pop("largest_origins") == numbers.pop("largest_topics") == []
    assert set(numbers.values()) == {0}


def test_sessions_are_counted_by_state_origin_and_topic():
    held = Held()
    held.add("https://a", "one", candidates=2)
    held.add("https://a", "one", answered=True, candidates=1)
    held.add("https://a", "two", expires_ms=NOW_MS)
    held.add("https://b", "one", answered=True, expires_ms=NOW_MS)
    held.add("https://b", "one", expires_ms=NOW_MS + 1)
    numbers = held.census()
    first, second = numbers["largest_origins"]
    sizes = {name: 0 for name in ("https://a", "https://b")}
    for key, value in held.entries.items():
        if key.startswith(layout.SESSIONS):
            sizes[layout.unpack_session_key(key)[0]] += len(key + value)
    names = ["origin", "sessions", "unanswered", "answered", "expired", "candidates", "bytes"]
    assert first == dict(zip(names, ["https://a", 3, 1, 1, 1, 6, sizes["https://a"]], strict=True))
    assert second == dict(zip(names, ["https://b", 2, 1, 0, 1, 0, sizes["https://b"]], strict=True))
    assert all(numbers[name] == first[name] + second[name] for name in names[1:])
    assert (numbers["origins"], numbers["topics"]) == (2, 2)
    assert numbers["largest_topics"] == [
        {"origin": "https://a", "topic": "one", "unanswered": 1},
        {"origin": "https://b", "topic": "one", "unanswered": 1},
    ]
    assert numbers["entries"] == len(held.entries)
    assert numbers["total_bytes"] == sum(len(key + value) for key, value in held.entries.items())
    assert "their" not in json.dumps(numbers)


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_the_largest_origins_and_topics_are_named(most):
    held = Held()
    rng = random.Random(most)
    expected = {}
    for origin in rng.sample(range(1000), 12):
        for topic in rng.sample(range(1000), 4):
            expected[f"https://{origin}", f"topic\0{topic}"] = count = rng.randrange(1, 9)
            for _ in range(count):
                held.add(f"https://{origin}", f"topic\0{topic}")
    numbers = held.census(most)
    assert (numbers["origins"], numbers["topics"]) == (12, 48)
    assert numbers["sessions"] == sum(expected.values())
    topics = numbers["largest_topics"]
    assert [each["unanswered"] for each in topics] == sorted(expected.values(), reverse=True)[:most]
    assert all(expected[each["origin"], each["topic"]] == each["unanswered"] for each in topics)
    by_origin = {}
    for (origin, _), count in expected.items():
        by_origin[origin] = by_origin.get(origin, 0) + count
    origins = numbers["largest_origins"]
    assert [each["sessions"] for each in origins] == sorted(by_origin.values(), reverse=True)[:most]
    assert all(by_origin[each["origin"]] == each["sessions"] for each in origins)


def test_memory_does_not_grow_with_origins_and_topics():
    held = Held()
    census = Census(NOW_MS, 5)
    for number in range(3000):
        held.add(f"https://{number}", f"topic {number}")
    for entry in sorted(held.entries.items()):
        census.count([entry])
        kept = [each for each in vars(census).values() if isinstance(each, list)]
        assert sum(map(len, kept)) <= 10
    numbers = census.end()
    assert (numbers["sessions"], numbers["topics"]) == (3000, 3000)
