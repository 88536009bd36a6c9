"""Certificates and keys."""

import datetime
import ipaddress
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from .needs import require

ADDRESSES = ("127.0.0.1", "::1")
KEYS = {"ec": lambda: ec.generate_private_key(ec.SECP256R1()), "rsa": lambda: rsa.generate_private_key(65537, 2048)}


class Pair(NamedTuple):
    """A certificate for the loopback addresses and its key, each a PEM file."""

    certificate: Path
    key: Path

    @property
    def flags(self):
        return ["--tls-certificate", self.certificate, "--tls-key", self.key]

    def replace(self, other):
        self.certificate.write_bytes(other.certificate.read_bytes())
        self.key.write_bytes(other.key.read_bytes())


def make_pair(directory, name="server", kind="ec", passphrase=None, days=1, addresses=ADDRESSES, authority=None):
    """Make a certificate, of an `authority` or of its own, and its key. Without `addresses` it is an authority."""
    key = KEYS[kind]()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=days)
    issuer, signing = subject, key
    if authority:
        issuer = x509.load_pem_x509_certificate(authority.certificate.read_bytes()).subject
        signing = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    ips = [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
    names = x509.SubjectAlternativeName([*ips, x509.DNSName(name)])
    certificate = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), now, until)
        .add_extension(names if addresses else x509.BasicConstraints(True, None), critical=not addresses)
        .sign(signing, hashes.SHA256())
    )
    pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return pair


def trust(authority, directory):
    """Make a database of certificates for Chromium or Firefox in which an authority is trusted."""
    require("certutil")
    directory.mkdir(parents=True)
    flags = ["-A", "-d", f"sql:{directory}", "-n", "authority", "-t", "C,,", "-i", authority.certificate]
    subprocess.run(["certutil", "-N", "-d", f"sql:{directory}", "--empty-password"], check=True)
    subprocess.run(["certutil", *flags], check=True)


def client_context(*pairs):
    context = ssl.create_default_context(cadata="".join(pair.certificate.read_text() for pair in pairs))
    context.set_alpn_protocols(["http/1.1"])
    return context


def name_of(connection):
    """Return the common name in the server certificate of an SSLSocket or SSLObject."""
    return dict(pair for part in connection.getpeercert()["subject"] for pair in part)["commonName"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pairs")
    kinds = {"first": "ec", "second": "ec", "rsa": "rsa"}
    return {name: make_pair(directory, name, kind) for name, kind in kinds.items()}


@pytest.fixture
def trusting(pairs):
    return client_context(*pairs.values())


@pytest.fixture
def pair(tmp_path, pairs):
    """Certificate and key files for a server, with the first certificate."""
    own = Pair(tmp_path / "server.crt", tmp_path / "server.key")
    own.replace(pairs["first"])
    return own
