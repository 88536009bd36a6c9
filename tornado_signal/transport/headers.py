"""The headers of a request, in a mapping that costs little to make."""

import functools
from collections.abc import Iterable


class Headers(dict[str, str]):
    """What handlers read of Tornado's `HTTPHeaders`: names as HTTP writes them (`Content-Length`), each with its value.

    Of a name that came more than once the values are joined with commas; `get_list` has each. In whatever case a
    name is asked for, it is found.
    """

    _repeated: dict[str, list[str]] | None = None

    def add(self, name: str, value: str) -> None:
        """One more header; the name is one that `header_name` has made."""
        if dict.__contains__(self, name):
            if self._repeated is None:
                self._repeated = {}
            self._repeated.setdefault(name, [self[name]]).append(value)
            value = f"{self[name]},{value}"
        self[name] = value

    def get_list(self, name: str) -> list[str]:
        """Every value of a name, in their order."""
        value = self.get(name)
        if value is None:
            return []
        return [value] if self._repeated is None else self._repeated.get(header_name(name), [value])

    def get_all(self) -> Iterable[tuple[str, str]]:
        """Every header."""
        return [(name, value) for name in self for value in self.get_list(name)]

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """The value of a name."""
        value = dict.get(self, name)
        return dict.get(self, header_name(name), default) if value is None else value

    def __contains__(self, name: object) -> bool:
        """Whether a name came."""
        return dict.__contains__(self, name) or dict.__contains__(self, header_name(str(name)))

    def __missing__(self, name: str) -> str:
        """The value of a name that is written in another way."""
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value


@functools.lru_cache(maxsize=256)
def header_name(sent: str | bytes) -> str:
    """A header's name as HTTP writes it, however it was sent."""
    text = sent.decode("latin-1") if isinstance(sent, bytes) else sent
    return "-".join(word.capitalize() for word in text.split("-"))
