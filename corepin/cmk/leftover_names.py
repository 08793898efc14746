"""Names of Intel CMK's objects, and the script that deletes them. Pure.

The names are from CMK 1.5.2's manifests and its commands `cluster-init` and `reconfigure_setup`.
"""

from __future__ import annotations

import re
from itertools import groupby
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pinning.contract import (
    AGENT_NODE_LABEL,
    CMK_GROUP_VERSION,
    CMK_NODE_LABEL,
    CMK_NODE_REPORT,
    CMK_RECONCILE_REPORT,
    CMK_RESOURCES,
    CMK_TAINT_KEY,
    STATUS_TOPOLOGY,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ACCOUNT: Final = "cmk-serviceaccount"
REPORTS: Final = (CMK_NODE_REPORT[1], CMK_RECONCILE_REPORT[1])
_RBAC: Final = "apis/rbac.authorization.k8s.io/v1"
_ROLES: Final = (
    *("cmk-third-party-resource-controller", "cmk-custom-resource-definition-controller"),
    *("cmk-daemonset-controller", "cmk-version-controller", "cmk-webhook-installer"),
    *("cmk-node-lister", "cmk-exec"),
)
_BOUND: Final = ("daemonset", "node", "tpr", "crd", "version", "webhook-installer", "node-lister", "pod-exec")
# Objects of the cluster that CMK created: API group and version, resource, names.
CLUSTER: Final = (
    ("apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", ("cmk-webhook-config",)),
    (_RBAC, "clusterrolebindings", tuple(f"cmk-role-binding-{bound}" for bound in _BOUND)),
    (_RBAC, "clusterroles", _ROLES),
    (
        "apis/apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        tuple(f"{kind}.intel.com" for kind in REPORTS),
    ),
)
NAMED: Final = (
    ("apis/apps/v1", "deployments", ("cmk-webhook-deployment",)),
    ("api/v1", "services", ("cmk-webhook-service",)),
    ("api/v1", "secrets", ("cmk-webhook-certs",)),
    ("api/v1", "serviceaccounts", (ACCOUNT,)),
)
_COMMANDS: Final = "(?:(?:init|install|discover|reconcile|nodereport)-)+"
PATTERNS: Final = (
    (
        "apis/apps/v1",
        "daemonsets",
        re.compile(rf"cmk-{_COMMANDS}ds-.+|cmk-node-report-ds-all|cmk-uninstall-all-nodes"),
    ),
    (
        "api/v1",
        "pods",
        re.compile(
            rf"cmk-{_COMMANDS}pod-.+|cmk-reconfigure-pod-.+"
            r"|cmk-(?:cluster-init|discover|init|install|uninstall)-pod"
        ),
    ),
    ("api/v1", "configmaps", re.compile(r"cmk-config-.+|cmk-reconfigure-.+|cmk-webhook-configmap")),
    *((f"apis/{CMK_GROUP_VERSION}", kind, re.compile(".+")) for kind in REPORTS),
)
# Deleted in this order: reports before definitions, bindings before roles, accounts after their pods.
_ORDER: Final = (
    *(
        "mutatingwebhookconfigurations",
        "daemonsets",
        "deployments",
        "pods",
        "services",
        "secrets",
        "configmaps",
    ),
    *(*REPORTS, "clusterrolebindings", "clusterroles", "serviceaccounts", "customresourcedefinitions"),
)
_NAMES_A_LINE: Final = 50
HEADER: Final = """\
# Objects of CMK, found by their names. Check that each belongs to CMK, then run the commands.
"""
ACCOUNT_NOTE: Final = """\
# Pods that the webhook completes use this account. If users still create such pods in this namespace, do not delete
# the account but replace it: kubectl apply -n {place} -k manifests/cmk-namespace
"""


class Leftover(NamedTuple):
    """One object of CMK; the namespace is empty for cluster-wide objects."""

    plural: str
    namespace: str
    name: str


def is_installed_by_corepin(it: Any) -> bool:
    """Return whether an object has the label of corepin's manifests."""
    return (it["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == "corepin"


def node_marks(node: Any) -> tuple[str, ...]:
    """Return the commands that remove CMK's label, taint and resources from a node; none if an agent writes them."""
    metadata, status = node["metadata"], node.get("status") or {}
    labels = metadata.get("labels") or {}
    if AGENT_NODE_LABEL in labels or STATUS_TOPOLOGY in (metadata.get("annotations") or {}):
        return ()
    name = quote(metadata["name"])
    commands = [f"kubectl label node {name} {CMK_NODE_LABEL}-"] if CMK_NODE_LABEL in labels else []
    taints = node.get("spec", {}).get("taints") or ()
    if any(taint.get("key") == CMK_TAINT_KEY for taint in taints):
        commands.append(f"kubectl taint node {name} {CMK_TAINT_KEY}-")
    if patch := ",".join(_removed(status)):
        commands.append(f"kubectl patch node {name} --subresource=status --type=json -p '[{patch}]'")
    return tuple(commands)


def _removed(status: Any) -> Iterator[str]:
    for part in ("capacity", "allocatable"):
        for resource in CMK_RESOURCES:
            if resource in (status.get(part) or {}):
                yield f'{{"op": "remove", "path": "/status/{part}/{resource.replace("/", "~1")}"}}'


def script(found: Iterable[Leftover], nodes: Sequence[Any]) -> str:
    """Return the commands that delete the objects, then the nodes' labels, taints and resources."""
    return "".join((HEADER, *_not_over(nodes), *_deletions(found), *_unmarked(nodes)))


def _not_over(nodes: Sequence[Any]) -> Iterator[str]:
    """Yield a warning if CMK still runs on nodes, which need its objects."""
    if nodes:
        names = ", ".join(node["metadata"]["name"] for node in nodes[:_NAMES_A_LINE])
        more = ", ..." if len(nodes) > _NAMES_A_LINE else ""
        yield f"# Nodes with CMK's label, taint or resources and without an agent: {names}{more}\n"
        yield "# Install the agent on these nodes first, or CMK's pods on them lose their rights and their state.\n"


def _deletions(found: Iterable[Leftover]) -> Iterator[str]:
    ordered = sorted(found, key=lambda it: (_ORDER.index(it.plural), it))
    for (plural, place), group in groupby(ordered, key=lambda it: (it.plural, it.namespace)):
        if plural == "serviceaccounts":
            yield ACCOUNT_NOTE.format(place=quote(place))
        scope = f"-n {quote(place)} " if place else ""
        names = [quote(it.name) for it in group]
        for at in range(0, len(names), _NAMES_A_LINE):
            listed = " ".join(names[at : at + _NAMES_A_LINE])
            yield f"kubectl {scope}delete {plural} {listed} --ignore-not-found\n"


def _unmarked(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        yield from (f"{command}\n" for command in node_marks(node))
