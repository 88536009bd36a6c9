"""Certificate and key for HTTPS: read, and reloaded while the server runs."""

import calendar
import re
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ..errors import OperatorError

MARKS = {"certificate": b"-----BEGIN CERTIFICATE-----", "key": b"PRIVATE KEY-----"}
"""What a PEM file must have in it."""

MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""How OpenSSL calls a key that is not the certificate's, the last of them for one of another type."""

SEQUENCE, UTC_TIME = 0x30, 0x17  # tags of DER


class Tls:
    """What a listener needs to speak TLS 1.2 and 1.3, for HTTP/1.1 only.

    Args:
        certificate: a PEM file: the certificate, and the chain that leads to a root.
        key: a PEM file: its key, not encrypted.

    Attributes:
        context: for the listener, for as long as it listens.
        expires_s: when the certificate expires, Unix time.

    Raises:
        OperatorError: one of the files cannot be used.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._current = self.context = _read(certificate, key)
        self.expires_s = expiry_s(certificate)
        # Loading another certificate into a context would keep the old one beside it if its key is of another type, and
        # a mismatch would leave it with neither. So each handshake is given the context that was read last.
        self.context.sni_callback = self._begin_handshake

    def reload(self, certificate: Path, key: Path) -> None:
        """Use what these files hold now from the next handshake on; connections that are there stay as they are.

        Raises:
            OperatorError: one of the files cannot be used; what was read before stays in use.
        """
        self._current = _read(certificate, key)
        self.expires_s = expiry_s(certificate)

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


def expiry_s(certificate: Path) -> int:
    """Return when the first certificate of a PEM file expires, Unix time.

    The module `ssl` reads a certificate of one's own only to show it. The structure is in RFC 5280, 4.1.
    """
    pem = re.search(
        r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", certificate.read_text("latin-1"), re.DOTALL
    )
    assert pem is not None
    (_, whole), *_ = _fields(ssl.PEM_cert_to_DER_cert(pem[0]))
    (_, signed), *_ = _fields(whole)
    _algorithm, _issuer, validity, *_ = (value for tag, value in _fields(signed) if tag == SEQUENCE)
    _, (tag, value) = _fields(validity)
    text = value.decode()
    if tag == UTC_TIME:  # two digits of the year
        text = ("19" if text >= "50" else "20") + text
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))


def _fields(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and value of each field of some DER."""
    at = 0
    while at < len(der):
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:  # the number of bytes that hold the size
            end = at + (size & 0x7F)
            at, size = end, int.from_bytes(der[at:end], "big")
        yield tag, der[at : at + size]
        at += size
