"""The headers of a request, in a mapping that costs little to make."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tornado import httputil

# Names of values that differ between requests that share everything else.
LENGTH: Final = b"content-length"
AUTHORIZATION: Final = b"authorization"


class Headers(Mapping[str, str]):
    """The headers of a request, for code that reads Tornado's `HTTPHeaders`. They cannot be changed.

    `fields` are names in lower case and values, in the order of arrival. Names are case-insensitive and listed as in
    `Content-Length`. The values of a repeated name are joined with commas, and `get_list` returns each of them. Headers
    are decoded when they are first read, because most of them never are.
    """

    __slots__ = ("_decoded", "_repeated", "replaced", "sent")

    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        self.sent = dict(fields)  # the raw values by lower-case name
        self.replaced: dict[bytes, str] = {}  # the values that replace some of those
        self._repeated: dict[bytes, list[bytes]] = {}
        self._decoded: dict[str, str] = {}
        if len(self.sent) < len(fields):
            every: dict[bytes, list[bytes]] = {}
            for name, value in fields:
                every.setdefault(name, []).append(value)
            self._repeated = {name: values for name, values in every.items() if len(values) > 1}
            self.sent |= {name: b",".join(values) for name, values in self._repeated.items()}

    def with_values(self, values: dict[bytes, str]) -> "Headers":
        """Return the headers with other values of Content-Length, Authorization or Host, which they have.

        No other name: `get` may have kept its value decoded.
        """
        headers = object.__new__(Headers)
        headers.sent, headers._repeated, headers.replaced = self.sent, self._repeated, values
        headers._decoded = {} if b"host" in values else self._decoded
        return headers

    def has_several(self, name: bytes) -> bool:
        return name in self._repeated

    def copy(self) -> httputil.HTTPHeaders:
        headers = httputil.HTTPHeaders()
        for name, value in self.get_all():
            headers.add(name, value)
        return headers

    __copy__ = copy

    def __str__(self) -> str:
        return "".join(f"{name}: {value}\n" for name, value in self.get_all())

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        text = self._decoded.get(name)
        if text is None:
            if (key := _key(name)) in self.replaced:
                return self.replaced[key]
            value = self.sent.get(key)
            if value is None:
                return default
            text = value.decode("latin-1")
            if key != LENGTH and key != AUTHORIZATION:  # `with_values` shares the others
                self._decoded[name] = text
        return text

    def get_list(self, name: str) -> list[str]:
        value = self.get(name)
        if value is None:
            return []
        repeated = self._repeated.get(_key(name)) if self._repeated else None
        return [value] if repeated is None else [value.decode("latin-1") for value in repeated]

    def get_all(self) -> Iterable[tuple[str, str]]:
        return [(name, value) for name in self for value in self.get_list(name)]

    def __getitem__(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _key(name) in self.sent

    def __iter__(self) -> Iterator[str]:
        for name in self.sent:
            yield "-".join(word.capitalize() for word in name.decode("latin-1").split("-"))

    def __len__(self) -> int:
        return len(self.sent)


@functools.lru_cache
def _key(name: str) -> bytes:
    """Return the key of a header name. The cache stays small, because only code looks names up."""
    return name.encode("latin-1", "replace").lower()
