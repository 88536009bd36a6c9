"""The command line, and the handler of all errors that end the program."""

import io
import logging
import os
import sys
from collections.abc import Sequence

from .cli import PROGRAM, make_parser
from .cli.terminal import CommandError, printable_lines

CLEAN, FAILED, DEFECT = 0, 1, 3


class _Formatter(logging.Formatter):
    """Formats records without the control characters that peers can send."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, with the arguments of the process by default. Return the exit status."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it is closed
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding != "utf-8":  # a code page of Windows
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")
    arguments = make_parser().parse_args(argv)
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has closed it, which the exit would report
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except CommandError as error:
        print(f"{PROGRAM}: {printable_lines(str(error))}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return FAILED
    except Exception:
        logging.getLogger(__name__).exception("unhandled exception; please report this bug")
        return DEFECT
    return CLEAN


if __name__ == "__main__":
    sys.exit(main())
