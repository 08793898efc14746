"""Parser of the Secret's content, which is not trusted: each part is usable, absent, or damaged with a reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from certs.issue import CA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEAF_CERT: Final = "tls.crt"
LEAF_KEY: Final = "tls.key"
CA_CERT: Final = "ca.crt"  # the CA that signed the leaf, and signs the next leaves
CA_KEY: Final = "ca.key"
NEXT_CERT: Final = "next-ca.crt"  # the CA that is being added to the caBundles, and will sign the next leaf
NEXT_KEY: Final = "next-ca.key"
OLD_CERTS: Final = "old-ca.crt"  # one or several CAs that signed leaves which a replica may still serve
KEYS: Final = (LEAF_CERT, LEAF_KEY, CA_CERT, CA_KEY, NEXT_CERT, NEXT_KEY, OLD_CERTS)

MANAGED: Final = "certs.corepin.io/managed"  # "true": rotation may replace any content of the Secret
PUBLISHED: Final = "certs.corepin.io/published"  # time since which every caBundle has the signing CA
SHOWN: Final = "certs.corepin.io/shown"  # time since which every replica serves the leaf certificate
ROTATE: Final = "certs.corepin.io/rotate"  # "ca": an operator requests a new CA now

Anchors = frozenset[x509.Certificate]
# Errors by which `cryptography` refuses a certificate, at loading or when its key or an extension is first read.
UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class Secret:
    """The Secret in the API; `version` is for optimistic locking."""

    data: Mapping[str, bytes] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    version: str = ""


class Mark(NamedTuple):
    """Start time of a wait, with the fingerprint of the certificate that it is about."""

    since: datetime
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.since.isoformat()} {self.fingerprint}"


class Problem(NamedTuple):
    """A part of the Secret that cannot be used, with the reason."""

    key: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key} {self.reason}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate in the Secret and its private key; each is None if it is absent or unusable."""

    certificate: x509.Certificate | None = None
    private_key: ec.EllipticCurvePrivateKey | None = None

    @property
    def authority(self) -> CA | None:
        """Return the pair as an authority that can sign; None if certificate or key is missing."""
        return CA(self.certificate, self.private_key) if self.certificate and self.private_key else None


@dataclass(frozen=True, slots=True)
class Material:
    """The parsed content of the Secret: CAs, leaf certificate and marks."""

    ca: Pair
    next_ca: Pair
    old: tuple[x509.Certificate, ...]
    leaf: Pair
    published: Mark | None
    shown: Mark | None
    present: frozenset[str]  # keys that have any content
    problems: tuple[Problem, ...]
    is_managed: bool
    is_rotation_wanted: bool

    @property
    def anchors(self) -> Anchors:
        """Return the certificates of all CAs in the Secret, whose leaves replicas may serve now or soon."""
        own = (self.ca.certificate, self.next_ca.certificate)
        return frozenset(self.old).union(certificate for certificate in own if certificate)

    @property
    def has_marks(self) -> bool:
        """Return whether the Secret has the start time of a wait."""
        return bool(self.published or self.shown)


def read(secret: Secret) -> Material:
    """Return the parsed content of the Secret."""
    parts = _Parts(secret.data)
    ca, next_ca = parts.authority(CA_CERT, CA_KEY), parts.authority(NEXT_CERT, NEXT_KEY)
    annotations = secret.annotations
    return Material(
        ca=ca,
        next_ca=next_ca,
        old=parts.certificates(OLD_CERTS),
        leaf=parts.pair(LEAF_CERT, LEAF_KEY),
        published=_mark(annotations.get(PUBLISHED, "")),
        shown=_mark(annotations.get(SHOWN, "")),
        present=frozenset(key for key in KEYS if secret.data.get(key)),
        problems=tuple(parts.problems),
        is_managed=annotations.get(MANAGED) == "true",
        is_rotation_wanted=annotations.get(ROTATE) == "ca",
    )


def fingerprint(certificate: x509.Certificate) -> str:
    """Return a short text that identifies the certificate."""
    return hashlib.sha256(der(certificate)).hexdigest()[:32]


def der(certificate: x509.Certificate) -> bytes:
    """Return the certificate in DER, as in a TLS handshake."""
    return certificate.public_bytes(Encoding.DER)


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether the authority's key signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (*UNREADABLE, TypeError, InvalidSignature):
        return False
    return True


def dns_names(certificate: x509.Certificate) -> frozenset[str]:
    """Return the DNS names of a certificate; none if they cannot be read."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (*UNREADABLE, x509.ExtensionNotFound):
        return frozenset()
    return frozenset(names.get_values_for_type(x509.DNSName))


def bundle(anchors: Iterable[x509.Certificate]) -> bytes:
    """Return certificates as one PEM text in a fixed order, so that equal sets give equal texts."""
    return b"".join(
        certificate.public_bytes(Encoding.PEM)
        for certificate in sorted(
            anchors, key=lambda certificate: (certificate.not_valid_before_utc, der(certificate))
        )
    )


def anchors_of(pem: bytes) -> Anchors:
    """Return the certificates of a PEM text; unreadable ones are skipped, as the API server does."""
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    found = set()
    for block in pem.split(begin)[1:]:
        try:
            found.add(x509.load_pem_x509_certificate(begin + block.partition(end)[0] + end))
        except UNREADABLE:
            continue
    return frozenset(found)


def _mark(text: str) -> Mark | None:
    since, _, name = text.partition(" ")
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        return None
    return Mark(moment, name) if moment.tzinfo and name else None


class _Parts:
    """Parser of the Secret's parts that collects problems."""

    def __init__(self, data: Mapping[str, bytes]) -> None:
        self._data = data
        self.problems: list[Problem] = []

    def authority(self, cert_name: str, key_name: str) -> Pair:
        pair = self.pair(cert_name, key_name)
        if pair.certificate is None or _may_sign(pair.certificate):
            return pair
        self.problems.append(Problem(cert_name, "is not a certificate authority"))
        return Pair()

    def pair(self, cert_name: str, key_name: str) -> Pair:
        """Return the certificate and key in two keys of the Secret, without a key that does not match."""
        certificates, key = self.certificates(cert_name), self._private_key(key_name)
        certificate = certificates[0] if certificates else None
        if certificate and key:
            try:
                belongs = certificate.public_key() == key.public_key()
            except UNREADABLE:
                self.problems.append(Problem(cert_name, "has a public key that cannot be read"))
                return Pair()
            if not belongs:
                self.problems.append(Problem(key_name, f"does not belong to {cert_name}"))
                return Pair(certificate)
        self._miss(cert_name, key_name)
        return Pair(certificate, key)

    def certificates(self, name: str) -> tuple[x509.Certificate, ...]:
        pem = self._data.get(name)
        if not pem:
            return ()
        try:
            return tuple(x509.load_pem_x509_certificates(pem))
        except UNREADABLE:
            self.problems.append(Problem(name, "holds no certificate in PEM"))
            return ()

    def _private_key(self, name: str) -> ec.EllipticCurvePrivateKey | None:
        pem = self._data.get(name)
        if not pem:
            return None
        try:
            key = load_pem_private_key(pem, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            self.problems.append(Problem(name, "holds no plain private key in PEM"))
            return None
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key
        self.problems.append(Problem(name, "is not an ECDSA key"))
        return None

    def _miss(self, *names: str) -> None:
        """Record a problem if exactly one of these keys of the Secret is missing."""
        missing = [name for name in names if not self._data.get(name)]
        if len(missing) == 1:
            self.problems.append(Problem(missing[0], "is missing"))


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (*UNREADABLE, x509.ExtensionNotFound):
        return False
