"""Keys and tokens for tests of authorization."""

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

SECRET = b"a secret that is also long enough for HS512 and so has 64 bytes."
MAKERS = {
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "RS256": lambda: rsa.generate_private_key(65537, 2048),
}


def public_pem(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private_pem(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_secret(folder, name="main", secret=SECRET):
    """Write a key of HS256 to a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.secret").write_bytes(secret + b"\n")
    return folder


def make_token(claims, secret=SECRET, *, name="main", algorithm="HS256", **header):
    return jwt.encode(claims, secret, algorithm, headers={"kid": name} | header)
