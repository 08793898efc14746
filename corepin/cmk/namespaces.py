"""Namespaces allowed for `corepin cmk cluster-init --namespace`: those without objects of other programs.

Others are refused because the webhook skips every pod of the agents' namespace, and the admission policies refuse
writes of every account in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from corepin.cmk.requests import JSON, METADATA_LIST, NOT_FOUND, Answered, send
from corepin.errors import CommandFailed
from pinning.contract import AGENT_NAMESPACE, CREATED_BY, CREATED_BY_CLUSTER_INIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from corepin.cmk.overlay import Object

# Namespaces refused by name, without a request.
RESERVED: Final = {
    "default": "is where pods run that name no namespace",
    "cmk-namespace": "is where CMK's samples run the pods of its users",
    "corepin-system": "is the webhook's",
}
SYSTEM_PREFIX: Final = "kube-"
REMEDY: Final = f"leave the flag out for {AGENT_NAMESPACE}, or name a namespace that has nothing else"
CONSEQUENCE: Final = (
    "the webhook would skip all pods there, and the policies would refuse writes of accounts there"
)
OURS: Final = "app.kubernetes.io/name=corepin"
AGENTS: Final = f"{OURS},app.kubernetes.io/component=agent"
# Resources whose objects show that a namespace is in use, with kind and field selector.
HELD: Final = (
    ("api/v1", "pods", "Pod", ""),
    ("api/v1", "services", "Service", ""),
    ("api/v1", "persistentvolumeclaims", "PersistentVolumeClaim", ""),
    ("api/v1", "replicationcontrollers", "ReplicationController", ""),
    ("api/v1", "serviceaccounts", "ServiceAccount", "metadata.name!=default"),
    ("apis/apps/v1", "deployments", "Deployment", ""),
    ("apis/apps/v1", "daemonsets", "DaemonSet", ""),
    ("apis/apps/v1", "statefulsets", "StatefulSet", ""),
    ("apis/apps/v1", "replicasets", "ReplicaSet", ""),
    ("apis/batch/v1", "jobs", "Job", ""),
    ("apis/batch/v1", "cronjobs", "CronJob", ""),
)
CONFLICT: Final = 409
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class Found(NamedTuple):
    """Whether the namespace exists before the installation, and whether corepin created it."""

    exists: bool
    is_created_by_us: bool = False


def namespace(text: str) -> str:
    """Return the namespace of the agents; raise CommandFailed for a reserved or invalid name."""
    why = RESERVED.get(text) or ("is part of Kubernetes" if text.startswith(SYSTEM_PREFIX) else "")
    if why:
        raise CommandFailed(f"--namespace: {text[:60]!r} {why}: {CONSEQUENCE}; {REMEDY}")
    return namespace_name(text)


def namespace_name(text: str) -> str:
    """Return a namespace name; raise CommandFailed if it is not a DNS label."""
    if not _LABEL.fullmatch(text):
        problem = f"--namespace: {text[:60]!r} is not a valid namespace name"
        raise CommandFailed(f"{problem}: write up to 63 lower-case letters, digits and -, for example agents")
    return text


def without_namespace(documents: Iterable[Object], name: str) -> list[Object]:
    """Return the objects to print: with the Namespace only if it has corepin's default name.

    Users may pass the printed objects to `kubectl delete -f -`, which would delete a namespace of theirs.
    """
    return [it for it in documents if name == AGENT_NAMESPACE or not is_namespace(it, name)]


def is_namespace(it: Object, name: str) -> bool:
    """Return whether an object is the Namespace with this name."""
    return (it["kind"], it["metadata"]["name"]) == ("Namespace", name)


def marked(documents: Iterable[Object], name: str) -> list[Object]:
    """Return the objects, with the label "created by corepin" on the agents' Namespace."""
    return [_marked(it) if is_namespace(it, name) else it for it in documents]


