"""Running a command with a client, and the error message of each failure."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from ..client import APIError, SignalClient
from ..client.errors import THROUGH_PROXY
from ..errors import OperatorError
from ..settings.sources import read_value
from ..settings.value_types import ORIGIN, ValueType
from ..system import terminal
from . import DEFAULT_URL, ORIGIN_VARIABLE, SERVERS, TOKEN_VARIABLE, URL_VARIABLE

T = TypeVar("T")

OUTAGE_S = 60.0  # how long a waiting command tolerates an unavailable server


def urls(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the URLs of the servers, from the flag, the environment or the default."""
    return arguments.url or _from_environment(URL_VARIABLE, SERVERS) or (DEFAULT_URL,)


def token_of(arguments: argparse.Namespace) -> Callable[[], str] | None:
    """Return a function that reads the token, or None without a file.

    The function raises OperatorError if the file cannot be read.
    """
    name = arguments.token_file or os.environ.get(TOKEN_VARIABLE)
    if not name:
        return None
    path = Path(name)

    def read() -> str:
        try:
            return path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OperatorError(f"cannot read the token in {path}: {error}") from None

    return read


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
    """Run a coroutine function with a client. SIGINT and SIGTERM cancel it.

    Args:
        interrupted: the error message after SIGINT or SIGTERM. None if they are the normal end.
        servers: the URLs of the servers. None for those of `urls`.
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
        async with SignalClient(chosen, origin, retry_timeout_s=0, token=token_of(arguments)) as client:
            await work(client)

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        if not stopped:
            raise
        if interrupted is not None:
            raise OperatorError(interrupted) from None
    except APIError as error:
        raise OperatorError(terminal.printable(sentence(error))) from None
    except ModuleNotFoundError as error:
        raise OperatorError(str(error)) from error


def sentence(error: APIError) -> str:
    """Describe an error in one sentence."""
    if not error.status:
        if THROUGH_PROXY in error.text:
            return f"{error}; does the proxy work, or does the server's host belong into no_proxy?"
        return f"{error}; is the server running, and is --url right?"
    if error.code == "not-a-server":
        return f"{error}; is --url right?"
    later = f" (try again in {error.retry_after_s:g} s)" if error.retry_after_s else ""
    return f"the server says: {error}{later}"


async def read_input(what: str) -> str:
    """Read standard input and return it without the final line break."""
    loop = asyncio.get_running_loop()
    content: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        data = b""
        while piece := os.read(sys.stdin.fileno(), 65536):
            data += piece
        with contextlib.suppress(RuntimeError):  # the loop is closed: the command was interrupted
            loop.call_soon_threadsafe(end, data)

    def end(data: bytes) -> None:
        if not content.done():
            content.set_result(data)

    # A thread of our own: after an interruption asyncio would wait for the end of one of its threads.
    threading.Thread(target=read, daemon=True).start()
    try:
        text = (await content).decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise OperatorError(f"the {what} on standard input is not UTF-8") from None
    if not text:
        raise OperatorError(f"standard input is empty; it must contain the {what}")
    return text
