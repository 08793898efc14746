"""Certificates with changed bytes, with which `cryptography` does not read them in whole."""

from __future__ import annotations

import ssl

# Old and new bytes: of the version, of the public key's curve, and of an extension's id, which is then there twice.
VERSION = (bytes.fromhex("a003020102"), bytes.fromhex("a003020103"))
CURVE = (bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030106"))
EXTENSION = (bytes.fromhex("0603551d0f"), bytes.fromhex("0603551d0e"))


def altered(cert: bytes, change: tuple[bytes, bytes]) -> bytes:
    """Return a certificate in PEM with some of its bytes replaced."""
    encoded = ssl.PEM_cert_to_DER_cert(cert.decode())
    assert change[0] in encoded
    return ssl.DER_cert_to_PEM_cert(encoded.replace(*change, 1)).encode()
