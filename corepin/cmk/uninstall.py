"""`corepin cmk uninstall`: remove the agents from some or all nodes, with everything that they wrote there."""

from __future__ import annotations

import time
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.cluster_init import add_host_flags, read_hosts
from corepin.cmk.flags import add_obsolete, note, warn_obsolete
from corepin.cmk.install import NODES, chosen_nodes, label
from corepin.cmk.namespaces import (
    AGENTS,
    RESERVED,
    SYSTEM_PREFIX,
    first_of_others,
    is_created_by_us,
    namespace_name,
)
from corepin.cmk.requests import Answered, kube_client, send
from corepin.documents import write_out
from corepin.errors import CommandFailed
from pinning.contract import (
    AGENT_NAMESPACE,
    AGENT_NODE_LABEL,
    CMK_CONFIG_MAP_PREFIX,
    CMK_GROUP_VERSION,
    CMK_NODE_REPORT,
    CMK_RECONCILE_REPORT,
    CPU_GROUP_LABEL,
    CREATED_BY,
    CREATED_BY_CLUSTER_INIT,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import httpx

    from corepin.cmk.overlay import Object

OBSOLETE: Final = {
    "--install-dir": "the agent of a node knows where it installed the command `cmk`",
    "--conf-dir": "corepin has no such directory",
}
DESCRIPTION = "Remove the agents from nodes on which `corepin cmk cluster-init` installed them, with everything they wrote."
EPILOG = """\
Without --apply it prints the pod that would clean each node, and changes nothing. Running containers get all CPUs.
Webhook, rights and kinds are the whole cluster's and stay; the last lines say how to remove them.
"""
# Kinds of the agents' objects in their namespace.
IN_NAMESPACE: Final = (
    "daemonsets",
    "configmaps",
    "roles",
    "rolebindings",
    "serviceaccounts",
    "networkpolicies",
)
PATIENCE_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.5


def add_parser(verbs: Any) -> None:
    """Add the verb `uninstall` to `corepin cmk`."""
    parser = verbs.add_parser(
        "uninstall", help="remove corepin from some nodes or from all", description=DESCRIPTION, epilog=EPILOG
    )
    add_host_flags(parser, f"every node with the label {AGENT_NODE_LABEL}=true, cordoned ones too")
    parser.add_argument("--apply", action="store_true", help="remove the agents, and wait until it is done")
    place = f"namespace of the agents (default: {AGENT_NAMESPACE})"
    parser.add_argument("--namespace", metavar="NAME", default=AGENT_NAMESPACE, help=place)
    add_obsolete(parser, *OBSOLETE)
    parser.set_defaults(cmk=run)


def run(args: argparse.Namespace) -> int:
    """Print the pods that would reset the nodes, or create them (`--apply`)."""
    warn_obsolete(args, OBSOLETE)
    hosts, namespace = read_hosts(args.host_list), namespace_name(args.namespace)
    with kube_client() as api:
        daemon_set = _daemon_set(api, namespace)
        query = "" if hosts else f"?labelSelector={AGENT_NODE_LABEL}%3Dtrue"
        nodes = chosen_nodes(send(api, "GET", NODES + query)["items"], hosts, every=True)
        pods = [reset_pod(daemon_set, node) for node in nodes]
        if args.apply:
            clean(api, namespace, pods)
        else:
            from kubeyaml.writer import write_yaml

            write_out(write_yaml(pods))
        rest = () if hosts else the_rest(namespace, is_ours=_is_ours(api, namespace))
    if not hosts:
        for line in rest:
            note(line)
    return 0


def the_rest(namespace: str, *, is_ours: bool) -> tuple[str, ...]:
    """Return the commands by which users delete the remaining objects; `is_ours`: also the namespace."""
    delete = "kubectl delete --ignore-not-found -f -"
    lines = []
    chosen = "" if namespace == AGENT_NAMESPACE else f" --namespace={namespace}"
    # Earlier versions accepted these namespaces.
    if namespace in RESERVED or namespace.startswith(SYSTEM_PREFIX):
        lines.append(
            f"to remove the rest: kubectl -n {namespace} delete {','.join(IN_NAMESPACE)} -l {AGENTS}"
        )
        chosen = ""
    lines.append(f"to remove the rest: corepin cmk cluster-init --all-hosts{chosen} | {delete}")
    if namespace == AGENT_NAMESPACE:
        return tuple(lines)
    if not is_ours:
        return (
            *lines,
            f"the namespace {namespace} stays: corepin did not create it, or it has objects of other programs",
        )
    chosen = f"-l {CREATED_BY}={CREATED_BY_CLUSTER_INIT} --field-selector=metadata.name={namespace}"
    return (*lines, f"to remove the namespace: kubectl delete namespaces {chosen}")


def reset_pod(daemon_set: Object, node: str) -> Object:
    """Return the pod that undoes the agent's work on a node: the agent's own pod, with `--reset`."""
    spec = deepcopy(daemon_set["spec"]["template"]["spec"])
    (container,) = spec["containers"]
    container["args"] = [*container["args"], "--reset"]
    for key in ("livenessProbe", "readinessProbe", "ports"):
        container.pop(key, None)
    spec.pop("nodeSelector", None)
    metadata = {
        "name": f"corepin-reset-{node}",
        "namespace": daemon_set["metadata"]["namespace"],
        "labels": {"app.kubernetes.io/name": "corepin", "app.kubernetes.io/component": "reset"},
    }
    # The reset pod restarts on failure, until the terminating agent has released its lock.
    spec |= {"nodeName": node, "restartPolicy": "OnFailure"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _is_ours(api: Any, namespace: str) -> bool:
    """Return whether the namespace has corepin's label, and no objects of other programs.

    Users may be allowed to label their own namespace, so the label alone is not enough. Returns False if the API server
    refuses a request.
    """
    try:
        shown = send(api, "GET", f"/api/v1/namespaces/{namespace}")
        return is_created_by_us(shown) and not first_of_others(api, namespace)
    except CommandFailed:
        return False


def _daemon_set(api: Any, namespace: str) -> Any:
    """Return the agents' DaemonSet; raise CommandFailed if it does not select nodes by the label."""
    try:
        found = send(api, "GET", f"/apis/apps/v1/namespaces/{namespace}/daemonsets/corepin-agent")
    except Answered as error:
        raise CommandFailed(f"{error}: name the agents' namespace with --namespace") from error
    if AGENT_NODE_LABEL not in (found["spec"]["template"]["spec"].get("nodeSelector") or {}):
        problem = (
            f"the agents of this cluster run on every node, with or without the label {AGENT_NODE_LABEL}"
        )
        raise CommandFailed(f"{problem}: uninstall as docs/operator-guide.md says")
    return found


def clean(
    api: httpx.Client, namespace: str, pods: Sequence[Object], seconds: float = PATIENCE_SECONDS
) -> None:
    """Remove the agents, run the reset pod on each node, and delete the agents' objects in the API.

    A node that is down delays the others at most once, and is named in the error.
    """
    folder = f"/api/v1/namespaces/{namespace}/pods"
    for pod in pods:
        label(api, pod["spec"]["nodeName"], {AGENT_NODE_LABEL: None})
        _delete(api, f"{folder}/{pod['metadata']['name']}?gracePeriodSeconds=0")
        send(api, "POST", folder, pod)
    deadline, stuck = time.monotonic() + seconds, []
    for pod in pods:
        node = pod["spec"]["nodeName"]
        if not _is_reset(api, f"{folder}/{pod['metadata']['name']}", deadline):
            stuck.append(node)
            continue
        for path in _left(namespace, node):
            _delete(api, path)
        # The label is removed last, because the reset pod has to read it.
        label(api, node, {CPU_GROUP_LABEL: None})
        write_out(f"node {node}: uninstalled\n")
    if stuck:
        nodes = ",".join(stuck)
        remedy = f"look at `kubectl logs` and `describe` of the pods corepin-reset-NODE, and repeat with --host-list={nodes}"
        raise CommandFailed(f"not clean after {seconds:.0f} seconds: {nodes}: {remedy}")


def _is_reset(api: httpx.Client, path: str, deadline: float) -> bool:
    """Wait until a node's reset pod has succeeded, and delete it; return False after the deadline."""
    while send(api, "GET", path).get("status", {}).get("phase") != "Succeeded":
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    _delete(api, path)
    return True


def _left(namespace: str, node: str) -> tuple[str, ...]:
    """Return the paths of a node's objects that agents may write but not delete."""
    reports = f"/apis/{CMK_GROUP_VERSION}/namespaces/{namespace}"
    return (
        f"/api/v1/namespaces/{namespace}/configmaps/{CMK_CONFIG_MAP_PREFIX}{node}",
        *(f"{reports}/{plural}/{node}" for _, plural in (CMK_NODE_REPORT, CMK_RECONCILE_REPORT)),
    )


def _delete(api: Any, path: str) -> None:
    """Delete an object if it exists."""
    with suppress(Answered):
        send(api, "DELETE", path)
