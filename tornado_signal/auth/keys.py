"""Keys that verify tokens. The algorithm belongs to the key, never to the token."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import OperatorError
from ..settings.value_types import VariableSecret
from ..system.secrets import read_bounded, read_secret

FLAG: Final = "--auth-keys"
MIN_SECRET_BYTES: Final = 32
MIN_RSA_BITS: Final = 2048
VARIABLE_KEY: Final = "main"  # the name of a key in an environment variable
NAME: Final = re.compile("[A-Za-z0-9._-]{1,128}")


class Key(NamedTuple):
    """A key."""

    name: str  # the `kid` of its tokens
    algorithm: str  # `HS256`, `EdDSA`, `ES256` or `RS256`
    source: bytes  # the content of its file, by which a replaced key differs from the earlier one
    value: Any  # the key as PyJWT takes it. It does not count in comparisons beyond `source`

    def is_same(self, other: "Key | None") -> bool:
        """Return whether another key verifies the same tokens."""
        return other is not None and (self.algorithm, self.source) == (other.algorithm, other.source)


def load_keys(path: Path | VariableSecret) -> dict[str, Key]:
    """Return the keys in a file or a directory by name, or the one in an environment variable.

    Hidden entries of a directory are ignored, because mounted secrets of Kubernetes contain some.
    """
    if isinstance(path, VariableSecret):
        secret = read_secret(path, "the key in", MIN_SECRET_BYTES)
        return {VARIABLE_KEY: Key(VARIABLE_KEY, "HS256", secret, secret)}
    try:
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise OperatorError(f"cannot read {FLAG} {path}: {error.strerror}") from error
    keys: dict[str, Key] = {}
    for file in files:
        key = load_key(file)
        if key.name in keys:
            raise OperatorError(f"{FLAG} {path} has two keys named {key.name}; give each its own name")
        keys[key.name] = key
    if not keys:
        raise OperatorError(f"{FLAG} {path} holds no key; name a file NAME.secret or NAME.pem")
    return keys


def load_key(file: Path) -> Key:
    """Return the key in a file named NAME.secret or NAME.pem."""
    if not NAME.fullmatch(file.stem):
        raise OperatorError(f"the key {file}: a name has 1 to 128 letters, digits, dots, underscores and hyphens")
    if file.suffix == ".secret":
        secret = read_secret(file, "the key", MIN_SECRET_BYTES)
        if b"-----BEGIN" in secret:
            raise OperatorError(f"the key {file} holds a key in PEM form; name it {file.stem}.pem")
        return Key(file.stem, "HS256", secret, secret)
    if file.suffix == ".pem":
        return Key(file.stem, *_read_public_key(file, read_bounded(file, "the key")))
    raise OperatorError(f"the key {file}: the name of a key ends in .secret or .pem")


def load_signing_key(file: Path) -> Key:
    """Return the key that makes tokens, from NAME.secret, or from NAME.pem with a private key."""
    if file.suffix != ".pem":
        return load_key(file)
    with needing_cryptography(file):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
    try:
        private = load_pem_private_key(read_bounded(file, "the key"), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OperatorError(f"the key {file} is not a private key in PEM form without a passphrase") from error
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    algorithm, source, _ = _read_public_key(file, public)
    return Key(file.stem, algorithm, source, private)


@contextlib.contextmanager
def needing_cryptography(file: Path) -> Iterator[None]:
    """Explain a missing package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise OperatorError(f"the key {file} needs the extra auth; in the checkout: pip install '.[auth]'") from error


def _read_public_key(file: Path, source: bytes) -> tuple[str, bytes, Any]:
    with needing_cryptography(file):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    if b"PRIVATE KEY" in source:
        raise OperatorError(f"the key {file} holds a private key; the server needs only the public one")
    try:
        key = load_pem_public_key(source)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise OperatorError(f"the key {file} holds no public key in PEM form") from error
    if isinstance(key, ed25519.Ed25519PublicKey):
        return "EdDSA", source, key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return "ES256", source, key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= MIN_RSA_BITS:
        return "RS256", source, key
    raise OperatorError(
        f"the key {file} must hold a key of Ed25519 (EdDSA), of P-256 (ES256), "
        f"or of RSA with {MIN_RSA_BITS} bits or more (RS256)"
    )
