"""The end of validity is read from certificates of every form."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.mounted import new_ca, pair
from webhook.server.x509 import BEGIN, END, BadCertificate, not_after

CERTIFICATE = pair(new_ca())["tls.crt"]


CAS = {key_type: trustme.CA(key_type=key_type) for key_type in trustme.KeyType}


@pytest.mark.parametrize("year", [2031, 2049, 2050, 2999])
@pytest.mark.parametrize("issuer", list(trustme.KeyType))
def test_end_of_validity_is_read(year: int, issuer: trustme.KeyType) -> None:
    """Both encodings of dates and both kinds of signatures are understood."""
    moment = datetime(year, 5, 6, 7, 8, 9, tzinfo=UTC)
    leaf = CAS[issuer].issue_cert("a", not_after=moment, key_type=trustme.KeyType.ECDSA)

    assert not_after(leaf.cert_chain_pems[0].bytes()) == moment


def test_first_certificate_of_a_chain_counts() -> None:
    """The first certificate of a chain counts; text before it and issuers after it do not."""
    assert not_after(b"subject: x\n" + CERTIFICATE + CERTIFICATE) == not_after(CERTIFICATE)


@given(st.one_of(st.binary(), st.binary().map(lambda raw: f"{BEGIN}\n{raw.hex()}\n{END}".encode())))
def test_anything_else_is_no_certificate(pem: bytes) -> None:
    """For any other bytes the reader raises BadCertificate and nothing else."""
    with pytest.raises(BadCertificate):
        not_after(pem)
