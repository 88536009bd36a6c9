"""Secrets of the operator: only in files, as flags are seen by everybody who lists processes."""

from pathlib import Path
from typing import Final

from ..errors import OperatorError
from ..settings.settings import Settings

MIN_BYTES: Final = 16


def read_secret(path: Path, flag: str) -> bytes:
    """The secret that a file holds, which a flag names.

    Raises:
        OperatorError: it cannot be read, or is none.
    """
    try:
        secret = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise OperatorError(f"cannot read {flag} {path}: {error.strerror}") from error
    if len(secret) < MIN_BYTES or b"\n" in secret:
        raise OperatorError(
            f"{flag} {path} must hold one line of at least {MIN_BYTES} bytes, the secret alone; "
            "openssl rand -hex 32 makes one"
        )
    return secret


def admin_token(settings: Settings) -> bytes:
    """What the admin listener asks for; empty for nothing.

    Raises:
        OperatorError: it cannot be used.
    """
    path = settings.admin_token_file
    return b"" if path is None else read_secret(path, "--admin-token-file")


def redis_passwords(settings: Settings) -> tuple[str | None, str | None]:
    """The passwords for Redis and for its Sentinels; None for none.

    Raises:
        OperatorError: one cannot be read.
    """
    return (
        _read_password(settings.redis_password_file, "--redis-password-file"),
        _read_password(settings.redis_sentinel_password_file, "--redis-sentinel-password-file"),
    )


def _read_password(path: Path | None, flag: str) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{flag} {path}: {error}") from error
