"""A certificate authority and its server certificates, ECDSA P-256, as PEM bytes.

Callers need no X.509 types: `CA.create(...).issue_cert("web", ...)` returns a `LeafCert`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ORGANIZATION: Final = "corepin"
CLOCK_SKEW: Final = timedelta(minutes=5)  # a node's clock may be behind the issuer's
CA_DAYS: Final = 3650
LEAF_DAYS: Final = 365
KEY_ID_SHOWN: Final = 12  # hexadecimal digits of the key's id in an authority's name
COMMON_NAME_LIMIT: Final = 64  # limit of X.520; clients read the subject alternative names

_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.IGNORECASE)
_DNS_NAME_LIMIT: Final = 253

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadName(Exception):
    """No certificate can be issued for a name."""


@dataclass(frozen=True)
class LeafCert:
    """A certificate and its private key in PEM; `cert` does not include the CA."""

    cert: bytes
    key: bytes


@dataclass(frozen=True)
class CA:
    """A certificate authority that signs leaves only."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, *, days: int = CA_DAYS, now: datetime | None = None) -> CA:
        """Return a new authority with a new key and a name derived from it."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"{ORGANIZATION} CA {_key_id(key.public_key())[:KEY_ID_SHOWN]}")
        builder = (
            _builder(name, name, key.public_key(), now or datetime.now(UTC), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @property
    def cert(self) -> bytes:
        """The authority's certificate in PEM, for trust stores."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The authority's private key in PEM (PKCS 8, not encrypted)."""
        return _key_pem(self.private_key)

    def issue_cert(
        self,
        *dns_names: str,
        addresses: tuple[IPAddress, ...] = (),
        days: int = LEAF_DAYS,
        now: datetime | None = None,
    ) -> LeafCert:
        """Return a server certificate for DNS names and IP addresses, valid at most as long as its authority."""
        if not dns_names and not addresses:
            raise BadName("a certificate needs a DNS name or an address")
        key = ec.generate_private_key(ec.SECP256R1())
        names = [checked_dns_name(name) for name in dns_names]
        alternatives = [*map(x509.DNSName, names), *map(x509.IPAddress, addresses)]
        common = next((name for name in names if len(name) <= COMMON_NAME_LIMIT), f"{ORGANIZATION} server")
        builder = (
            _builder(
                _name(common),
                self.certificate.subject,
                key.public_key(),
                now or datetime.now(UTC),
                days,
                self.certificate.not_valid_after_utc,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.private_key.public_key()),
                critical=False,
            )
        )
        certificate = builder.sign(self.private_key, hashes.SHA256())
        return LeafCert(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def checked_dns_name(name: str) -> str:
    """Return a DNS name in lower case; raise BadName if it is not valid."""
    if _is_address(name):
        raise BadName(f"{name} is an address, not a DNS name")
    if len(name) > _DNS_NAME_LIMIT or not _DNS_NAME.fullmatch(name):
        raise BadName(f"{name[:60]!a} is not a DNS name: write e.g. corepin-webhook.corepin-system.svc")
    return name.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
    latest: datetime | None = None,
) -> x509.CertificateBuilder:
    """Return a builder with the fields that all certificates have; the certificate is valid until `latest` at most."""
    ends = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(min(ends, latest) if latest else ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_id(key: ec.EllipticCurvePublicKey) -> str:
    return x509.SubjectKeyIdentifier.from_public_key(key).digest.hex()


def _name(common: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
