"""The sources of settings: flags override the environment, the environment a TOML file, and that the defaults.

Every value of every source is checked, even if another source overrides it. Otherwise a mistake would surface only when
the flag is dropped.
"""

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from .settings import PREFIX, REPLACED, SETTINGS, Setting, Settings
from .value_types import VariableSecret

CONFIG_VARIABLE = PREFIX + "CONFIG"
"""The environment variable that names the TOML file."""
RELOAD_VARIABLE = PREFIX + "RELOAD_ENVIRONMENT"
"""The environment variable with the path of a file that replaces the environment on SIGHUP, if it exists.

The environment of a running process cannot be changed. The file has the format of `env -0`.
"""

NEEDS: Final = {
    "tls_certificate": "tls_key",
    "tls_key": "tls_certificate",
    "admin_address": "admin_port",
    "auth_issuer": "auth_keys",
    "auth_audience": "auth_keys",
    "auth_anonymous": "auth_keys",
    "redis_sentinel_user": "redis_sentinel",
    "redis_sentinel_password_file": "redis_sentinel",
    "turn_servers": "turn_secret_file",
    "turn_secret_file": "turn_servers",
    "turn_provider": "turn_provider_secret_file",
    "turn_provider_secret_file": "turn_provider",
    "webhook_url": "webhook_secret_file",
    "webhook_secret_file": "webhook_url",
}
"""Settings that need another one. The operator would take them for in force without it."""


class ConfigError(ValueError):
    """An invalid name or value in the environment or in the TOML file. `expected` describes the allowed values."""

    def __init__(self, where: str, value: object, expected: str) -> None:
        super().__init__(f"{where} = {value!r}: expected {expected}")
        self.where, self.value, self.expected = where, value, expected


def load(namespace: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Determine the value of each setting from flags, environment and file.

    The namespace is from a parser with the flags of `add_settings`. Raise ConfigError for an unknown name, an invalid
    value, an unreadable file, or a missing setting that another one of this command needs.
    """
    variables = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    path = variables.pop(CONFIG_VARIABLE, None)
    variables.pop(RELOAD_VARIABLE, None)
    named_by = f"environment variable {CONFIG_VARIABLE}"
    if namespace.config is not None:
        path, named_by = namespace.config, "--config"

    table = {} if path is None else _read_toml(path, named_by)
    from_file = _read_all(table, {setting.name: setting for setting in SETTINGS}, REPLACED, f"file {path}, key ")
    replaced = {PREFIX + old.upper(): PREFIX + new.upper() for old, new in REPLACED.items()}
    secrets = _take_secrets(variables)
    from_environ = secrets | _read_all(
        variables, {setting.variable: setting for setting in SETTINGS}, replaced, "environment variable "
    )
    from_flags = {setting.name: getattr(namespace, setting.name) for setting in SETTINGS if setting.name in namespace}
    values = from_file | from_environ | from_flags
    if values.get("store") == "redis":
        values.setdefault("durability", "replicated")
    sources = dict.fromkeys(from_file, "file") | dict.fromkeys(from_environ, "environment")
    settings = Settings(**values, sources=sources | dict.fromkeys(from_flags, "flag"))
    if settings.store == "leveldb" and settings.durability == "replicated":
        raise ConfigError("--durability", "replicated", "fsync or os, or --store redis")
    if settings.store == "leveldb" and settings.workers != 1:
        raise ConfigError("--workers", settings.workers, "1, or --store redis")
    defaults = Settings()
    for name, other in NEEDS.items():
        if name not in namespace.settings:
            continue
        value = getattr(settings, name)
        explicit = name in settings.sources and (other not in settings.sources or value != getattr(defaults, name))
        if explicit and value and getattr(settings, other) in (None, "", ()):
            raise ConfigError(_flag(name), "…", f"{_flag(other)} to be set as well")  # a URL can contain a secret
    return settings


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _take_secrets(variables: dict[str, str]) -> dict[str, Any]:
    """Remove the variables that hold secrets, and return them as values of their settings."""
    secrets = {}
    for setting in SETTINGS:
        name = setting.secret_variable
        if name is not None and name in variables:
            secrets[setting.name] = VariableSecret(name, os.fsencode(variables.pop(name)))
            if setting.variable in variables:
                path = variables[setting.variable]
                raise ConfigError(f"environment variable {setting.variable}", path, f"to be absent, or {name} to be")
    return secrets


def current_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment for a reload: from the file that replaces it, or the process's own."""
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
            f"environment variable {RELOAD_VARIABLE}", path, f"a readable file ({error.strerror})"
        ) from error
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _read_toml(path: str, named_by: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(named_by, path, f"a readable file ({error.strerror})") from error
    except ValueError as error:  # of UTF-8 or TOML
        raise ConfigError(named_by, path, f"a TOML file ({error})") from error


def _read_all(
    source: Mapping[str, object], settings: Mapping[str, Setting], replaced: Mapping[str, str], where: str
) -> dict[str, Any]:
    """Check one source, given its names of the settings and of their replacements, and return its values."""
    values = {}
    for name, raw in source.items():
        if name not in settings:
            if name in replaced:
                raise ConfigError(where + name, raw, f"{replaced[name]}, which replaces it")
            similar = difflib.get_close_matches(name, settings, n=1)
            if re.search("secret|password|token", name, re.IGNORECASE):
                raw = "…"  # it can be a secret
            hint = f" such as {similar[0]}" if similar else ""
            raise ConfigError(where + name, raw, f"the name of a setting{hint} (serve --help lists them)")
        setting = settings[name]
        try:
            values[setting.name] = setting.type.parse(raw)
        except ValueError as error:
            raise ConfigError(where + name, getattr(error, "entry", raw), setting.type.allowed) from None
    return values
