"""Where settings come from: flags win over the environment, that over a TOML file, that over the default (Contract D).

Every source is checked whole, also where another one wins: a mistake does not wait for the day the flag is dropped.
"""

import argparse
import difflib
import tomllib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from .settings import PREFIX, SETTINGS, Setting, Settings
from .value_types import Kind

T = TypeVar("T")

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all that `serve` takes: `--check`, `--config` and a flag for each setting (Contract D)."""
    parser.usage = "%(prog)s [-h] [--check] [--config FILE] [--SETTING VALUE]..."  # else an error has it all before it
    parser.add_argument("--check", action="store_true", help="check settings, data directory and ports, and exit")
    add_settings(parser, [each.name for each in SETTINGS])


def add_settings(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Add `--config`, and a flag for each of some settings; the others are read from environment and file alone.

    A wrong flag ends in the parser's usage error (exit status 2), one that is not given leaves nothing in the
    namespace. Flags are to be written in full: an abbreviation could mean something else after an update.
    """
    parser.allow_abbrev = False
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="TOML file with settings, each under its name with underscores: session_timeout_ms = 300000 "
        f"(environment: {CONFIG_VARIABLE})",
    )
    for each in [each for each in SETTINGS if each.name in names]:
        parser.add_argument(
            each.flag,
            metavar="VALUE",
            nargs=None if each.kind.alone is None else "?",
            const=each.kind.alone,
            type=flag_reader(each.kind),
            default=argparse.SUPPRESS,
            help=each.help.replace("%", "%%"),
        )


def flag_reader(kind: Kind[T]) -> Callable[[str], T]:
    """What `argparse` calls with the text of a flag."""

    def read(raw: str) -> T:
        try:
            return kind.parse(raw)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{raw!r}: expected {kind.allowed}") from None

    return read


def load(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Settle every setting.

    Args:
        namespace: The command line, from a parser that went through `add_arguments` or `add_settings`.
        environ: The environment; only what begins with `PREFIX` is looked at.

    Raises:
        ConfigError: An unknown name, or a value that is not allowed, in the environment or the file; or the
            file cannot be read; or one of two settings that belong together is missing.
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
    settings = Settings(**from_file | from_environ | from_flags)
    for one, other in ("tls_certificate", "tls_key"), ("tls_key", "tls_certificate"):
        if getattr(settings, one) is not None and getattr(settings, other) is None:
            flags = {each.name: each.flag for each in SETTINGS}
            raise ConfigError(flags[one], str(getattr(settings, one)), f"{flags[other]} beside it")
    return settings


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
