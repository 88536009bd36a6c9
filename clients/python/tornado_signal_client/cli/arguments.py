"""The parser of the command line, and the types of its arguments."""

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """A parser that lists its commands and their arguments, and suggests similar flags for unknown ones."""

    def __init__(self, **options: Any) -> None:
        self.arguments: list[argparse.Action] = []  # the arguments and flags, in order of definition
        self.commands: dict[str, Parser] = {}  # the parser of each command, by name
        super().__init__(**options, allow_abbrev=False)  # an abbreviation could mean another flag after an upgrade

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        self.arguments.append(super().add_argument(*names, **options))
        return self.arguments[-1]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse arguments like argparse."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self.commands[arguments.command]
            flags = [flag for argument in parser.arguments for flag in argument.option_strings]
            names = [argument.partition("=")[0] for argument in unknown if argument.startswith("--")]
            similar = [flag for name in names for flag in difflib.get_close_matches(name, flags, n=1)]
            hint = f"; did you mean {' and '.join(similar)}?" if similar else ""
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return arguments


def matching(pattern: str, allowed: str, convert: Callable[[str], T]) -> Callable[[str], T]:
    """Return the `type` of an argument that matches `pattern` and that `convert` accepts, or raises ValueError."""

    def read(text: str) -> T:
        try:
            if re.fullmatch(pattern, text):
                return convert(text)
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r}: expected {allowed}")

    return read


def _text(longest: int, allowed: str) -> Callable[[str], str]:
    # Encoding raises a ValueError if the argument was not UTF-8.
    return matching(f"(?s).{{1,{longest}}}", allowed, lambda text: text.encode().decode())


def _count(digits: str) -> int:
    if not 1 <= int(digits) <= MAX_COUNT:
        raise ValueError
    return int(digits)


def _server(url: str) -> str:
    if int((re.search(r"^https?://[^/]*:(\d+)(/|$)", url) or [0, 0])[1]) > 65535:
        raise ValueError
    return url


def servers(text: str) -> tuple[str, ...]:
    """Return the URLs in a list with commas."""
    return tuple(_url(part.strip()) for part in text.split(","))


DEFAULT_URL = "http://127.0.0.1:3000"
MAX_COUNT = 100_000
TOPIC = _text(256, "a topic of 1 to 256 characters")
INFO = _text(1024, "1 to 1024 characters")
CANDIDATE = _text(65536, "a non-empty text")
SECONDS = matching(r"[0-9]{1,8}(\.[0-9]{1,3})?", "a number of seconds", float)
COUNT = matching("[0-9]{1,18}", f"a whole number from 1 to {MAX_COUNT}", _count)
ORIGIN = matching("(?!https?://[^/]*/)[!-)+-~]{1,512}", "an origin such as https://app.example.com", str)
_url = matching(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!-+\--~]*)?",
    f"the address of a server, such as {DEFAULT_URL}; several separated by commas",
    _server,
)
