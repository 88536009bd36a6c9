"""Held offers across a restart of the process that holds them."""

from support.stores import Under, check_memory, open_leveldb

from tornado_signal.stores.leveldb import store as leveldb

ORIGIN = "https://one.example"
OLD, NEW = b"of the past.", b"of this one."


async def test_offers_of_an_earlier_process_are_withdrawn_unless_held_again(tmp_path, until, monkeypatch):
    monkeypatch.setattr(leveldb, "COME_BACK_S", 0.3)
    options = {"session_timeout_ms": 300_000, "hold_grace_ms": 100, "codes": "content"}
    store = await open_leveldb(tmp_path / "data", **options)
    one = Under(store, ORIGIN)
    for text in ("left", "back", "again"):
        await one.create(offer=text, lease=OLD)
    await one.create(offer="free")
    await store.close()

    store = await open_leveldb(tmp_path / "data", **options)
    one = Under(store, ORIGIN)
    listed = {each.offer: each.session.code for each in await one.sessions()}
    assert len(listed) == 4
    await one.hold(listed["back"], NEW)
    await one.create(offer="again", lease=NEW)
    await until(lambda: store.metrics.withdrawn)
    await until(lambda: store._abandoned.done())
    assert {each.offer for each in await one.sessions()} == {"free", "back", "again"}
    await one.release(listed["again"], NEW)
    assert {each.offer for each in await one.sessions()} == {"free", "back"}
    check_memory(store)
    await store.close()


async def test_offers_of_an_earlier_process_are_withdrawn_in_groups(tmp_path, until, monkeypatch, caplog):
    """One failure does not keep the others."""
    monkeypatch.setattr(leveldb, "COME_BACK_S", 0.3)
    options = {"session_timeout_ms": 300_000, "hold_grace_ms": 0}
    store = await open_leveldb(tmp_path / "data", **options)
    codes = [await Under(store, ORIGIN).create(lease=OLD) for _ in range(2 * leveldb.RELEASED_AT_ONCE + 1)]
    await store.close()

    store = await open_leveldb(tmp_path / "data", **options)
    release = store.release
    monkeypatch.setattr(
        store, "release", lambda origin, code, lease: release(origin, None if code == codes[0] else code, lease)
    )
    await until(lambda: store._abandoned.done())
    assert await Under(store, ORIGIN).codes() == codes[:1]
    assert sum(store.database.metrics.changes.counts) <= 3
    assert "cannot release a held offer" in caplog.text
    check_memory(store)
    await store.close()
