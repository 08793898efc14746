"""Apply objects to a cluster, and put the agents' label on nodes: server-side, so that it may be repeated."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.namespaces import check, create, marked
from corepin.cmk.requests import APPLY_PATCH, MERGE_PATCH, Answered, kube_client, send
from corepin.documents import write_out
from corepin.errors import CommandFailed
from pinning.contract import AGENT_NAMESPACE, AGENT_NODE_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corepin.cmk.overlay import Object

MANAGER: Final = "kubectl"  # as `kubectl apply --server-side` is called, so that both may take turns
NODES: Final = "/api/v1/nodes"
CONFLICT: Final = 409


def install(documents: Sequence[Object], hosts: Sequence[str], namespace: str, *, force: bool) -> None:
    """Apply everything, then label the nodes; no hosts mean every node that takes pods.

    Check the agents' namespace first, and label it only if it is created here or bears the label.
    """
    with kube_client() as api:
        chosen = chosen_nodes(send(api, "GET", NODES)["items"], hosts)
        found = check(api, namespace)
        if not found.exists:
            create(api, namespace)
        if not found.exists or found.is_created_by_us or namespace == AGENT_NAMESPACE:
            documents = marked(documents, namespace)
        for it in documents:
            _apply(api, it, force=force)
            write_out(f"{it['kind']} {it['metadata']['name']}: applied\n")
        for node in chosen:
            label(api, node, "true")
            write_out(f"node {node}: {AGENT_NODE_LABEL}=true\n")


def chosen_nodes(nodes: Iterable[Any], hosts: Sequence[str], *, every: bool = False) -> tuple[str, ...]:
    """Return the nodes that were named, else all that take pods, or `every` one; raise CommandFailed for none."""
    found = {node["metadata"]["name"]: node for node in nodes}
    for host in hosts:
        if host not in found:
            close = get_close_matches(host, found, n=1)
            remedy = (
                f"did you mean {close[0]}?" if close else "`kubectl get nodes` shows those that are there"
            )
            raise CommandFailed(f"--host-list: there is no node {host!r}: {remedy}")
    chosen = tuple(hosts) or tuple(sorted(host for host, node in found.items() if _takes_pods(node)))
    if not chosen:
        raise CommandFailed(
            "--all-hosts: no Linux node takes pods now: uncordon one, or name it with --host-list"
        )
    return chosen


def label(api: Any, node: str, value: str | None) -> None:
    """Put the agents' label on a node that is there, or take it away."""
    send(api, "PATCH", f"{NODES}/{node}", {"metadata": {"labels": {AGENT_NODE_LABEL: value}}}, MERGE_PATCH)


def path_of(it: Object) -> str:
    """Return where the API server has an object."""
    version, metadata = it["apiVersion"], it["metadata"]
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{space}/{_plural(it['kind'])}/{metadata['name']}"


def _plural(kind: str) -> str:
    word = kind.lower()
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def _takes_pods(node: Any) -> bool:
    is_linux = (node["metadata"].get("labels") or {}).get("kubernetes.io/os", "linux") == "linux"
    return is_linux and not node["spec"].get("unschedulable")


def _apply(api: Any, it: Object, *, force: bool) -> None:
    query = f"?fieldManager={MANAGER}{'&force=true' if force else ''}"
    try:
        send(api, "PATCH", path_of(it) + query, it, APPLY_PATCH)
    except Answered as error:
        if error.status != CONFLICT:
            raise
        raise CommandFailed(f"{error}: to take these fields over, add --force-conflicts") from error
