"""Other mutating webhooks, served over TLS by the test process."""

from __future__ import annotations

import base64
import json
import ssl
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import trustme

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Operations = list[dict[str, Any]]
PROXY_RESOURCES = "e2e.corepin.io/proxy-resources"  # annotation: the resources of the added proxy, as JSON


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The address of the webhooks, and the CA of their certificate."""

    url: str
    ca_bundle: bytes


@contextmanager
def serve_neighbours(
    mutators: Mapping[str, Callable[[dict[str, Any]], Operations]],
) -> Iterator[Neighbours]:
    """Serve each mutator under its path until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        """Answers one review and closes the connection (HTTP/1.0)."""

        def do_POST(self) -> None:
            """Answer with the patch of the path's mutator."""
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            operations = mutators[self.path.partition("?")[0]](request["object"])
            body = json.dumps(_review(request["uid"], operations)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            """Log nothing."""

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield Neighbours(f"https://127.0.0.1:{server.server_port}", authority.cert_pem.bytes())
        finally:
            server.shutdown()
            thread.join()


def annotate(pod: dict[str, Any]) -> Operations:
    """Add the annotation for exclusive CPUs to a pod without one."""
    annotations = pod["metadata"].get("annotations") or {}
    wanted = {**annotations, "cpu-manager.corepin.io/pod": "exclusive", "cmk.intel.com/mutate": "true"}
    return [] if wanted == annotations else [{"op": "add", "path": "/metadata/annotations", "value": wanted}]


def add_sidecar(pod: dict[str, Any]) -> Operations:
    """Add a proxy unless it exists, as mesh injectors do: with the resources of the pod's annotation, else without any."""
    if any(container["name"] == "proxy" for container in pod["spec"]["containers"]):
        return []
    stated = (pod["metadata"].get("annotations") or {}).get(PROXY_RESOURCES)
    proxy: dict[str, Any] = {"name": "proxy", "image": "registry.example/proxy:1"}
    if stated:
        proxy["resources"] = json.loads(stated)
    return [{"op": "add", "path": "/spec/containers/-", "value": proxy}]


def add_first(pod: dict[str, Any]) -> Operations:
    """Add a container at the first position, as some injectors do, unless it exists."""
    init = pod["spec"].get("initContainers") or []
    if any(container["name"] == "prepare" for container in init):
        return []
    every = [{"name": "prepare", "image": "registry.example/prepare:1"}, *init]
    return [{"op": "add", "path": "/spec/initContainers", "value": every}]


def _review(uid: str, operations: Operations) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if operations:
        patch = base64.b64encode(json.dumps(operations).encode()).decode()
        response |= {"patchType": "JSONPatch", "patch": patch}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
