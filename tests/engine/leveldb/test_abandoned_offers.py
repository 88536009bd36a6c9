"""Held offers across a restart of the process that holds them."""

import pytest

from tornado_signal.stores.leveldb import store as leveldb

OLD, NEW = b"of the past.", b"of this one."


@pytest.fixture(autouse=True)
def short_come_back(monkeypatch):
    monkeypatch.setattr(leveldb, "COME_BACK_S", 0.3)


async def test_offers_of_an_earlier_process_are_withdrawn_unless_held_again(opened, restarted, until):
    options = {"session_timeout_ms": 300_000, "hold_grace_ms": 100, "codes": "content"}
    store, one = await opened(**options)
    for text in ("left", "back", "again"):
        await one.create(offer=text, lease=OLD)
    await one.create(offer="free")
    store, one = await restarted(store, **options)
    listed = {each.offer: each.session.code for each in await one.sessions()}
    assert len(listed) == 4
    await one.hold(listed["back"], NEW)
    await one.create(offer="again", lease=NEW)
    await until(lambda: store.metrics.withdrawn)
    await until(lambda: store._abandoned.done())
    assert {each.offer for each in await one.sessions()} == {"free", "back", "again"}
    await one.release(listed["again"], NEW)
    assert {each.offer for each in await one.sessions()} == {"free", "back"}


async def test_offers_of_an_earlier_process_are_withdrawn_in_groups(opened, restarted, until, monkeypatch, caplog):
    """One failure does not keep the others."""
    options = {"session_timeout_ms": 300_000, "hold_grace_ms": 0}
    store, one = await opened(**options)
    codes = [await one.create(lease=OLD) for _ in range(2 * leveldb.RELEASED_AT_ONCE + 1)]
    store, one = await restarted(store, **options)
    release = store.release
    monkeypatch.setattr(
        store, "release", lambda origin, code, lease: release(origin, None if code == codes[0] else code, lease)
    )
    await until(lambda: store._abandoned.done())
    assert await one.codes() == codes[:1]
    assert sum(store.database.metrics.changes.counts) <= 3
    assert "cannot release a held offer" in caplog.text
