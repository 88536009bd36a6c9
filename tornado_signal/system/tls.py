"""Certificate and key for HTTPS: read, and reloaded while the server runs."""

import ssl
from pathlib import Path
from typing import NoReturn

from ..errors import OperatorError

MARKS = {"certificate": b"-----BEGIN CERTIFICATE-----", "key": b"PRIVATE KEY-----"}
"""What a PEM file must have in it."""

MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""How OpenSSL calls a key that is not the certificate's, the last of them for one of another type."""


class Tls:
    """What a listener needs to speak TLS 1.2 and 1.3, for HTTP/1.1 only.

    Args:
        certificate: a PEM file: the certificate, and the chain that leads to a root.
        key: a PEM file: its key, not encrypted.

    Attributes:
        context: for the listener, for as long as it listens.

    Raises:
        OperatorError: one of the files cannot be used.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._current = self.context = _read(certificate, key)
        # Loading another certificate into a context would keep the old one beside it if its key is of another type, and
        # a mismatch would leave it with neither. So each handshake is given the context that was read last.
        self.context.sni_callback = self._begin_handshake

    def reload(self, certificate: Path, key: Path) -> None:
        """Use what these files hold now from the next handshake on; connections that are there stay as they are.

        Raises:
            OperatorError: one of the files cannot be used; what was read before stays in use.
        """
        self._current = _read(certificate, key)

    def _begin_handshake(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


def _read(certificate: Path, key: Path) -> ssl.SSLContext:
    for path, (what, mark) in zip((certificate, key), MARKS.items(), strict=True):
        try:
            held = path.read_bytes()
        except OSError as error:
            raise OperatorError(f"cannot read the TLS {what} {path}: {error.strerror}; see --tls-{what}") from error
        if mark not in held:
            raise OperatorError(f"{path} holds no {what} as PEM; name a file that does with --tls-{what}")

    def ask() -> NoReturn:
        raise OperatorError(
            f"the key {key} is encrypted, and a server cannot ask for its passphrase; remove the passphrase"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, ask)
    except OSError as error:
        reason = "the key is another certificate's" if getattr(error, "reason", "") in MISMATCHES else error
        raise OperatorError(f"cannot use the TLS certificate {certificate} with the key {key}: {reason}") from error
    return context
