"""The allow-list of origins, with wildcards for subdomains."""

import functools
import re
from dataclasses import dataclass
from typing import Final

WILDCARD: Final = "*."
_LABEL = "[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?"
PATTERN: Final = rf"https?://\*\.(localhost|{_LABEL}(\.{_LABEL})+)(:[0-9]{{1,5}})?"
"""An origin whose first label is the wildcard, in lower case as browsers send host names."""


@dataclass(frozen=True)
class AllowedOrigins:
    """An allow-list."""

    # Origins, compared byte for byte, and patterns. A pattern matches every subdomain at any depth, but not the domain
    # itself.
    entries: frozenset[str]

    @functools.cached_property
    def _patterns(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        patterns = []
        for entry in sorted(entry for entry in self.entries if WILDCARD in entry):
            scheme, _, rest = entry.partition(WILDCARD)
            patterns.append((entry, re.compile(rf"{re.escape(scheme)}({_LABEL}\.)+{re.escape(rest)}")))
        return tuple(patterns)

    @functools.cached_property
    def _by_host(self) -> dict[str, str]:
        return {_host(entry): entry for entry in sorted(self.entries)}

    def find_similar(self, origin: str) -> str | None:
        """Return an entry that differs from an origin only by the scheme, `www.` or the wildcard, or None."""
        return self._by_host.get(_host(origin))

    def find(self, origin: str) -> str | None:
        """Return the entry that allows an origin, or None."""
        if origin in self.entries:
            return origin if WILDCARD not in origin else None
        return next((entry for entry, pattern in self._patterns if pattern.fullmatch(origin)), None)

    def __contains__(self, origin: str) -> bool:
        return self.find(origin) is not None


def _host(origin: str) -> str:
    return re.sub(r"^https?://(www\.|\*\.)?", "", origin)
