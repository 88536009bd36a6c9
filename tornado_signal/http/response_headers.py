"""The headers of a response, with the interface of Tornado's `HTTPHeaders`. They save 5 % of a poll's instructions."""

import functools
from collections.abc import Iterable, Iterator, Mapping, MutableMapping

from tornado import httputil


class ResponseHeaders(MutableMapping[str, str]):
    """Headers of a response. Names are case-insensitive and kept as in `Content-Length`.

    Args:
        values: values by names that are written as in `Content-Length`.
    """

    __slots__ = ("_repeated", "_values")

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)  # those of a repeated name are joined with commas
        self._repeated: dict[str, list[str]] = NOTHING  # the values of repeated names

    def replace(self, values: Mapping[str, str]) -> None:
        """Set headers whose names are written as in `Content-Length`."""
        self._values |= values
        if self._repeated:
            self._repeated = {name: each for name, each in self._repeated.items() if name not in values}

    def add(self, name: str, value: str) -> None:
        """Add a value to those of a name.

        Raises:
            HTTPInputError: the name or the value is invalid.
        """
        httputil.HTTPHeaders().add(name, value)  # checks them
        values = [*self.get_list(name), value]
        name = _normalized(name)
        self._values[name] = ",".join(values)
        if len(values) > 1:
            self._repeated = {**self._repeated, name: values}

    def get_list(self, name: str) -> list[str]:
        name = _normalized(name)
        return list(self._repeated.get(name) or ([self._values[name]] if name in self._values else []))

    def get_all(self) -> Iterable[tuple[str, str]]:
        if not self._repeated:
            return self._values.items()
        return [(name, value) for name in self._values for value in self.get_list(name)]

    def __getitem__(self, name: str) -> str:
        return self._values[_normalized(name)]

    def __setitem__(self, name: str, value: str) -> None:
        self.replace({_normalized(name): value})

    def __delitem__(self, name: str) -> None:
        name = _normalized(name)
        del self._values[name]
        if name in self._repeated:
            self._repeated = {other: values for other, values in self._repeated.items() if other != name}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _normalized(name) in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


NOTHING: dict[str, list[str]] = {}  # is never changed


@functools.lru_cache(1000)
def _normalized(name: str) -> str:
    return "-".join(word.capitalize() for word in name.split("-"))
