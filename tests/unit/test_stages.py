"""Everything that a process has opened is closed, the latest part first, whatever happens to another part."""

import asyncio

import pytest

from tornado_signal.process import draining
from tornado_signal.process.draining import LIMITS_S, Stages


async def test_parts_are_closed_in_reverse_order_although_one_fails_and_one_hangs(monkeypatch, caplog):
    monkeypatch.setitem(LIMITS_S, "relay", 0.01)
    stages, closed = Stages(), []

    def opened(name, work=None):
        async def close():
            closed.append(name)
            if work is not None:
                await work()

        stages.opened(name, close)

    async def fail():
        raise ZeroDivisionError

    opened("store")
    opened("relay", asyncio.Event().wait)
    opened("webhooks", fail)
    opened("requests")
    await stages.close()
    assert closed == ["requests", "webhooks", "relay", "store"]
    assert [record.getMessage() for record in caplog.records if record.name == draining.__name__] == [
        "stopping: cannot close webhooks",
        "stopping: relay not closed within 0.01 s; continuing without it",
    ]
    await stages.close()
    assert len(closed) == 4


def test_part_out_of_the_documented_order_is_refused():
    stages = Stages()
    stages.opened("relay", asyncio.Event().wait)
    with pytest.raises(AssertionError, match="store"):
        stages.opened("store", asyncio.Event().wait)
