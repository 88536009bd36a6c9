"""Statistics of a database: they count the existing sessions and contain no text of clients."""

import json
import random

import pytest
from support.service import NOW_MS

from tornado_signal.session import Answer, Reason, Session, Side
from tornado_signal.stores.leveldb import changes, layout
from tornado_signal.stores.leveldb.census import Census
from tornado_signal.stores.leveldb.changes import Removal

TIMEOUT_MS = 1000


class FakeDatabase:
    """The entries that the store would write."""

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
            removal = Removal(self.serial + 1, Reason.ANSWERED, expires_ms)
            self.apply(changes.answered(origin, session, Answer("their answer", 1), removal))
        for side in Side:
            texts = ((number, "their candidate") for number in range(2, 2 + candidates))
            self.apply(changes.candidates_added(layout.pack_session_prefix(origin, code), side, texts))

    def census(self, max_items=20):
        census = Census(NOW_MS, max_items)
        census.count(sorted(self.entries.items()))
        return census.end()


def test_empty_database_has_zero_counts():
    database = FakeDatabase()
    numbers = database.census()
    assert (numbers.pop("entries"), numbers.pop("total_bytes")) == (1, 9)
    assert numbers.pop("largest_origins") == numbers.pop("largest_topics") == []
    assert set(numbers.values()) == {0}


def test_sessions_are_counted_by_state_origin_and_topic():
    database = FakeDatabase()
    database.add("https://a", "one", candidates=2)
    database.add("https://a", "one", answered=True, candidates=1)
    database.add("https://a", "two", expires_ms=NOW_MS)
    database.add("https://b", "one", answered=True, expires_ms=NOW_MS)
    database.add("https://b", "one", expires_ms=NOW_MS + 1)
    numbers = database.census()
    first, second = numbers["largest_origins"]
    sizes = {name: 0 for name in ("https://a", "https://b")}
    for key, value in database.entries.items():
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
    assert numbers["entries"] == len(database.entries)
    assert numbers["total_bytes"] == sum(len(key + value) for key, value in database.entries.items())
    assert "their" not in json.dumps(numbers)


@pytest.mark.parametrize("max_items", [0, 1, 3, 100])
def test_largest_origins_and_topics_are_listed(max_items):
    database = FakeDatabase()
    rng = random.Random(max_items)
    expected = {}
    for origin in rng.sample(range(1000), 12):
        for topic in rng.sample(range(1000), 4):
            expected[f"https://{origin}", f"topic\0{topic}"] = count = rng.randrange(1, 9)
            for _ in range(count):
                database.add(f"https://{origin}", f"topic\0{topic}")
    numbers = database.census(max_items)
    assert (numbers["origins"], numbers["topics"]) == (12, 48)
    assert numbers["sessions"] == sum(expected.values())
    topics = numbers["largest_topics"]
    assert [entry["unanswered"] for entry in topics] == sorted(expected.values(), reverse=True)[:max_items]
    assert all(expected[entry["origin"], entry["topic"]] == entry["unanswered"] for entry in topics)
    by_origin = {}
    for (origin, _), count in expected.items():
        by_origin[origin] = by_origin.get(origin, 0) + count
    origins = numbers["largest_origins"]
    assert [entry["sessions"] for entry in origins] == sorted(by_origin.values(), reverse=True)[:max_items]
    assert all(by_origin[entry["origin"]] == entry["sessions"] for entry in origins)


def test_memory_does_not_grow_with_origins_and_topics():
    database = FakeDatabase()
    census = Census(NOW_MS, 5)
    for number in range(3000):
        database.add(f"https://{number}", f"topic {number}")
    for entry in sorted(database.entries.items()):
        census.count([entry])
        lists = [value for value in vars(census).values() if isinstance(value, list)]
        assert sum(map(len, lists)) <= 10
    numbers = census.end()
    assert (numbers["sessions"], numbers["topics"]) == (3000, 3000)
