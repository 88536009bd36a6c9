"""The current settings, and the subscribers that apply them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from .settings import LIVE, SETTINGS, Settings

Prepare = Callable[[Settings], Callable[[], None]]


class LiveSettings:
    """The owner of the current settings.

    A reload changes only settings with a subscriber. Each subscriber can read the settings that it has subscribed to,
    and those that need a restart.

    Attributes:
        current: the current settings.
        names: the settings that a reload can change.
    """

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self.names: frozenset[str] = frozenset()
        self._subscribers: list[tuple[frozenset[str], Prepare]] = []

    def subscribe(self, prepare: Prepare, *names: str) -> None:
        """Subscribe to the named settings.

        Args:
            prepare: reads the files that the new settings name, and returns a function that applies the settings.
                Raises OperatorError if a file cannot be used.
            names: the fields of `Settings`.
        """
        self._subscribers.append((frozenset(names), prepare))
        self.names |= set(names)

    def apply(self, settings: Settings) -> None:
        """Apply settings, and re-read the files that they name.

        Raises:
            OperatorError: a file cannot be used. Nothing has changed.
        """
        commits = [prepare(select(settings, names)) for names, prepare in self._subscribers]
        self.current = settings
        for commit in commits:
            commit()


def select(settings: Settings, names: frozenset[str]) -> Settings:
    """Return an object with the named settings and those that need a restart, and without all others."""
    readable = {setting.name for setting in SETTINGS} - LIVE | names
    return cast(Settings, SimpleNamespace(**{name: getattr(settings, name) for name in readable}))
