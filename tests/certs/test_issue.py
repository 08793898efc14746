"""Issued CAs and leaves: extensions, limits, and verification by strict clients."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from certs.issue import CA, COMMON_NAME_LIMIT, BadName, LeafCert, checked_dns_name

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def loaded(leaf: LeafCert) -> x509.Certificate:
    """Return the certificate of a leaf as a value."""
    return x509.load_pem_x509_certificate(leaf.cert)


def verify(ca: CA, leaf: LeafCert, subject: x509.GeneralName) -> None:
    """Verify a leaf by the web PKI rules of cryptography's verifier."""
    builder = PolicyBuilder().store(Store([ca.certificate])).time(NOW)
    assert isinstance(subject, x509.DNSName | x509.IPAddress)
    builder.build_server_verifier(subject).verify(loaded(leaf), [])


@pytest.fixture(scope="module")
def ca() -> CA:
    """Return a new CA."""
    return CA.create(now=NOW)


def test_leaf_holds_for_every_name_and_address(ca: CA) -> None:
    """A leaf verifies for its names, its wildcard and both kinds of addresses, and for no other name."""
    addresses = (ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1"))
    leaf = ca.issue_cert("a.corepin.svc", "*.corepin.dev", addresses=addresses, now=NOW)

    for subject in (
        x509.DNSName("a.corepin.svc"),
        x509.DNSName("b.corepin.dev"),
        *map(x509.IPAddress, addresses),
    ):
        verify(ca, leaf, subject)
    with pytest.raises(VerificationError):
        verify(ca, leaf, x509.DNSName("b.corepin.svc"))


def test_leaf_of_another_authority_is_refused(ca: CA) -> None:
    """Two authorities differ in name and key, so a client never takes one for the other."""
    other = CA.create(now=NOW)

    assert other.certificate.subject != ca.certificate.subject
    with pytest.raises(VerificationError):
        verify(ca, other.issue_cert("a.b", now=NOW), x509.DNSName("a.b"))


def test_keys_are_on_p256_and_match(ca: CA) -> None:
    """Both private keys are ECDSA P-256 and belong to their certificates."""
    leaf = ca.issue_cert("a.b", now=NOW)

    for certificate in (ca.certificate, loaded(leaf)):
        public = certificate.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert public.curve.name == "secp256r1"
    for key, certificate in ((ca.key, ca.certificate), (leaf.key, loaded(leaf))):
        assert key.startswith(b"-----BEGIN PRIVATE KEY-----")
        assert load_pem_private_key(key, None).public_key() == certificate.public_key()


def test_leaf_never_outlives_its_authority() -> None:
    """A leaf expires with its CA at the latest."""
    ca = CA.create(days=10, now=NOW)

    leaf = loaded(ca.issue_cert("a.b", days=365, now=NOW))

    assert leaf.not_valid_after_utc == ca.certificate.not_valid_after_utc == NOW + timedelta(days=10)


def test_validity_begins_a_little_early(ca: CA) -> None:
    """A client whose clock is some minutes behind accepts a new certificate."""
    leaf = loaded(ca.issue_cert("a.b", days=30, now=NOW))

    assert leaf.not_valid_before_utc == NOW - timedelta(minutes=5)
    assert leaf.not_valid_after_utc == NOW + timedelta(days=30)


def test_authority_signs_no_authorities(ca: CA) -> None:
    """The path length is 0 and a leaf is no CA: a stolen leaf key can sign nothing."""
    leaf = loaded(ca.issue_cert("a.b", now=NOW))

    assert ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
    assert leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert not leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_serial_numbers_differ(ca: CA) -> None:
    """Two leaves of one authority have different serial numbers."""
    assert loaded(ca.issue_cert("a.b")).serial_number != loaded(ca.issue_cert("a.b")).serial_number


def test_long_name_stands_in_the_alternative_names_only(ca: CA) -> None:
    """A DNS name above the 64 characters of a common name is an alternative name only, and verifies."""
    name = ".".join(["a" * 40, "b" * 40])

    leaf = ca.issue_cert(name, now=NOW)

    verify(ca, leaf, x509.DNSName(name))
    common = loaded(leaf).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
    assert common == "corepin server"
    assert len(name) > COMMON_NAME_LIMIT


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a..b", "-a", "a-", "a_b", "ä.de", "a.*", "*", "a" * 64, ".".join(["a" * 60] * 5), "a.b."],
)
def test_bad_dns_name_is_refused(name: str) -> None:
    """A DNS name that no client could use is refused."""
    with pytest.raises(BadName, match="is not a DNS name"):
        checked_dns_name(name)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_address_is_no_dns_name(address: str) -> None:
    """An address among the DNS names would never match; it is refused."""
    with pytest.raises(BadName, match="is an address"):
        checked_dns_name(address)


def test_nameless_certificate_is_refused(ca: CA) -> None:
    """A certificate without any name is refused."""
    with pytest.raises(BadName):
        ca.issue_cert()


def test_openssl_accepts_the_chain_strictly(tmp_path: Path) -> None:
    """OpenSSL's strict X.509 rules and its purpose check hold; so does a host name."""
    ca = CA.create()
    leaf = ca.issue_cert("localhost")
    (tmp_path / "ca.crt").write_bytes(ca.cert)
    (tmp_path / "tls.crt").write_bytes(leaf.cert)

    verified = subprocess.run(
        [
            *("openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "localhost"),
            *("-CAfile", str(tmp_path / "ca.crt"), str(tmp_path / "tls.crt")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert verified.stdout.endswith("tls.crt: OK\n"), verified.stderr


def test_handshake_with_the_pair(tmp_path: Path) -> None:
    """A real TLS 1.3 handshake verifies chain and name, with Python's strictest flags."""
    ca = CA.create()
    leaf = ca.issue_cert("localhost", addresses=(ipaddress.ip_address("127.0.0.1"),))
    (tmp_path / "tls.crt").write_bytes(leaf.cert)
    (tmp_path / "tls.key").write_bytes(leaf.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cadata=ca.cert.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT

    here, there = socket.socketpair()
    with here, there:
        answering = threading.Thread(target=_greet, args=(server, there))
        answering.start()
        with client.wrap_socket(here, server_hostname="127.0.0.1") as secured:
            assert secured.recv(5) == b"hello"
            assert secured.version() == "TLSv1.3"
        answering.join()


def _greet(server: ssl.SSLContext, connection: socket.socket) -> None:
    with server.wrap_socket(connection, server_side=True) as secured:
        secured.sendall(b"hello")
