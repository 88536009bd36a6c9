"""Where settings come from: flags win over the environment, that over a TOML file, that over the default (Contract D).

Every source is checked whole, also where another one wins: a mistake does not wait for the day the flag is dropped.
"""

import argparse
import difflib
import os
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

from .settings import PREFIX, REPLACED, SETTINGS, Setting, Settings
from .value_types import ValueType

T = TypeVar("T")

CONFIG_VARIABLE = PREFIX + "CONFIG"
"""The environment variable that names the TOML file."""
RELOAD_VARIABLE = PREFIX + "RELOAD_ENVIRONMENT"
"""The environment variable that names a file which is read in place of the environment on SIGHUP, if it is there.

A process cannot be given another environment. The file holds one as `env -0` writes it.
"""


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


def load(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Settle every setting, with a command line from a parser that went through `add_settings`.

    Raises:
        ConfigError: An unknown name, or a value that is not allowed, in the environment or the file; or the
            file cannot be read; or one of two settings that belong together is missing.
    """
    variables = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    path = variables.pop(CONFIG_VARIABLE, None)
    variables.pop(RELOAD_VARIABLE, None)
    named_by = f"environment variable {CONFIG_VARIABLE}"
    if namespace.config is not None:
        path, named_by = namespace.config, "--config"

    table = {} if path is None else _read_toml(path, named_by)
    from_file = _read_all(table, {each.name: each for each in SETTINGS}, REPLACED, f"file {path}, key ")
    replaced = {PREFIX + old.upper(): PREFIX + new.upper() for old, new in REPLACED.items()}
    from_environ = _read_all(variables, {each.variable: each for each in SETTINGS}, replaced, "environment variable ")
    from_flags = {each.name: getattr(namespace, each.name) for each in SETTINGS if each.name in namespace}
    values = from_file | from_environ | from_flags
    if values.get("store") == "redis":
        values.setdefault("durability", "replicated")
    settings = Settings(**values)
    if settings.store == "leveldb" and settings.durability == "replicated":
        raise ConfigError("--durability", "replicated", "fsync or os, or --store redis beside it")
    if settings.store == "leveldb" and settings.workers != 1:
        raise ConfigError("--workers", settings.workers, "1, or --store redis beside it")
    pair = ("--tls-certificate", settings.tls_certificate), ("--tls-key", settings.tls_key)
    for (flag, set_to), (other, other_set_to) in (pair, pair[::-1]):
        if set_to is not None and other_set_to is None:
            raise ConfigError(flag, str(set_to), f"{other} beside it")
    return settings


def current_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment to read settings from again: what the file for that holds, or the process's own.

    Raises:
        ConfigError: The file cannot be read.
    """
    path = environ.get(RELOAD_VARIABLE)
    if path is None:
        return environ
    try:
        with open(path, "rb") as file:
            pairs = os.fsdecode(file.read()).split("\0")
    except FileNotFoundError:
        return environ
    except OSError as error:
        raise ConfigError(
            f"environment variable {RELOAD_VARIABLE}", path, f"a file that can be read ({error.strerror})"
        ) from error
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def read_value(where: str, raw: object, value_type: ValueType[T]) -> T:
    """The value that stands somewhere.

    Raises:
        ConfigError: It is not allowed.
    """
    try:
        return value_type.parse(raw)
    except ValueError:
        raise ConfigError(where, raw, value_type.allowed) from None


def _read_toml(path: str, named_by: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(named_by, path, f"a file that can be read ({error.strerror})") from error
    except ValueError as error:  # neither UTF-8 nor TOML raises anything more special
        raise ConfigError(named_by, path, f"a TOML file ({error})") from error


def _read_all(
    source: Mapping[str, object], known: Mapping[str, Setting], replaced: Mapping[str, str], where: str
) -> dict[str, Any]:
    """Check one source whole.

    Args:
        source: its names and values.
        known: the names that it may use.
        replaced: the names that were removed, each with the one to use instead.
        where: what goes before names in messages.
    """
    values = {}
    for name, raw in source.items():
        if name not in known:
            if name in replaced:
                raise ConfigError(where + name, raw, f"{replaced[name]}, which replaces it")
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" such as {near[0]}" if near else ""
            raise ConfigError(where + name, raw, f"the name of a setting{hint} (serve --help lists them)")
        values[known[name].name] = read_value(where + name, raw, known[name].type)
    return values
