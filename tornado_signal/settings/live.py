"""The settings in force, and who applies them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from .settings import LIVE, SETTINGS, Settings

Prepare = Callable[[Settings], Callable[[], None]]


class LiveSettings:
    """The one owner of the settings in force.

    A reload changes only settings that somebody has subscribed to. Each subscriber gets those, and the ones that need
    a restart: what it has not subscribed to, it cannot read.

    Attributes:
        current: all settings in force.
        names: those that a reload can change.
    """

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self.names: frozenset[str] = frozenset()
        self._subscribers: list[tuple[frozenset[str], Prepare]] = []

    def subscribe(self, prepare: Prepare, *names: str) -> None:
        """Apply the named settings from now on.

        Args:
            prepare: reads the files of new settings, and returns what applies them; raises OperatorError.
            names: the fields of `Settings`.
        """
        self._subscribers.append((frozenset(names), prepare))
        self.names |= set(names)

    def apply(self, settings: Settings) -> None:
        """Put settings in force, and read their files again.

        Raises:
            OperatorError: a file cannot be used; nothing has changed then.
        """
        commits = [prepare(select(settings, names)) for names, prepare in self._subscribers]
        self.current = settings
        for commit in commits:
            commit()


def select(settings: Settings, names: frozenset[str]) -> Settings:
    """Return the named settings, and those that need a restart; others cannot be read from it."""
    readable = {each.name for each in SETTINGS} - LIVE | names
    return cast(Settings, SimpleNamespace(**{name: getattr(settings, name) for name in readable}))
