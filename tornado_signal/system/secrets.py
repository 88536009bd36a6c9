"""Secrets of the operator: in files or environment variables, because every user who lists processes sees the flags."""

import base64
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..errors import OperatorError
from ..settings.settings import SETTINGS, Settings
from ..settings.value_types import VariableSecret

log = logging.getLogger(__name__)

MIN_BYTES: Final = 16
MAX_BYTES: Final = 64 * 1024  # of a file


def read_bounded(path: Path | VariableSecret, flag: str) -> bytes:
    """Return the content of a file of at most `MAX_BYTES`, or of an environment variable.

    Errors name the setting `flag`.
    """
    if isinstance(path, VariableSecret):
        return path.content
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise OperatorError(f"cannot read {flag} {path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise OperatorError(f"{flag} {path} has more than {MAX_BYTES} bytes; choose the right file")
    return content


_WEBHOOK_PREFIX: Final = b"whsec_"


def read_secret(path: Path | VariableSecret, flag: str, min_bytes: int = MIN_BYTES) -> bytes:
    """Return the secret in a file or an environment variable."""
    secret = read_bounded(path, flag).rstrip(b"\r\n")
    if len(secret) < min_bytes or b"\n" in secret:
        raise OperatorError(
            f"{flag} {path} must hold one line of at least {min_bytes} bytes, the secret and nothing else; "
            "openssl rand -hex 32 makes one"
        )
    return secret


def admin_token(settings: Settings) -> bytes:
    """Return the token of the admin listener. Empty if it requires none."""
    path = settings.admin_token_file
    return b"" if path is None else read_secret(path, "--admin-token-file")


def redis_passwords(settings: Settings) -> tuple[str | None, str | None]:
    """Return the passwords for Redis and for the Sentinels. None if there is no password."""
    return (
        _read_password(settings.redis_password_file, "--redis-password-file"),
        _read_password(settings.redis_sentinel_password_file, "--redis-sentinel-password-file"),
    )


def webhook_key(path: Path | VariableSecret) -> bytes:
    """Return the key that signs webhooks."""
    secret = read_secret(path, "--webhook-secret-file")
    try:
        if not secret.startswith(_WEBHOOK_PREFIX):
            raise ValueError
        key = base64.b64decode(secret.removeprefix(_WEBHOOK_PREFIX), validate=True)
        if not 24 <= len(key) <= 64:
            raise ValueError
    except ValueError:
        raise OperatorError(
            f"--webhook-secret-file {path} must hold whsec_ and the base64 of 24 to 64 bytes; "
            'echo "whsec_$(openssl rand -base64 32)" makes one'
        ) from None
    return key


def _read_password(path: Path | VariableSecret | None, flag: str) -> str | None:
    if path is None:
        return None
    try:
        password = read_bounded(path, flag).decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise OperatorError(f"{flag} {path}: {error}") from error
    if not password:
        raise OperatorError(f"{flag} {path} is empty; omit it if there is no password")
    return password


def warn_of_readable_secrets(settings: Settings) -> None:
    """Log a warning for each file with a secret that every user of this machine can read."""
    for path in _secret_files(settings):
        try:
            whole = path.resolve(strict=True)
            readable = whole.stat().st_mode & stat.S_IROTH
            if readable and all(parent.stat().st_mode & stat.S_IXOTH for parent in whole.parents):
                log.warning(
                    "%s holds a secret, and every user of this machine can read it; run: chmod o= %s", path, whole
                )
        except OSError:  # reading it has succeeded or failed before
            continue


def _secret_files(settings: Settings) -> Iterator[Path]:
    for setting in SETTINGS:
        path = getattr(settings, setting.name)
        if isinstance(path, Path) and (setting.secret_variable or setting.name == "tls_key"):
            files = path.iterdir() if path.is_dir() else [path]
            public = ".pem" if setting.name == "auth_keys" else None
            yield from (file for file in files if file.is_file() and file.suffix != public)
