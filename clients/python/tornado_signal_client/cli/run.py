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

from .. import SignalClient, SignalError
from ..errors import THROUGH_PROXY
from ..types import T
from . import DEFAULT_URL, ORIGIN, ORIGIN_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE, servers, terminal
from .terminal import CommandError

OUTAGE_S = 60.0  # how long a waiting command tolerates an unavailable server


def urls(arguments: argparse.Namespace) -> tuple[str, ...]:
    return arguments.url or _from_environment(URL_VARIABLE, servers) or (DEFAULT_URL,)


def token_of(arguments: argparse.Namespace) -> Callable[[], str] | None:
    """Return a function that reads the token, or None without a file.

    The function raises CommandError if the file cannot be read.
    """
    name = arguments.token_file or os.environ.get(TOKEN_VARIABLE)
    if not name:
        return None
    path = Path(name)

    def read() -> str:
        try:
            return path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"cannot read the token in {path}: {error}") from None

    return read


def _from_environment(name: str, read: Callable[[str], T]) -> T | None:
    try:
        return read(os.environ[name]) if os.environ.get(name) else None
    except argparse.ArgumentTypeError as error:
        raise CommandError(f"environment variable {name} = {error}", 2) from None


def new_client(arguments: argparse.Namespace, *chosen: str) -> SignalClient:
    origin = arguments.origin or _from_environment(ORIGIN_VARIABLE, ORIGIN)
    return SignalClient(chosen, origin, retry_timeout_s=0, token=token_of(arguments))


def with_client(
    command: Callable[[SignalClient, argparse.Namespace], Awaitable[None]], arguments: argparse.Namespace
) -> None:
    """Run a command with a client. SIGINT and SIGTERM cancel it.

    `arguments.interrupted` is the error message after these signals, or None if they are the normal end.
    """
    stopped = False
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            nonlocal stopped
            stopped = True
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in handlers:  # `add_signal_handler` does not exist on Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
        async with new_client(arguments, *urls(arguments)) as client:
            await command(client, arguments)

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        if not stopped:
            raise
        if arguments.interrupted is not None:
            raise CommandError(arguments.interrupted) from None
    except SignalError as error:
        raise CommandError(terminal.printable(describe_failure(error))) from None
    except ModuleNotFoundError as error:
        raise CommandError(str(error)) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def describe_failure(error: SignalError) -> str:
    if not error.status:  # no server has responded
        if THROUGH_PROXY in error.text:
            return f"{error}; does the proxy work, or does the server's host belong into no_proxy?"
        return f"{error}; is the server running, and is --url right?"
    if error.code == "not-a-server":
        return f"{error}; is --url right?"
    later = f" (try again in {error.retry_after_s:g} s)" if error.retry_after_s else ""
    return f"the server says: {error}{later}"


async def read_input(what: str) -> str:
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
        raise CommandError(f"the {what} on standard input is not UTF-8") from None
    if not text:
        raise CommandError(f"standard input is empty; it must contain the {what}")
    return text
