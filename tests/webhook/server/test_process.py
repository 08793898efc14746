"""The process over real TLS: certificates change under it, clients are slow, and it stops without losing a request."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.environments import plain_http
from tests.webhook.clients import (
    CA,
    OTHER_CA,
    REFUSED,
    TAKEN,
    client,
    connected,
    der,
    ended,
    request_head,
    served_certificate,
    tls_flags,
)
from tests.webhook.mounted import Mounted, new_ca, pair
from tests.webhook.reviews import review
from tests.webhook.serving import PATIENCE_SECONDS, serving, trusting
from webhook.review.bodies import BODY_LIMIT

if TYPE_CHECKING:
    from pathlib import Path

STALLED_SECONDS = 4  # in which a starved client shakes hands and asks; the test waits for all of them


@pytest.fixture
def secret(tmp_path: Path) -> Mounted:
    """Return a mounted pair."""
    return Mounted(tmp_path / "tls", pair(CA))


def answer_of(connection: ssl.SSLSocket) -> bytes:
    """Return all that comes until the server ends the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_reviews_and_status_are_served(secret: Mounted) -> None:
    """One process answers reviews over TLS, and health, readiness and metrics in plain HTTP."""
    with serving(*tls_flags(secret)) as server:
        with client(server) as http:
            answers = [http.post(path, content=review()) for path in ("/mutate", "/validate")]
        paths = [
            plain_http.get(server.status_url + path).status_code
            for path in ("/healthz", "/readyz", "/metrics")
        ]

        assert [answer.json()["response"]["allowed"] for answer in answers] == [True, True]
        assert "server" not in answers[0].headers
        assert paths == [200, 200, 200]
        assert server.metric('corepin_webhook_reviews_total{endpoint="mutate",outcome="allowed"') == 1
        assert server.metric("corepin_webhook_certificate_not_after_seconds") > 0
        assert server.reviews.wait_for("review", endpoint="validate")["uid"] == "0b1c"
        assert plain_http.get(f"{server.status_url}/mutate").status_code == 404


def test_an_answer_is_one_record(secret: Mounted) -> None:
    """Head and body are sent in one TLS record, on a persistent connection and on one that ends."""
    for ending in (b"", b"Connection: close\r\n"):
        with serving(*tls_flags(secret)) as server, connected(server) as secured:
            head = request_head(len(review()), ending)
            secured.sendall(head + review())

            record = secured.recv(65536)  # no more than one record, however many have come
            assert record.startswith(b"HTTP/1.1 200 OK\r\n")
            assert record.endswith(b"}")


