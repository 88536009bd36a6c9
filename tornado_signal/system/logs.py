"""The log: lines on standard error, as text or JSON, to the journal with their priorities.

A record may carry `fields` (`log.info(…, extra={"fields": {…}})`): they end up behind the text, or in the JSON object.
"""

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import IO, Any, Final

PROGRAM: Final = "tornado-signal"
_BARE: Final = re.compile(r'[^\s"=]+')
_PRIORITY: Final = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


class Formatter(logging.Formatter):
    """Makes records into lines, `text` or `json`; for the journal each begins with its priority (sd-daemon(3)).

    Text for the journal has no time, as it adds that.

    Args:
        form: of a line.
        journal: whether it is for the journal.
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
        """The line of a record; as text with a traceback, several."""
        fields: dict[str, Any] = {**self._common, **getattr(record, "fields", {})}
        trace = _trace(record)
        if self._form == "json":
            named = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
            named["message"] = record.getMessage()
            text = json.dumps(named | fields | ({"traceback": trace} if trace else {}))
        else:
            said = [record.getMessage(), *(f"{name}={_quoted(str(value))}" for name, value in fields.items())]
            time = "" if self._journal else f"{_time(record).replace('+00:00', 'Z')} "  # the journal adds its own
            text = f"{time}{record.levelname} {record.name}: {' '.join(said)}"
            if record.name == PROGRAM:  # a sentence for the operator
                text = f"{PROGRAM}: {record.getMessage()}"
            text += "\n" + trace if trace else ""
        if not self._journal:
            return text
        priority = _PRIORITY.get(record.levelno, 5)
        return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


def _time(record: logging.LogRecord) -> str:
    """When it was, in UTC (RFC 3339)."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _quoted(value: str) -> str:
    """A value as it is, or as a JSON string where its end could not be told."""
    return value if _BARE.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def _trace(record: logging.LogRecord) -> str:
    """Where an exception came from, and of which type it is.

    Its text can quote what a peer has sent, so it is logged only for an error that ends the program.
    """
    typ, error, frames = record.exc_info or (None, None, None)
    if typ is None:
        return ""
    if record.name.endswith("system.boundary"):
        return "".join(traceback.format_exception(typ, error, frames)).rstrip("\n")
    return "Traceback (most recent call last):\n" + "".join(traceback.format_tb(frames)) + typ.__qualname__


def to_journal(stream: IO[str], environ: Mapping[str, str]) -> bool:
    """Whether what is written to a stream goes to the journal (systemd.exec(5), $JOURNAL_STREAM)."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


_handler: Final = logging.StreamHandler(sys.stderr)
_handler.setFormatter(Formatter())


def set_up(level: str = "info", form: str = "text", **common: object) -> None:
    """Log to standard error from now on, `text` or `json`, what is of this level or above; may be called again.

    What else is named is a field of every line.
    """
    _handler.setFormatter(Formatter(form, journal=to_journal(_handler.stream, os.environ), common=common))
    logging.basicConfig(handlers=[_handler])
    logging.getLogger().setLevel(level.upper())


def report_error(error: Exception) -> None:
    """Print the error that ends the program: a sentence, or a line of JSON where the log is JSON."""
    level = logging.ERROR
    record = logging.LogRecord(PROGRAM, level, "", 0, str(error), None, None)
    print(_handler.format(record), file=sys.stderr)