def check(api: Any, name: str) -> Found:
    """Return whether the namespace exists; raise CommandFailed if it cannot be used, or agents run in another one."""
    _check_other_agents(api, name)
    path = f"/api/v1/namespaces/{name}"
    try:
        shown = _ask(api, path, f"whether the namespace {name} exists")
    except Answered as error:
        if error.status != NOT_FOUND:
            raise
        return Found(exists=False)
    if shown["metadata"].get("deletionTimestamp"):
        raise CommandFailed(
            f"--namespace: {name!r} is being deleted: wait until it does not exist any more, and repeat this command"
        )
    if foreign := first_of_others(api, name):
        raise CommandFailed(
            f"--namespace: {name!r} has objects of other programs ({foreign}): {CONSEQUENCE}; {REMEDY}"
        )
    return Found(exists=True, is_created_by_us=is_created_by_us(shown))


def is_created_by_us(shown: Object) -> bool:
    """Return whether a Namespace has the label that `cluster-init` sets on those it creates."""
    return (shown["metadata"].get("labels") or {}).get(CREATED_BY) == CREATED_BY_CLUSTER_INIT


def first_of_others(api: Any, name: str) -> str:
    """Return kind and name of one object that corepin did not install; empty if there is none.

    Each list is limited to the metadata of one object, so that the cost is independent of the namespace's size.
    """
    for group, plural, kind, fields in HELD:
        path = f"/{group}/namespaces/{name}/{plural}"
        selector = f"labelSelector={_quoted(OURS.replace('=', '!='))}&fieldSelector={_quoted(fields)}"
        for it in _first(api, f"{path}?limit=1&{selector}", f"what the namespace {name} holds"):
            return f"{kind} {it['metadata']['name']}"
    return ""


def create(api: Any, name: str) -> None:
    """Create the namespace with corepin's label; raise CommandFailed if another client has created it since.

    Create is used, because apply would also set the label on a namespace that another client has created.
    """
    labels = {CREATED_BY: CREATED_BY_CLUSTER_INIT}
    metadata = {"name": name, "labels": labels}
    try:
        send(
            api, "POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        )
    except Answered as error:
        if error.status != CONFLICT:
            raise
        problem = f"--namespace: {name!r} was created by another client at the same moment"
        raise CommandFailed(f"{problem}: repeat this command") from error


def _marked(it: Object) -> Object:
    metadata = it["metadata"]
    labels = {**metadata["labels"], CREATED_BY: CREATED_BY_CLUSTER_INIT}
    return {**it, "metadata": {**metadata, "labels": labels}}


def _check_other_agents(api: Any, name: str) -> None:
    """Raise CommandFailed if agents are installed in another namespace: both would write the same cpusets."""
    selector = f"labelSelector={_quoted(AGENTS)}&fieldSelector={_quoted(f'metadata.namespace!={name}')}"
    for it in _first(api, f"/apis/apps/v1/daemonsets?limit=1&{selector}", "whether agents run elsewhere"):
        place = it["metadata"]["namespace"]
        problem = f"--namespace: {name!r} would be a second installation, next to DaemonSet {place}/{it['metadata']['name']}"
        remove = f"remove that one first with `corepin cmk uninstall --all-hosts --namespace={place} --apply`"
        raise CommandFailed(f"{problem}: write --namespace={place}, or {remove}")


def _first(api: Any, path: str, what: str) -> list[Any]:
    found: list[Any] | None = _ask(api, path, what, METADATA_LIST)["items"]
    return found or []  # an empty metadata list has null


def _ask(api: Any, path: str, what: str, accept: str = JSON) -> Any:
    """Return the answer to a GET; if it is refused, raise CommandFailed saying that nothing was changed."""
    try:
        return send(api, "GET", path, accept=accept)
    except Answered as error:
        if error.status == NOT_FOUND:
            raise
        problem = f"{error}: {what} is not known, and nothing was changed"
        raise CommandFailed(f"{problem}: use an account that may read it") from error


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")
