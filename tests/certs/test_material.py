"""Reading of the Secret, also of one that was edited by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from certs.issue import CA
from certs.material import (
    CA_CERT,
    CA_KEY,
    LEAF_CERT,
    LEAF_KEY,
    PUBLISHED,
    Secret,
    anchors_of,
    bundle,
    dns_names,
    read,
)
from tests.certs.altered import CURVE, EXTENSION, VERSION, altered
from tests.tables import table

OURS = CA.create()
LEAF = OURS.issue_cert("a.svc")
RSA = rsa.generate_private_key(65537, 2048)


def pem(key: rsa.RSAPrivateKey, password: bytes | None = None) -> bytes:
    """Return a key in PEM."""
    protection = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)


def bare() -> bytes:
    """Return a self-signed certificate without any extension."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bare")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(RSA.public_key())
    times = builder.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2090, 1, 1, tzinfo=UTC)
    )
    return times.serial_number(1).sign(RSA, hashes.SHA256()).public_bytes(Encoding.PEM)


@table(
    "data, problem",
    {
        "leaf": ({CA_CERT: LEAF.cert, CA_KEY: LEAF.key}, "ca.crt is not a certificate authority"),
        "half": ({CA_CERT: bare(), CA_KEY: b""}, "ca.key is missing"),
        "RSA": ({CA_CERT: bare(), CA_KEY: pem(RSA)}, "ca.key is not an ECDSA key"),
        "encrypted": (
            {LEAF_CERT: LEAF.cert, LEAF_KEY: pem(RSA, b"secret")},
            "tls.key holds no plain private key in PEM",
        ),
        "mixed": ({LEAF_CERT: LEAF.cert, LEAF_KEY: OURS.key}, "tls.key does not belong to tls.crt"),
        "version": (
            {CA_CERT: altered(OURS.cert, VERSION), CA_KEY: OURS.key},
            "ca.crt holds no certificate in PEM",
        ),
        "curve": (
            {CA_CERT: altered(OURS.cert, CURVE), CA_KEY: OURS.key},
            "ca.crt has a public key that cannot be read",
        ),
        "curve of the leaf": (
            {LEAF_CERT: altered(LEAF.cert, CURVE), LEAF_KEY: LEAF.key},
            "tls.crt has a public key that cannot be read",
        ),
        "extension": (
            {CA_CERT: altered(OURS.cert, EXTENSION), CA_KEY: OURS.key},
            "ca.crt is not a certificate authority",
        ),
    },
)
def test_unusable_part_is_named(data: dict[str, bytes], problem: str) -> None:
    """Each unusable part is reported with its key and the reason, and is not trusted as a CA."""
    material = read(Secret(data))

    assert problem in [str(found) for found in material.problems]
    assert material.ca.authority is None
    assert material.leaf.authority is None


def test_bundle_and_anchors_are_one_to_one() -> None:
    """A bundle has its certificates in a fixed order, and reading a bundle skips garbage."""
    other = CA.create()
    both = frozenset({OURS.certificate, other.certificate})
    garbage = b"x\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" + altered(
        OURS.cert, VERSION
    )

    assert bundle([OURS.certificate, other.certificate]) == bundle([other.certificate, OURS.certificate])
    assert anchors_of(OURS.cert + garbage + other.cert) == both == anchors_of(bundle(both))
    assert anchors_of(b"") == frozenset()


def test_names_that_cannot_be_read_are_none() -> None:
    """A certificate with a repeated extension has no DNS names."""
    assert dns_names(x509.load_pem_x509_certificate(LEAF.cert)) == {"a.svc"}
    assert dns_names(x509.load_pem_x509_certificate(altered(LEAF.cert, EXTENSION))) == frozenset()


@pytest.mark.parametrize("text", ["", "x y", "2026-11-20T12:00:00 abc", "2026-11-20T12:00:00+00:00"])
def test_garbled_mark_is_no_mark(text: str) -> None:
    """A start time without zone or certificate is ignored, so that the wait restarts."""
    assert read(Secret(annotations={PUBLISHED: text})).published is None
