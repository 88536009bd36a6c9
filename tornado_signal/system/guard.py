"""Calls of functions whose failure must not stop their caller."""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


def guarded(call: Callable[..., object], *arguments: object) -> None:
    """Call a function. An exception is logged instead of raised, so that the caller continues."""
    try:
        call(*arguments)
    except Exception:
        log.exception("unhandled exception; please report this bug")
