"""The settings in force."""

from .settings import Settings


class LiveSettings:
    """The only owner of the settings in force. All other parts read them here when they need them."""

    __slots__ = ("current", "reload_error")

    def __init__(self, settings: Settings) -> None:
        self.current = settings  # the settings in force. A reload or an action of the operator replaces them
        self.reload_error = ""  # why the last reload failed, or empty
