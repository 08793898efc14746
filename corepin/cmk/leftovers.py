"""`corepin cmk leftovers`: objects of Intel CMK in all namespaces, with the commands that delete them. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.leftover_names import (
    CLUSTER,
    NAMED,
    PATTERNS,
    Leftover,
    is_installed_by_corepin,
    node_marks,
    script,
)
from corepin.cmk.namespaces import AGENTS
from corepin.cmk.requests import JSON, METADATA_LIST, NOT_FOUND, Answered, kube_client, send
from corepin.documents import write_out
from corepin.errors import CommandFailed
from pinning.contract import AGENT_NAMESPACE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

DESCRIPTION = "List objects of Intel CMK by name in all namespaces, with the commands that delete them."
EPILOG = """\
Nothing is changed. The output is a shell script: read it, because objects are found by their names alone. Objects that
corepin installed, and what its agents write, are not listed. Exit code: 0 nothing is left, 1 objects are left,
2 the API server could not be reached, or refused to list a kind.
"""
PAGE: Final = 500  # objects requested in one page
NOTHING: Final = (
    "no object of CMK is left in any namespace, nor label, taint or resource on a node without an agent\n"
)


def add_parser(verbs: Any) -> None:
    """Add the verb `leftovers` to `corepin cmk`."""
    parser = verbs.add_parser(
        "leftovers", help="list what CMK left in the cluster", description=DESCRIPTION, epilog=EPILOG
    )
    parser.set_defaults(cmk=run)


def run(args: argparse.Namespace) -> int:
    """Print the commands that delete leftovers, or that there are none; raise CommandFailed for an unreadable kind."""
    with kube_client() as api:
        found, nodes, unread = find(api)
    if found or nodes:
        write_out(script(found, nodes))
    if unread:
        problem = f"not every kind could be read, so that more may be left: {'; '.join(unread)}"
        raise CommandFailed(f"{problem}: use an account that may list them")
    if not found and not nodes:
        write_out(NOTHING)
    return int(bool(found or nodes))


def find(api: Any) -> tuple[list[Leftover], list[Any], list[str]]:
    """Return CMK's objects, the nodes with its label, taint or resources, and the API server's refusals.

    Nodes with an agent are left out, because the agent writes the same label, taint and resources.
    """
    unread: list[str] = []
    agents = {AGENT_NAMESPACE, *_agent_namespaces(api)}
    found = list(_objects(api, agents, unread))
    try:
        nodes = [node for node in pages(api, "/api/v1/nodes", accept=JSON) if node_marks(node)]
    except Answered as error:
        unread.append(str(error))
        nodes = []
    return found, nodes, unread


def _agent_namespaces(api: Any) -> set[str]:
    """Return the namespaces in which agents write CMK's ConfigMap and reports.

    A refusal by the API server fails the command, because the agents' objects could not be distinguished from CMK's.
    """
    shown = pages(api, f"/apis/apps/v1/daemonsets?labelSelector={AGENTS.replace('=', '%3D')}")
    return {it["metadata"]["namespace"] for it in shown}


def _objects(api: Any, agents: set[str], unread: list[str]) -> Iterator[Leftover]:
    for path, plural in _named():
        for it in _read(api, path, unread):
            yield _leftover(plural, it)
    for root, plural, pattern in PATTERNS:
        for it in _read(api, f"/{root}/{plural}", unread):
            found = _leftover(plural, it)
            if pattern.fullmatch(found.name) and found.namespace not in agents and not _is_controlled(it):
                yield found


def _named() -> Iterator[tuple[str, str]]:
    """Yield pairs of a list path, with a field selector for one name in all namespaces, and the resource."""
    for root, plural, names in (*CLUSTER, *NAMED):
        for name in names:
            yield f"/{root}/{plural}?fieldSelector=metadata.name%3D{name}", plural


def _leftover(plural: str, it: Any) -> Leftover:
    return Leftover(plural, it["metadata"].get("namespace", ""), it["metadata"]["name"])


def _is_controlled(it: Any) -> bool:
    """Return whether a controller, such as a DaemonSet, would create the object again."""
    return any(owner.get("controller") for owner in it["metadata"].get("ownerReferences") or ())


def _read(api: Any, path: str, unread: list[str]) -> Iterator[Any]:
    """Yield the objects of a list that corepin did not install; append a refusal to `unread`; skip an unknown kind."""
    try:
        yield from (it for it in pages(api, path) if not is_installed_by_corepin(it))
    except Answered as error:
        if error.status != NOT_FOUND:
            unread.append(str(error))


def pages(api: Any, path: str, accept: str = METADATA_LIST) -> Iterator[Any]:
    """Yield the objects of a list page by page; by default metadata only, so that Secrets are not read."""
    query = f"{path}{'&' if '?' in path else '?'}limit={PAGE}"
    token = ""
    while True:
        more = f"&continue={token}" if token else ""
        answer = send(api, "GET", query + more, accept=accept)
        yield from answer["items"] or ()  # an empty metadata list has null
        token = answer["metadata"].get("continue") or ""
        if not token:
            return
