"""Certificate and key for HTTPS, which can be reloaded while the server runs."""

import calendar
import hashlib
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from ..errors import OperatorError

MARKS = {"certificate": b"-----BEGIN CERTIFICATE-----", "key": b"PRIVATE KEY-----"}
"""The text that each PEM file must contain."""

MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons for a key that does not match the certificate; the last one for a key of another type."""

SEQUENCE, UTC_TIME = 0x30, 0x17  # DER tags


@dataclass(frozen=True, repr=False)
class Certificate:
    """Certificate and key for TLS 1.2 and 1.3, with HTTP/1.1 only."""

    context: ssl.SSLContext = field(compare=False)  # the context of handshakes
    expires_s: int  # when the certificate expires, Unix time
    digest: bytes  # the SHA-256 of both files, by which certificates are compared


class Tls:
    """TLS for a listener, whose certificate can be replaced."""

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate  # the certificate of later handshakes. Open connections keep theirs
        self.context = certificate.context  # the context of the listener, across reloads
        # If a certificate with another key type is loaded into a context, the context also keeps the old one. After a
        # mismatch it has neither. So each handshake uses the context that was read last.
        self.context.sni_callback = self._begin_handshake

    def _begin_handshake(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self.certificate.context


def read_certificate(certificate: Path, key: Path) -> Certificate:
    """Read a PEM file with the certificate and its chain, and one with the unencrypted key."""
    digest = hashlib.sha256()
    for path, (what, mark) in zip((certificate, key), MARKS.items(), strict=True):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise OperatorError(f"cannot read the TLS {what} {path}: {error.strerror}; see --tls-{what}") from error
        if mark not in content:
            raise OperatorError(f"{path} does not contain a {what} in PEM form; name one that does with --tls-{what}")
        digest.update(content)

    def refuse_passphrase() -> NoReturn:
        raise OperatorError(
            f"the key {key} is encrypted, and a server cannot prompt for its passphrase; remove the passphrase"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, refuse_passphrase)
    except OSError as error:
        reason = "the key does not belong to the certificate" if getattr(error, "reason", "") in MISMATCHES else error
        raise OperatorError(f"cannot use the TLS certificate {certificate} with the key {key}: {reason}") from error
    return Certificate(context, expiry_s(certificate), digest.digest())


def expiry_s(certificate: Path) -> int:
    """Return the expiry of the first certificate in a PEM file, Unix time.

    `ssl` has no function for this. RFC 5280, section 4.1, defines the structure.
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
    """Yield tag and value of each DER field, which OpenSSL has accepted before."""
    at = 0
    while at < len(der):
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:  # the number of bytes that hold the size
            end = at + (size & 0x7F)
            at, size = end, int.from_bytes(der[at:end], "big")
        yield tag, der[at : at + size]
        at += size