def test_expect_100_continue_is_answered(secret: Mounted) -> None:
    """A request with `Expect: 100-continue` gets `100 Continue` before its body."""
    with serving(*tls_flags(secret)) as server, connected(server) as secured:
        secured.sendall(request_head(len(review()), b"Expect: 100-continue\r\n"))
        assert secured.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"

        secured.sendall(review())
        assert secured.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_new_pair_is_served_and_a_bad_one_is_not(secret: Mounted) -> None:
    """New connections get the new certificate, old ones continue, and an invalid pair changes only a metric."""
    refused = 'corepin_webhook_reload_refused{files="certificate"}'
    second, third = pair(OTHER_CA), pair(CA)
    with serving(*tls_flags(secret)) as server, client(server) as http:
        http.post("/mutate", content=review())

        secret.swap(second)
        server.log.wait_for(TAKEN, files="certificate", generation=2)
        assert served_certificate(server) == der(second)

        secret.swap({**second, "tls.key": third["tls.key"]})
        assert "KEY_VALUES_MISMATCH" in server.log.wait_for(REFUSED, files="certificate")["reason"]
        assert served_certificate(server) == der(second)
        assert server.metric(refused) == 1

        secret.swap(third)
        server.log.wait_for(TAKEN, files="certificate", generation=3)
        assert served_certificate(server) == der(third)
        assert server.metric(refused) == 0

        assert http.post("/mutate", content=review()).status_code == 200
        server.wait_for_connections(1)  # still the first one


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificates_are_checked(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """Only verified clients with an allowed name are served; the others get the reason, or fail the handshake."""
    clients = new_ca()
    secret = Mounted(tmp_path / "tls", pair(CA) | {"ca.crt": clients.cert_pem.bytes()})

    def ask(issuer: object = None, name: str = "") -> httpx.Response:
        context = trusting(CA)
        context.maximum_version = version
        if issuer in {clients, OTHER_CA}:
            chosen = clients if issuer is clients else OTHER_CA
            chosen.issue_cert("client", common_name=name).configure_cert(context)
        with client(server, context) as http:
            return http.post("/mutate", content=review())

    flags = ("--client-ca", secret / "ca.crt", "--client-name", "kube-apiserver", "--client-name", "b")
    with serving(*tls_flags(secret), *flags) as server:
        assert (ask().status_code, ask().text) == (403, "corepin: a client certificate is required\n")
        assert ask(clients, "kubelet").status_code == 403
        assert ask(clients, "kube-apiserver").status_code == 200
        with pytest.raises(httpx.TransportError):
            ask(OTHER_CA, "kube-apiserver")

        secret.swap(pair(CA) | {"ca.crt": OTHER_CA.cert_pem.bytes()})
        server.log.wait_for(TAKEN, files="certificate", generation=2)
        assert ask(OTHER_CA, "kube-apiserver").status_code == 200
        with pytest.raises(httpx.TransportError):
            ask(clients, "kube-apiserver")


def test_slow_clients_delay_nobody_and_are_dropped(secret: Mounted) -> None:
    """A client that stalls in the handshake, head or body is disconnected, without delay for other clients."""
    body = review()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            serving(
                *tls_flags(secret),
                handshake_seconds=STALLED_SECONDS,
                request_seconds=STALLED_SECONDS,
                keep_alive_seconds=60,
            )
        )
        silent = stack.enter_context(socket.create_connection((server.host, server.port), PATIENCE_SECONDS))
        slow = [stack.enter_context(connected(server)) for _ in range(3)]
        slow[1].sendall(request_head(len(body))[:40])
        slow[2].sendall(request_head(len(body)) + body[:40])
        http = stack.enter_context(client(server))

        times = [http.post("/mutate", content=body).elapsed.total_seconds() for _ in range(20)]

        assert (
            sorted(times)[10] < STALLED_SECONDS / 2
        )  # each of the slow ones would have held it for all of them
        for connection in (silent, *slow):
            assert ended(connection)
        assert http.post("/mutate", content=body).status_code == 200
        assert server.log.plain == []


def test_body_that_is_too_long_is_read_to_its_end(secret: Mounted) -> None:
    """A body above the limit is read to its end, so that the client gets 413 and keeps its connection."""
    with serving(*tls_flags(secret)) as server, client(server) as http:
        codes = [
            http.post("/mutate", content=body).status_code for body in (b"x" * (BODY_LIMIT + 1), review())
        ]

        assert codes == [413, 200]
        server.wait_for_connections(1)


def test_request_that_has_begun_is_answered_after_sigterm(secret: Mounted) -> None:
    """After SIGTERM readiness fails at once, the running request is answered, and the exit code is 0."""
    body = review()
    with serving(*tls_flags(secret), linger_seconds=0.2, grace_seconds=PATIENCE_SECONDS) as server:
        with connected(server) as begun:
            begun.sendall(request_head(len(body)) + body[:40])
            server.wait_for_connections(1)
            server.process.send_signal(signal.SIGTERM)
            server.log.wait_for("draining")

            ready = plain_http.get(f"{server.status_url}/readyz")
            begun.sendall(body[40:])
            answer = answer_of(begun)

        assert (ready.status_code, ready.text) == (503, "shutting down\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nconnection: close\r\n" in answer
        assert server.process.wait(PATIENCE_SECONDS) == 0


def test_request_on_an_idle_connection_is_answered_while_lingering(secret: Mounted) -> None:
    """A request that was sent before SIGTERM is answered, and its connection closed afterwards."""
    with serving(*tls_flags(secret), linger_seconds=PATIENCE_SECONDS) as server:
        with connected(server) as idle:
            server.wait_for_connections(1)
            server.process.send_signal(signal.SIGTERM)
            server.log.wait_for("draining", connections=1)
            idle.sendall(request_head(len(review())) + review())

            assert answer_of(idle).startswith(b"HTTP/1.1 200 OK\r\n")

        assert server.process.wait(PATIENCE_SECONDS) == 0


def test_idle_peers_do_not_hold_the_exit(secret: Mounted) -> None:
    """Peers that never close TLS, or stall in the handshake, do not delay the exit."""
    with serving(*tls_flags(secret), linger_seconds=0.1, tls_close_seconds=0.2) as server:
        with connected(server), socket.create_connection((server.host, server.port)):
            server.wait_for_connections(1)
            server.process.send_signal(signal.SIGTERM)

            assert server.process.wait(20) == 0  # TLS alone would wait for 30

        server.log.wait_for("stopped")
        assert server.log.plain == []
