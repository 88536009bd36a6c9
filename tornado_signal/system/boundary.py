"""The handler of all errors that end the program."""

import logging
import sys
from collections.abc import Callable

from ..errors import OperatorError
from ..settings.sources import ConfigError
from . import logs

CLEAN = 0
OPERATOR = 1
USAGE = 2
DEFECT = 3


def guarded(command: Callable[[], None]) -> int:
    try:
        command()
    except (ConfigError, OperatorError) as error:
        logs.report_error(error)
        return USAGE if isinstance(error, ConfigError) else OPERATOR
    except KeyboardInterrupt:
        print("tornado-signal: interrupted", file=sys.stderr)
        return OPERATOR
    except Exception:
        logging.getLogger(__name__).exception("unhandled exception; please report this bug")
        return DEFECT
    return CLEAN
