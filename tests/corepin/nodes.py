"""An agent's socket and an API server with one node, for the commands that read them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

Serve = Callable[[Mapping[str, Any]], None]
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"


@contextmanager
def agent_socket(path: Path, *answers: bytes) -> Iterator[str]:
    """Answer each connection to a unix socket with the next answer; repeat the last one."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        left = list(answers)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(left.pop(0) if len(left) > 1 else left[0])

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield str(path)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def node_objects(
    annotations: Mapping[str, str], *, topology: Any = None, **allocatable: str
) -> dict[str, Any]:
    """Return node `n1` and its topology by their paths on the API server."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "annotations": dict(annotations)},
        "status": {"allocatable": allocatable},
    }
    return {"/api/v1/nodes/n1": node, **({f"{TOPOLOGIES}/n1": topology} if topology else {})}


@contextmanager
def api_objects(directory: Path, objects: Mapping[str, Any]) -> Iterator[Path]:
    """Serve objects or bytes by path and query to clients with corepin's user agent; yield a kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(self.path)
            is_there = path in objects and self.headers["User-Agent"] == "corepin"
            found = objects[path] if is_there else {"kind": "Status", "reason": "NotFound"}
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(200 if is_there else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield kubeconfig(directory, server.server_port)
        finally:
            server.shutdown()
            thread.join()


def kubeconfig(directory: Path, port: int) -> Path:
    """Return a kubeconfig of a server on a port of this machine."""
    path = directory / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path
