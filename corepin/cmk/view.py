"""State of a node for CMK's report commands, from this machine's agent or from objects in the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from corepin.errors import CommandFailed
from corepin.node.agent_socket import add_socket_flag, read_state
from pinning.cmk.pools import CMKNode, Reclaimed, Task, cmk_pools
from pinning.contract import AGENT_NAMESPACE, CMK_CONFIG_MAP_PREFIX, CMK_GROUP_VERSION, CMK_RECONCILE_REPORT
from pinning.errors import PinningError
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import Topology
from pinning.planning.ledger_json import ledger_from_dict
from published.agent_state import AgentState
from published.codec import AnotherVersion, decode
from published.node_topology import decode_topology

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pinning.cmk.pools import Lists

DAMAGED = (KeyError, TypeError, ValueError, AttributeError, PinningError)


class View(NamedTuple):
    """Pools, topology and reclaimed CPUs of one node, as CMK's commands print them."""

    node: str
    pools: Mapping[str, Lists]
    topology: Topology
    reclaimed: tuple[Reclaimed, ...] = ()
    dropped: int = 0  # number of older reclaimed entries that were dropped


def add_view_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select the node."""
    add_socket_flag(parser)
    parser.add_argument(
        "--node",
        metavar="NAME",
        help="a node of the cluster, through the kubeconfig, instead of the agent on this machine",
    )
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default=AGENT_NAMESPACE,
        help=f"with --node: namespace of the agents (default: {AGENT_NAMESPACE})",
    )


def read_view(args: argparse.Namespace) -> View:
    """Return the view of the node that the flags select."""
    if args.node:
        return _of_cluster(args.node, args.namespace)
    return view_of_state(read_state(args.socket))


def view_of_state(text: bytes) -> View:
    """Return the view of the agent's state; raise CommandFailed if another version of corepin wrote it."""
    try:
        state = decode(AgentState, text)
        sets = state.sets
        node = CMKNode(
            topology=Topology.from_dict(state.topology),
            universe=CPUSet.parse(sets.universe),
            exclusive=CPUSet.parse(sets.exclusive_pool),
            non_isolcpus=CPUSet.parse(sets.non_isolcpus_pool),
            set_aside=CPUSet.parse(sets.set_aside),
            shared=CPUSet.parse(sets.shared),
            ledger=ledger_from_dict(state.ledger),
            tasks=tuple(Task(it.pid, it.container, it.pool, CPUSet.parse(it.cpus)) for it in state.tasks),
            pids=state.first_pids,
            is_static=state.static_pools,
        )
        reclaimed = tuple(
            Reclaimed(it.pid, it.container, it.pool, it.cpus, it.source) for it in state.reclaimed
        )
        return View(state.node, cmk_pools(node), node.topology, reclaimed, state.reclaims_dropped)
    except PinningError as error:
        raise CommandFailed(str(AnotherVersion.of(AgentState.NAME, error))) from error


def _of_cluster(node: str, namespace: str) -> View:
    """Read the objects of a node's agent: the machine, CMK's ConfigMap, and its last report of reclaimed CPUs."""
    from corepin.cmk.requests import Answered, kube_client, send
    from corepin.node.kube_node import read_node

    topology = read_node(node).topology
    with kube_client() as api:
        try:
            written = send(
                api, "GET", f"/api/v1/namespaces/{namespace}/configmaps/{CMK_CONFIG_MAP_PREFIX}{node}"
            )
        except Answered as error:
            raise CommandFailed(f"{error}: name the agents' namespace with --namespace") from error
        try:
            plural = CMK_RECONCILE_REPORT[1]
            report = send(api, "GET", f"/apis/{CMK_GROUP_VERSION}/namespaces/{namespace}/{plural}/{node}")
        except Answered:  # only the component `cmk` installs the kinds of these objects
            report = {}
    return view_of_objects(node, topology, written, report)


def view_of_objects(node: str, topology: str, written: Mapping[str, Any], report: Mapping[str, Any]) -> View:
    """Return the view of an agent's objects; raise CommandFailed if another version of corepin wrote them."""
    from kubeyaml.reader import BadYAML, read_yaml

    try:
        ((_, pools),) = read_yaml(written["data"]["config"])
        found = (report.get("spec") or {}).get("report") or {}
        lists = found.get("reclaimedCpuLists") or ()
        reclaimed = tuple(
            Reclaimed(it["pid"], "", it["pool"], it["cpus"], it.get("source", "")) for it in lists
        )
        machine, dropped = decode_topology(topology), found.get("dropped") or 0
        return View(node, _numbered(pools), machine, reclaimed, dropped)
    except (*DAMAGED, BadYAML) as error:
        problem = (
            f"node {node}: the data of its agent is from another version of corepin, or damaged ({error!r})"
        )
        raise CommandFailed(f"{problem}: use the same version") from error


def _numbered(pools: Mapping[str, Lists]) -> dict[str, Lists]:
    """Return pools with process ids as numbers; in CMK's YAML they are strings."""
    return {
        pool: {
            socket: {cpus: [int(holder) for holder in holders] for cpus, holders in lists.items()}
            for socket, lists in sockets.items()
        }
        for pool, sockets in pools.items()
    }
