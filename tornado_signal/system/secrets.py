"""Secrets of the operator. They are only in files, because every user who lists processes sees the flags."""

import base64
from pathlib import Path
from typing import Final

from ..errors import OperatorError
from ..settings.settings import Settings

MIN_BYTES: Final = 16
MAX_BYTES: Final = 64 * 1024  # of a file


def read_bounded(path: Path, flag: str) -> bytes:
    """Return the content of a small file.

    Args:
        path: the file.
        flag: the setting that names it, for errors.

    Raises:
        OperatorError: the file cannot be read, or has more than `MAX_BYTES`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise OperatorError(f"cannot read {flag} {path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise OperatorError(f"{flag} {path} has more than {MAX_BYTES} bytes; choose the right file")
    return content


_WEBHOOK_PREFIX: Final = b"whsec_"
_NEW_WEBHOOK_SECRET: Final = 'echo "whsec_$(openssl rand -base64 32)" makes one'


def read_secret(path: Path, flag: str, min_bytes: int = MIN_BYTES) -> bytes:
    """Return the secret in a file.

    Args:
        path: the file.
        flag: the setting that names it, for errors.
        min_bytes: the minimum length.

    Raises:
        OperatorError: as `read_bounded`, or the file does not hold a valid secret.
    """
    secret = read_bounded(path, flag).rstrip(b"\r\n")
    if len(secret) < min_bytes or b"\n" in secret:
        raise OperatorError(
            f"{flag} {path} must hold one line of at least {min_bytes} bytes, the secret and nothing else; "
            "openssl rand -hex 32 makes one"
        )
    return secret


def admin_token(settings: Settings) -> bytes:
    """Return the token of the admin listener. Empty if it requires none.

    Raises:
        OperatorError: the file cannot be used.
    """
    path = settings.admin_token_file
    return b"" if path is None else read_secret(path, "--admin-token-file")


def redis_passwords(settings: Settings) -> tuple[str | None, str | None]:
    """Return the passwords for Redis and for the Sentinels. None if there is no password.

    Raises:
        OperatorError: a file cannot be read.
    """
    return (
        _read_password(settings.redis_password_file, "--redis-password-file"),
        _read_password(settings.redis_sentinel_password_file, "--redis-sentinel-password-file"),
    )


def webhook_key(settings: Settings) -> bytes:
    """Return the key that signs webhooks. Empty if there are no webhooks.

    Raises:
        OperatorError: URL or secret is missing, or the file cannot be used.
    """
    path = settings.webhook_secret_file
    if path is None:
        if settings.webhook_url is not None:
            raise OperatorError(f"--webhook-url needs --webhook-secret-file; {_NEW_WEBHOOK_SECRET}")
        return b""
    if settings.webhook_url is None:
        raise OperatorError("--webhook-secret-file needs --webhook-url")
    secret = read_secret(path, "--webhook-secret-file")
    try:
        if not secret.startswith(_WEBHOOK_PREFIX):
            raise ValueError
        key = base64.b64decode(secret.removeprefix(_WEBHOOK_PREFIX), validate=True)
        if not 24 <= len(key) <= 64:
            raise ValueError
    except ValueError:
        raise OperatorError(
            f"--webhook-secret-file {path} must hold whsec_ and the base64 of 24 to 64 bytes; {_NEW_WEBHOOK_SECRET}"
        ) from None
    return key


def _read_password(path: Path | None, flag: str) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{flag} {path}: {error}") from error
