# ruff: noqa: RUF009  (a default made by setting() is a value that never changes)
"""The settings: what the operator may say, where, and what becomes of it.

The fields of `Settings` are the one table: name, type, default, what is allowed, meaning and unit. The flag,
the environment variable, the key in the TOML file, the help and every error follow from it, so a new setting
is one new field.

A flag wins over an environment variable, that over the TOML file, that over the default (Contract D). Every
source is checked whole, also where another one wins: a mistake does not wait for the day the flag is dropped.
"""

import argparse
import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from .kinds import HOST, NETWORK, ORIGIN, PATH, PORT, Kind, Network, made, one_of, several, whole, word_or

T = TypeVar("T")

PREFIX = "TORNADO_SIGNAL_"
"""What the name of every environment variable of this program begins with."""

CONFIG_VARIABLE = PREFIX + "CONFIG"
"""The environment variable that names the TOML file."""


class ConfigError(ValueError):
    """Something in the environment or in the file that cannot be used.

    Attributes:
        where: The environment variable, or the file and the key in it.
        value: What stands there.
        expected: What may stand there.
    """

    def __init__(self, where: str, value: object, expected: str) -> None:
        super().__init__(f"{where} = {value!r}: expected {expected}")
        self.where, self.value, self.expected = where, value, expected


# The settings.


@dataclass(frozen=True)
class Setting:
    """One setting and its names.

    Attributes:
        name: Its field in `Settings`, and its key in the TOML file.
        default: What it is unless set, as it would be written in the TOML file.
        kind: What it may be.
        meaning: What it does, for `--help`.
        unit: What its number counts, or empty.
    """

    name: str
    default: object
    kind: Kind[object]
    meaning: str
    unit: str

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.name.upper()

    @property
    def help(self) -> str:
        """All that `--help` says about it."""
        unit = f"unit: {self.unit}; " if self.unit else ""
        found = f"{unit}default: {self.default}; environment: {self.variable}"
        return f"{self.meaning} [{self.kind.allowed}] ({found})"


def setting(default: object, kind: Kind[T], meaning: str, unit: str = "") -> T:
    """A field of `Settings`; the arguments are those of `Setting`."""
    described = {"default": default, "kind": kind, "meaning": meaning, "unit": unit}
    return dataclasses.field(default=kind.parse(default), metadata=described)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting, checked. A relative path counts from the directory that the server is started in."""

    address: str = setting("127.0.0.1", HOST, "address to listen on")
    port: int = setting(3000, PORT, "port to listen on; 0 picks a free one, and the chosen one is logged")
    data_dir: Path = setting("data", PATH, "the LevelDB directory, created if missing")
    # A tenth of a second to a week: sessions are short-lived (Specification 1), and no peer answers faster.
    session_timeout_ms: int = setting(300_000, whole(100, 604_800_000), "lifetime of a session", "ms")
    sweep_interval_ms: int = setting(1000, whole(10, 3_600_000), "pause between two sweeps of what has expired", "ms")
    durability: Literal["fsync", "os"] = setting(
        "fsync",
        one_of("fsync", "os"),
        "what a 200 means: on disk, safe against power loss (fsync), or safe against the process dying (os)",
    )
    codes: Literal["random", "content"] = setting(
        "random",
        one_of("random", "content"),
        "how session codes are made: at random, or from origin, topic and offer, the same for the same",
    )
    allowed_origins: frozenset[str] | None = setting(
        "any", word_or("any", None, made(frozenset, several(ORIGIN))), "the origins that are served"
    )
    trusted_proxies: tuple[Network, ...] = setting(
        "none",
        word_or("none", (), several(NETWORK)),
        "the proxies whose X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host count",
    )
    admin_port: int | None = setting(
        "off",
        word_or("off", None, PORT),
        "port of a second listener, on loopback, for /metrics, /healthz and /readyz; 0 picks a free one",
    )


SETTINGS = tuple(Setting(field.name, **field.metadata) for field in dataclasses.fields(Settings))
"""The settings, in the order of their table."""


# Where they come from.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting, and `--config` and `--check` (Contract D).

    A wrong flag ends in the parser's usage error (exit status 2), one that is not given leaves nothing in the
    namespace. Flags are to be written in full: an abbreviation could mean something else after an update.
    """
    parser.allow_abbrev = False
    parser.add_argument("--check", action="store_true", help="check settings, data directory and ports, and exit")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with settings, each under its name with underscores: session_timeout_ms = 300000 "
        f"(environment: {CONFIG_VARIABLE})",
    )
    for each in SETTINGS:
        parser.add_argument(
            each.flag,
            type=_flag_reader(each.kind),
            default=argparse.SUPPRESS,
            help=each.help.replace("%", "%%"),
        )


def _flag_reader(kind: Kind[T]) -> Callable[[str], T]:
    def read(raw: str) -> T:
        try:
            return kind.parse(raw)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{raw!r}: expected {kind.allowed}") from None

    return read


def load(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Settle every setting.

    Args:
        namespace: The command line, from a parser that went through `add_arguments`.
        environ: The environment; only what begins with `PREFIX` is looked at.

    Raises:
        ConfigError: An unknown name, or a value that is not allowed, in the environment or the file; or the
            file cannot be read.
    """
    variables = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    path = variables.pop(CONFIG_VARIABLE, None)
    named_by = f"environment variable {CONFIG_VARIABLE}"
    if namespace.config is not None:
        path, named_by = namespace.config, "--config"

    table = {} if path is None else _read_toml(path, named_by)
    from_file = _read(table, {each.name: each for each in SETTINGS}, f"file {path}, key ")
    from_environ = _read(variables, {each.variable: each for each in SETTINGS}, "environment variable ")
    from_flags = {each.name: getattr(namespace, each.name) for each in SETTINGS if each.name in namespace}
    return Settings(**from_file | from_environ | from_flags)


def _read_toml(path: str, named_by: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(named_by, path, f"a file that can be read ({error.strerror})") from error
    except ValueError as error:  # neither UTF-8 nor TOML raises anything more special
        raise ConfigError(named_by, path, f"a TOML file ({error})") from error


def _read(source: Mapping[str, object], known: Mapping[str, Setting], where: str) -> dict[str, Any]:
    """Check one source whole: `known` are the names it may use, `where` goes before them in messages."""
    values = {}
    for name, raw in source.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" such as {near[0]}" if near else ""
            raise ConfigError(where + name, raw, f"the name of a setting{hint} (serve --help lists them)")
        try:
            values[known[name].name] = known[name].kind.parse(raw)
        except ValueError:
            raise ConfigError(where + name, raw, known[name].kind.allowed) from None
    return values
