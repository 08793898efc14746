"""Requests to the API server with the user's kubeconfig or the pod's account."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apiserver.pages import shallow
from corepin.errors import CommandFailed
from corepin.node.kube_access import cluster_client, is_in_a_pod, kubeconfig, readable_kubeconfig
from pinning.errors import BadJSON
from pinning.json_text import parse_json

if TYPE_CHECKING:
    import argparse

TIMEOUT_SECONDS: Final = 10
DEFAULT_NAMESPACE: Final = "default"
OK, NOT_FOUND = 200, 404
OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NotFound(CommandFailed):
    """The API server has no such object or kind."""


def add_context_flag(parser: argparse._ActionsContainer) -> None:
    """Add the flag that names a context of the kubeconfig."""
    parser.add_argument("--context", metavar="NAME", help="a context of the kubeconfig; default: the current")


def get(path: str, what: str, context: str | None = None, **query: str) -> Any:
    """Return the object at an API path; raise CommandFailed, with `what` as the object's name in the message."""
    with cluster_client(context, TIMEOUT_SECONDS) as client:
        answer = client.get(path, params=query, headers={"accept": "application/json"})
    if answer.status_code != OK:
        problem = NotFound if answer.status_code == NOT_FOUND else CommandFailed
        raise problem(f"{what}: the API server answered {answer.status_code} ({answer.reason_phrase})")
    try:
        return read_object(answer.content)
    except BadJSON as error:
        raise CommandFailed(f"{what}: the API server's answer cannot be read: {error}") from error


def read_object(body: bytes) -> Any:
    """Return a decoded object, even with invalid UTF-8 and deep nesting, which users may write into `managedFields`."""
    text = body.decode(errors="replace")
    try:
        return parse_json(text)
    except BadJSON as error:
        if not isinstance(error.__cause__, RecursionError):
            raise
        return parse_json(shallow(text.encode(errors="replace")))


def current_namespace(context: str | None = None) -> str:
    """Return the namespace of the kubeconfig's context or of the pod, else `default`."""
    from kubernetes import config

    if context is None and is_in_a_pod():
        with suppress(OSError):
            return OWN_NAMESPACE.read_text().strip()
        return DEFAULT_NAMESPACE
    with readable_kubeconfig():
        contexts, current = config.list_kube_config_contexts(kubeconfig())  # type: ignore[no-untyped-call]
        named = next((it for it in contexts if it["name"] == context), current)
        return str(named["context"].get("namespace") or DEFAULT_NAMESPACE)
