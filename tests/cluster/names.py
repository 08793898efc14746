"""A name server for pods: it knows the headless Services of the cluster, as the cluster's own would."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.environments.server.apiserver import ApiServer

DOMAIN: Final = "cluster.local"
_HEAD: Final = struct.Struct(">6H")
_ANSWERED, _NO_SUCH_NAME = 0x8580, 0x8583  # authoritative; no recursion
_A, _IN, _SECONDS = 1, 1, 1
_END: Final = b"end"  # shorter than any question


@contextmanager
def serve_names(server: ApiServer, address: str) -> Iterator[None]:
    """Answer at port 53 of `address` until the block ends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, server.client() as client:
        sock.bind((address, 53))

        def serve() -> None:
            while True:
                query, peer = sock.recvfrom(512)
                if query == _END:
                    return
                sock.sendto(answer(query, lambda name: addresses(client, name)), peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
                own.sendto(_END, (address, 53))
            thread.join()


def answer(query: bytes, look_up: Callable[[str], list[str] | None]) -> bytes:
    """Return the answer to a question for addresses."""
    number = _HEAD.unpack_from(query)[0]
    labels, place = [], _HEAD.size
    while length := query[place]:
        labels.append(query[place + 1 : place + 1 + length].decode())
        place += 1 + length
    question = query[_HEAD.size : place + 5]
    found = look_up(".".join(labels))
    wanted = found if found and struct.unpack_from(">H", query, place + 1)[0] == _A else []
    records = [
        struct.pack(">HHHIH4s", 0xC00C, _A, _IN, _SECONDS, 4, socket.inet_aton(address)) for address in wanted
    ]
    state = _NO_SUCH_NAME if found is None else _ANSWERED
    return _HEAD.pack(number, state, 1, len(records), 0, 0) + question + b"".join(records)


def addresses(client: httpx.Client, name: str) -> list[str] | None:
    """Return the addresses of a headless Service, None when there is no such name."""
    service, _, rest = name.partition(".")
    namespace, _, suffix = rest.partition(".")
    if suffix != f"svc.{DOMAIN}":
        return None
    try:
        found = client.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        if not found.is_success or found.json()["spec"]["clusterIP"] != "None":
            return None
        return _endpoints(client, namespace, service, found.json())
    except httpx.HTTPError:
        return None


def _endpoints(client: httpx.Client, namespace: str, service: str, document: Any) -> list[str]:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    selected = client.get(path, params={"labelSelector": f"kubernetes.io/service-name={service}"})
    every = document["spec"].get("publishNotReadyAddresses", False)
    return [
        address
        for part in selected.raise_for_status().json()["items"]
        for endpoint in part["endpoints"] or ()
        if every or endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    ]
