"""The log: lines on standard error, as text or JSON, to the journal with their priorities.

A record may carry `fields` (`log.info(…, extra={"fields": {…}})`): they follow the text, or are members
of the JSON object.
"""

import contextlib
import json
import logging
import os
import re
import select
import stat
import sys
import traceback
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import IO, Any, Final

from .terminal import printable

PROGRAM: Final = "tornado-signal"
MAX_RECENT: Final = 100  # records that the operator's page shows
_BARE: Final = re.compile(r'[^\s"=]+')
_PRIORITY: Final = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


class Formatter(logging.Formatter):
    """Formats records as `text` or `json`. Those of a worker, numbered from 1, have the field `worker`.

    For the journal each line begins with its priority (sd-daemon(3)). Text for the journal has no time, because the
    journal adds one.
    """

    def __init__(self, form: str = "text", *, journal: bool = False, worker: int = 0) -> None:
        super().__init__()
        self._form = form
        self._journal = journal
        self._common = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record. Text with a traceback has several lines."""
        fields: dict[str, Any] = {**self._common, **getattr(record, "fields", {})}
        trace = _trace(record)
        if self._form == "json":
            named = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
            named["message"] = record.getMessage()
            text = json.dumps(named | fields | ({"traceback": trace} if trace else {}))
        else:
            words = [record.getMessage(), *(f"{name}={_quoted(str(value))}" for name, value in fields.items())]
            time = "" if self._journal else f"{_time(record).replace('+00:00', 'Z')} "  # the journal adds its own
            text = f"{time}{record.levelname} {record.name}: {printable(' '.join(words))}"
            if record.name == PROGRAM:  # an error that ends the program, of several lines
                text = "\n".join(map(printable, f"{PROGRAM}: {record.getMessage()}".split("\n")))
            text += "\n" + trace if trace else ""
        if not self._journal:
            return text
        priority = _PRIORITY.get(record.levelno, 5)
        return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


def _time(record: logging.LogRecord) -> str:
    """Return the time of a record in UTC (RFC 3339)."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _quoted(value: str) -> str:
    """Return a value unchanged, or as a JSON string if it contains spaces, quotes or equals signs."""
    return value if _BARE.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def _trace(record: logging.LogRecord) -> str:
    """Return the traceback and the type of an exception.

    Its message can quote data from a peer, so it is included only for an error that ends the program.
    """
    typ, error, frames = record.exc_info or (None, None, None)
    if typ is None:
        return ""
    if record.name.endswith("system.boundary"):
        return "".join(traceback.format_exception(typ, error, frames)).rstrip("\n")
    return "Traceback (most recent call last):\n" + "".join(traceback.format_tb(frames)) + typ.__qualname__


def to_journal(stream: IO[str], environ: Mapping[str, str]) -> bool:
    """Return whether a stream is connected to the journal (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class Recent(logging.Handler):
    """Keeps the latest records of WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: deque[dict[str, str]] = deque(maxlen=MAX_RECENT)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(
            {
                "time": _time(record),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
            }
        )


class StandardErrorHandler(logging.StreamHandler[IO[str]]):
    """Writes records to standard error, and never waits for its reader.

    A pipe without a reader or a stopped terminal would otherwise stop the event loop. Records that do not fit are
    dropped. The next one that fits is preceded by their number.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.dropped = 0  # the number of dropped records
        self._unreported = 0  # those since the last line
        self._is_cut = False  # the last line lacks its end
        self._descriptor: int | None = None
        self._own: int | None = None  # a descriptor to close

    def setStream(self, stream: IO[str]) -> None:
        super().setStream(stream)
        if self._own is not None:
            os.close(self._own)
        self._own = self._descriptor = None
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
            self._own = open_without_waiting(stream.fileno())
            self._descriptor = stream.fileno() if self._own is None else self._own

    def emit(self, record: logging.LogRecord) -> None:
        if self._descriptor is None:
            super().emit(record)
            return
        line = self.format(record)
        if self._unreported:
            text = f"{self._unreported} log records were dropped because standard error was not read"
            line = self.format(logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None)) + "\n" + line
        if self._write(self._descriptor, f"{line}\n".encode(errors="backslashreplace")):
            self._unreported = 0
        else:
            self.dropped += 1
            self._unreported += 1

    def _write(self, descriptor: int, data: bytes) -> bool:
        """Write data as far as possible without waiting. Return whether all of it is written."""
        writable = select.poll()
        writable.register(descriptor, select.POLLOUT)
        if self._is_cut:
            data = b"\n" + data
        with contextlib.suppress(OSError):  # its reader has closed it, or another process has just filled it
            while data and writable.poll(0):
                written = os.write(descriptor, data[: select.PIPE_BUF])  # a writable pipe has room for PIPE_BUF bytes
                self._is_cut = data[written - 1 : written] != b"\n"
                data = data[written:]
        return not data


def open_without_waiting(descriptor: int) -> int | None:
    """Open a pipe or terminal a second time, for writes that never wait. Return None for others.

    O_NONBLOCK belongs to an open file, which other processes may share. So it is not set on the given descriptor.
    """
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
        with contextlib.suppress(OSError):  # it belongs to another user
            return os.open(f"/dev/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return None


_handler: Final = StandardErrorHandler()
_recent: Final = Recent()
_handler.setFormatter(Formatter())


def set_up(level: str = "info", form: str = "text", worker: int = 0) -> None:
    """Configure logging to standard error. May be called again. The worker is 0 for the only process."""
    _handler.setStream(sys.stderr)
    _handler.setFormatter(Formatter(form, journal=to_journal(_handler.stream, os.environ), worker=worker))
    logging.basicConfig(handlers=[_handler, _recent])
    logging.getLogger().setLevel(level.upper())
    # Tornado's HTTP client logs each malformed response at INFO. Who sent the request logs when its failures begin.
    logging.getLogger("tornado.general").setLevel(logging.WARNING if level == "info" else logging.NOTSET)


def recent() -> list[dict[str, str]]:
    """Return the latest log records of WARNING and above, oldest first: time, level, logger and message."""
    return list(_recent.records)


def dropped() -> int:
    """Return the number of log records that were dropped because standard error was not read."""
    return _handler.dropped


def open_standard_streams() -> None:
    """Open the standard streams that are closed.

    Otherwise the next socket or file of the store would have the number of standard error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                os.fstat(number)
                continue
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def report_error(error: Exception) -> None:
    """Print the error that ends the program: a sentence, or a line of JSON if the log is JSON."""
    record = logging.LogRecord(PROGRAM, logging.ERROR, "", 0, str(error), None, None)
    print(_handler.format(record), file=sys.stderr)
