"""Reloading of settings, and of the files that they name."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import OperatorError
from ..settings.live import LiveSettings
from ..settings.settings import Settings, merge
from ..settings.sources import RELOAD_VARIABLE, ConfigError
from ..system.secrets import warn_of_readable_secrets
from .resources import Resources, changed_contents, read_resources

log = logging.getLogger(__name__)

RELOAD_FAILED = "reload failed, keeping the current settings: %s. Fix it and reload again"


def reload_status(live: LiveSettings) -> str:
    """Return the end of the status line: why the last reload failed, or nothing."""
    return f"; reload failed, keeping the previous settings: {live.reload_error}" if live.reload_error else ""


Use = Callable[[Settings, Resources], None]


class Reloader:
    """Replaces the settings in force, and the files that they name: all of them, or none. `use` does not raise."""

    def __init__(self, live: LiveSettings, resources: Resources, use: Use) -> None:
        self._live = live
        self._resources = resources
        self._use = use

    def apply(self, settings: Settings) -> list[str]:
        """Apply settings, and re-read the files that they name. Return the names of the contents that have changed.

        Raise OperatorError if a file cannot be used. Nothing has changed then.
        """
        resources = read_resources(settings)
        changed = changed_contents(self._resources, resources)
        self._live.current, self._resources = settings, resources
        self._use(settings, resources)
        return changed

    def reload(self, read: Callable[[], Settings]) -> None:
        """Re-read the settings, and apply those that need no restart. Log the result and report it to `ExecReload=`.

        `read` raises ConfigError if they are invalid.
        """
        try:
            self._reload(read)
            self._live.reload_error = ""
        except (ConfigError, OperatorError) as error:
            log.error(RELOAD_FAILED, error)
            self._live.reload_error = " ".join(str(error).split())
        if path := os.environ.get(RELOAD_VARIABLE):
            try:
                Path(f"{path}.result").write_text(self._live.reload_error or "reloaded")
            except OSError as error:
                log.warning("cannot report the result of the reload: %s", error)

    def _reload(self, read: Callable[[], Settings]) -> None:
        settings, applied, waiting = merge(self._live.current, read())
        applied += self.apply(settings)
        warn_of_readable_secrets(settings)
        log.info("settings reloaded, applied: %s", ", ".join(applied) or "nothing new")
        if waiting:
            log.warning("changed settings that need a restart: %s", ", ".join(waiting))
