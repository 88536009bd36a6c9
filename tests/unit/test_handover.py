"""A worker follows its supervisor: it applies what arrives, and stops at the end of the pipe."""

import asyncio
import os

import pytest

from tornado_signal.process import handover
from tornado_signal.process.handover import encode, watch_pipe


@pytest.mark.parametrize("end", ["closed", "unreadable"])
async def test_worker_applies_settings_after_an_error_and_stops_at_the_end(io_loop, monkeypatch, caplog, end):
    monkeypatch.setattr(handover, "MAX_ENCODED_BYTES", 1000)
    reader, writer = os.pipe()
    applied, stopped = [], asyncio.Event()

    def apply(settings):
        applied.append(settings)
        if settings == "bad":
            raise ZeroDivisionError

    os.write(
        writer, encode("bad") + b"no line of base64\n" + encode("good") + (b"x" * 3000 if end != "closed" else b"")
    )
    if end == "closed":
        os.close(writer)
    await asyncio.wait_for(watch_pipe(reader, apply, stopped.set), 60)
    await asyncio.sleep(0.01)  # until the pipe is closed
    assert applied == ["bad", "good"]
    assert stopped.is_set()
    assert "ZeroDivisionError" in caplog.text
    assert ("cannot read from the supervisor" in caplog.text) == (end == "unreadable")
    if end != "closed":
        os.close(writer)
