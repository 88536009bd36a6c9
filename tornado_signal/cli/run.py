"""A command that runs with a client until it is done or interrupted, and one sentence for each failure."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..client import APIError, SignalClient
from ..errors import OperatorError
from ..settings.sources import read_value
from ..settings.value_types import ORIGIN, ValueType
from . import DEFAULT_URL, ORIGIN_VARIABLE, SERVERS, URL_VARIABLE

T = TypeVar("T")

OUTAGE_S = 60.0  # how long a command that waits goes on without a server


def urls(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The servers, from the flag, the environment or the default."""
    return arguments.url or _from_environment(URL_VARIABLE, SERVERS) or (DEFAULT_URL,)


def _from_environment(name: str, value_type: ValueType[T]) -> T | None:
    value = os.environ.get(name)
    return read_value(f"environment variable {name}", value, value_type) if value else None


def with_client(
    arguments: argparse.Namespace,
    work: Callable[[SignalClient], Awaitable[None]],
    *,
    interrupted: str | None = None,
    servers: tuple[str, ...] | None = None,
) -> None:
    """Run something with a client of these servers, or of those of `urls`. SIGINT and SIGTERM cancel it.

    With a message for it that is a failure, without one the normal end.

    Raises:
        OperatorError: something that the user can mend.
        ConfigError: the environment is wrong.
    """
    chosen = servers or urls(arguments)
    origin = arguments.origin or _from_environment(ORIGIN_VARIABLE, ORIGIN)
    stopped = False

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            nonlocal stopped
            stopped = True
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        async with SignalClient(chosen, origin, retry_timeout_s=0) as client:
            await work(client)

    try:
        asyncio.run(main())
        sys.stdout.flush()
    except asyncio.CancelledError:
        if not stopped:
            raise
        if interrupted is not None:
            raise OperatorError(interrupted) from None
    except APIError as error:
        raise OperatorError(sentence(error)) from None
    except ModuleNotFoundError as error:
        raise OperatorError(str(error)) from error
    except BrokenPipeError:
        # The reader has closed the pipe. Python would complain about unwritten output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def sentence(error: APIError) -> str:
    """What went wrong, in one sentence."""
    if not error.status:
        return f"{error}; is the server running, and is --url right?"
    later = f" (try again in {error.retry_after_s:g} s)" if error.retry_after_s else ""
    return f"the server says: {error}{later}"


async def read_input(what: str) -> str:
    """All of standard input, without the line break at its end.

    Raises:
        OperatorError: it is empty, or not UTF-8.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        data = b""
        while piece := os.read(sys.stdin.fileno(), 65536):
            data += piece
        with contextlib.suppress(RuntimeError):  # the loop is closed: the command was interrupted
            loop.call_soon_threadsafe(end, data)

    def end(data: bytes) -> None:
        if not ended.done():
            ended.set_result(data)

    # Not one of asyncio's threads, for whose end it would wait when it is interrupted.
    threading.Thread(target=read, daemon=True).start()
    try:
        text = (await ended).decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise OperatorError(f"the {what} on standard input is not UTF-8") from None
    if not text:
        raise OperatorError(f"there is no {what} on standard input")
    return text
