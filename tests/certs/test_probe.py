"""The probe of the replicas' certificates, over real sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from certs import material
from certs.issue import CA
from certs.probe import Address, Probe, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "corepin-webhook.corepin-system.svc"


@contextmanager
def listening() -> Iterator[socket.socket]:
    """Listen on a free port until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address_of(server: socket.socket) -> Address:
    """Return the address of a listening socket."""
    return Address(*server.getsockname())


def test_shown_certificate_is_returned(tmp_path: Path) -> None:
    """The probe sends the Service's name and returns the peer's certificate, of any issuer."""
    leaf = CA.create().issue_cert(NAME)
    (tmp_path / "pair").write_bytes(leaf.key + leaf.cert)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair")
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)

    with listening() as server:
        answering = threading.Thread(target=_answer, args=(server, context))
        answering.start()
        address = address_of(server)
        shown = Probe((address,), NAME)()
        answering.join()

    assert shown == {str(address): material.der(x509.load_pem_x509_certificate(leaf.cert))}
    assert asked == [NAME]


def _answer(server: socket.socket, context: ssl.SSLContext) -> None:
    connection, _ = server.accept()
    with connection, context.wrap_socket(connection, server_side=True) as secured, suppress(OSError):
        secured.recv(1)


def test_address_that_does_not_answer_shows_nothing() -> None:
    """For a closed port, and for a peer that does not speak TLS, the probe returns no certificate."""
    with listening() as mute, listening() as closed:
        silent, gone = address_of(mute), address_of(closed)
        closed.close()
        shown = Probe((silent, gone), NAME, timeout_seconds=0.2)()

    assert shown == {str(silent): None, str(gone): None}


def test_name_that_does_not_resolve_has_no_address() -> None:
    """A name that does not resolve has no addresses to probe."""
    assert resolve(Address("corepin-webhook-replicas.invalid", 8443)) == frozenset()
    assert Probe((Address("corepin-webhook-replicas.invalid", 8443),), NAME)() == {}


@pytest.mark.parametrize(
    ("text", "address"),
    [("a.b:8443", Address("a.b", 8443)), ("[::1]:1", Address("::1", 1))],
    ids=["name", "IPv6"],
)
def test_address_is_printed(text: str, address: Address) -> None:
    """An IPv6 address is printed in brackets."""
    assert str(address) == text
