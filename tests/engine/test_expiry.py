"""Every store: what has expired leaves its listing once, for all that ask, and over a restart."""

import asyncio

import pytest
from support.stores import TIMEOUT_MS, sweep

from tornado_signal.session import Reason, Side


async def test_each_session_expires_once_for_many_readers(store, one, clock):
    codes = [await one.create() for _ in range(40)]
    position = await one.knowing()
    clock.ms += TIMEOUT_MS
    found = await asyncio.gather(*[one.news(position) for _ in range(20)])
    expected = dict.fromkeys(codes, Reason.EXPIRED)
    assert all((dict(each), len(each)) == (expected, 40) for each in found)
    assert (await store.counts())[0] == 0


@pytest.mark.parametrize("settled", [False, True])
async def test_expired_sessions_leave_once_over_a_restart(settled, open_store, under, clock):
    store = await open_store()
    one = under(store)
    codes = [await one.create() for _ in range(10)]
    position = await one.knowing()
    clock.ms += TIMEOUT_MS
    before = await one.news(position) if settled else None
    await store.close()
    store = await open_store()
    found = await under(store).news(position)
    assert (dict(found), len(found)) == (dict.fromkeys(codes, Reason.EXPIRED), 10)
    assert before in (None, found)
    await sweep(store)
    assert await store.counts() == (0, 0)


async def test_text_that_cannot_be_encoded_leaves_no_trace(open_store, under):
    store = await open_store()
    one = under(store)
    with pytest.raises(UnicodeEncodeError):
        await one.create(offer="\ud800")
    code = await one.create()
    with pytest.raises(UnicodeEncodeError):
        await one.add(code, Side.OFFERER, "good", "\ud800")
    with pytest.raises(UnicodeEncodeError):
        await one.answer(code, "\ud800")
    await one.add(code, Side.OFFERER, "c")
    await one.answer(code)
    await store.close()
    store = await open_store()
    assert (await store.counts())[0] == 0
    assert (await under(store).read(code, Side.OFFERER)).candidates[-1][1] == "c"
