"""The log: lines on standard error, as text or JSON, to the journal with their priorities.

A record may carry `fields` (`log.info(…, extra={"fields": {…}})`): they follow the text, or are members
of the JSON object.
"""

import json
import logging
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import IO, Any, Final

PROGRAM: Final = "tornado-signal"
MAX_RECENT: Final = 100  # records that the operator's page shows
_BARE: Final = re.compile(r'[^\s"=]+')
_PRIORITY: Final = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


class Formatter(logging.Formatter):
    """Formats records as `text` or `json`.

    For the journal each line begins with its priority (sd-daemon(3)). Text for the journal has no time, because the
    journal adds one.

    Args:
        form: `text` or `json`.
        journal: whether the lines go to the journal.
        common: fields of every record.
    """

    def __init__(
        self, form: str = "text", *, journal: bool = False, common: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        super().__init__()
        self._form = form
        self._journal = journal
        self._common = common

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
            text = f"{time}{record.levelname} {record.name}: {' '.join(words)}"
            if record.name == PROGRAM:  # an error that ends the program
                text = f"{PROGRAM}: {record.getMessage()}"
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


_handler: Final = logging.StreamHandler(sys.stderr)
_recent: Final = Recent()
_handler.setFormatter(Formatter())


def set_up(level: str = "info", form: str = "text", **common: object) -> None:
    """Configure logging to standard error. May be called again.

    Args:
        level: the lowest level to log.
        form: `text` or `json`.
        common: fields of every line.
    """
    _handler.setStream(sys.stderr)
    _handler.setFormatter(Formatter(form, journal=to_journal(_handler.stream, os.environ), common=common))
    logging.basicConfig(handlers=[_handler, _recent])
    logging.getLogger().setLevel(level.upper())


def recent() -> list[dict[str, str]]:
    """Return the latest log records of WARNING and above, oldest first: time, level, logger and message."""
    return list(_recent.records)


def report_error(error: Exception) -> None:
    """Print the error that ends the program: a sentence, or a line of JSON if the log is JSON."""
    level = logging.ERROR
    record = logging.LogRecord(PROGRAM, level, "", 0, str(error), None, None)
    print(_handler.format(record), file=sys.stderr)
