"""Certificate pairs: loading from disk, and refusals with their reasons."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization

from tests.webhook.mounted import Mounted, new_ca, pair
from webhook.config.reload import Unusable
from webhook.server.connection import ConnectionRules
from webhook.server.tls import Identities, Identity, TLSFiles, peer_names

if TYPE_CHECKING:
    from pathlib import Path

CA = new_ca()
FUTURE = datetime(2040, 1, 1, tzinfo=UTC)
NOW = datetime(2035, 1, 1, tzinfo=UTC)
PAST = datetime(2030, 1, 1, tzinfo=UTC)


class Disk:
    """A mounted pair, and the builder that reads it."""

    def __init__(self, root: Path, files: dict[str, bytes]) -> None:
        self.secret = Mounted(root / "tls", files)
        client_ca = self.secret / "ca.crt" if "ca.crt" in files else None
        self.files = TLSFiles(self.secret / "tls.crt", self.secret / "tls.key", client_ca)
        self.identities = Identities(self.files, lambda: NOW)

    def build(self, files: dict[str, bytes] | None = None) -> Identity:
        """Build from the disk, after a swap if there are new files."""
        if files is not None:
            self.secret.swap(files)
        return self.identities(tuple(file.read() for file in self.files.watched()))


def test_tls_context_of_a_valid_pair(tmp_path: Path) -> None:
    """The context of a valid pair has its expiry, requires TLS 1.2 and issues no tickets."""
    identity = Disk(tmp_path, pair(CA, FUTURE)).build()

    assert identity.not_after == FUTURE
    assert identity.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert identity.context.num_tickets == 0
    assert identity.context.verify_mode is ssl.CERT_NONE


CUT_KEY = b"-----BEGIN PRIVATE KEY-----\nMIG\n-----END PRIVATE KEY-----\n"


def encrypted(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the pair with a key that needs a password."""
    key = serialization.load_pem_private_key(files["tls.key"], None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    return {**files, "tls.key": locked}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param({**pair(CA), "tls.key": pair(CA)["tls.key"]}, "KEY_VALUES_MISMATCH", id="another key"),
        pytest.param({**pair(CA), "tls.key": CUT_KEY}, "are not a pair", id="cut key"),
        pytest.param(encrypted(pair(CA)), "the key is encrypted", id="encrypted key"),
    ],
)
def test_a_mismatched_pair_is_refused(tmp_path: Path, files: dict[str, bytes], reason: str) -> None:
    """A pair that does not match or is encrypted is refused with its file names, without a password prompt."""
    with pytest.raises(Unusable, match=reason) as refusal:
        Disk(tmp_path, files).build()

    assert "tls.crt" in str(refusal.value)


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", " is empty: write", id="empty"),
        pytest.param(b"\n \n", " is empty: write", id="blank"),
        pytest.param(b"\x30\x82\x01", " in PEM: write", id="DER"),
    ],
)
def test_file_without_pem_is_named_alone(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """The refusal of a file without the right PEM blocks has its name and the expected content."""
    disk = Disk(tmp_path, {**pair(CA), "ca.crt": CA.cert_pem.bytes(), name: content})
    with pytest.raises(Unusable) as refusal:
        disk.build()

    wrong, *others = sorted(disk.files.watched(), key=lambda file: file.path.name != name)
    assert str(refusal.value).startswith(f"{wrong.path} ")
    assert message in str(refusal.value)
    assert all(str(other.path) not in str(refusal.value) for other in others)


def test_expired_pair_does_not_displace_one_that_works(tmp_path: Path) -> None:
    """An expired pair is accepted at start, and refused as a replacement."""
    disk = Disk(tmp_path, pair(CA, PAST))

    assert disk.build().not_after == PAST
    assert disk.build(pair(CA, PAST)).not_after == PAST
    assert disk.build(pair(CA, FUTURE)).not_after == FUTURE
    with pytest.raises(Unusable, match="expired at 2030"):
        disk.build(pair(CA, PAST))


@pytest.mark.parametrize("inside", [b"nonsense", b"\xff"])
def test_client_ca_must_hold_certificates(tmp_path: Path, inside: bytes) -> None:
    """A client CA file without readable certificates is refused."""
    ca = b"-----BEGIN CERTIFICATE-----\n" + inside + b"\n-----END CERTIFICATE-----\n"
    with pytest.raises(Unusable, match=r"ca\.crt holds no CA certificates"):
        Disk(tmp_path, {**pair(CA), "ca.crt": ca}).build()


def test_client_ca_makes_the_server_ask(tmp_path: Path) -> None:
    """With a client CA the server verifies client certificates."""
    context = Disk(tmp_path, {**pair(CA), "ca.crt": CA.cert_pem.bytes()}).build().context

    assert context.verify_mode is ssl.CERT_OPTIONAL
    assert len(context.get_ca_certs()) == 1


CERTIFICATE = {
    "subject": ((("organizationName", "system:masters"),), (("commonName", "kube-apiserver"),)),
    "subjectAltName": (("DNS", "api.example"), ("IP Address", "10.0.0.1")),
}


def test_names_of_a_peer_are_its_common_name_and_alternatives() -> None:
    """A client's names are common name and alternative names, not its organization."""
    assert peer_names(CERTIFICATE) == {"kube-apiserver", "api.example", "10.0.0.1"}
    assert peer_names({}) == frozenset()


@pytest.mark.parametrize(
    ("rules", "certificate", "refusal"),
    [
        (ConnectionRules(), None, None),
        (ConnectionRules(True), None, "a client certificate is required"),
        (ConnectionRules(True), {}, "a client certificate is required"),
        (ConnectionRules(True), CERTIFICATE, None),
        (ConnectionRules(True, frozenset({"kube-apiserver", "b"})), CERTIFICATE, None),
        (
            ConnectionRules(True, frozenset({"system:masters"})),
            CERTIFICATE,
            "bears none of the allowed names",
        ),
    ],
)
def test_rules_refuse_certificates_without_an_allowed_name(
    rules: ConnectionRules, certificate: dict[str, object] | None, refusal: str | None
) -> None:
    """Without a client CA any client is served, with one only verified clients, of an allowed name if any are set."""
    found = rules.refusal(certificate)

    assert (refusal in (found or "")) if refusal else found is None
