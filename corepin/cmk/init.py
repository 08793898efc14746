"""`corepin cmk init --dry-run`: print the pools that CMK's flags would create on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.flags import (
    add_obsolete,
    add_pool_flags,
    cores,
    listed_cores,
    mode,
    note,
    reserved_cpus,
    warn_obsolete,
)
from corepin.documents import write_out
from corepin.errors import CommandFailed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pinning.machine.topology import Topology
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets

OBSOLETE: Final = {
    "--conf-dir": "the agent of each node stores the data of that directory",
    "--socket-id": "CMK itself read and ignored it",
    "--namespace": "nothing is written",
}
FLAGS: Final = {  # flags by the key of the configuration that they set
    "reserved": "--reserved-cpus",
    "pools.exclusive_cores": "--num-exclusive-cores",
    "pools.shared_cores": "--num-shared-cores",
    "pools.exclusive_non_isolcpus": "--excl-non-isolcpus",
}
DESCRIPTION = (
    "Show the pools that CMK's flags would create on a machine, as in CMK's ConfigMap. Nothing is written."
)
EPILOG = """\
CMK put all remaining cores into the pool infra. corepin first reserves whole cores for infra, by default the core of
the lowest CPU outside of isolcpus.
"""


def add_parser(verbs: Any) -> None:
    """Add the verb `init` to `corepin cmk`."""
    parser = verbs.add_parser(
        "init",
        help="show the pools that CMK's flags would create on a machine",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="accepted without effect, because nothing is ever written"
    )
    parser.add_argument(
        "--topology",
        metavar="FILE|DIR",
        default="/",
        help="the machine: JSON of lscpu, or a directory that stands for /, with a copy of sys (default: this machine)",
    )
    add_pool_flags(parser)
    add_obsolete(parser, *OBSOLETE)
    parser.set_defaults(cmk=run)


def run(args: argparse.Namespace) -> int:
    """Print the pools that the flags create on a machine."""
    from corepin.offline.plan import read_machine
    from pinning.errors import PinningError

    warn_obsolete(args, OBSOLETE)
    if not args.dry_run:
        remedy = "add --dry-run to see the pools, and set the numbers of the cluster with `corepin cmk cluster-init`"
        raise CommandFailed(
            f"init: the agents create the pools of their nodes from their configuration: {remedy}"
        )
    try:
        write_out(pools_text(read_machine(args.topology), read_pools(args)))
    except PinningError as problem:
        raise CommandFailed(_with_flags(str(problem))) from problem
    return 0


def _with_flags(problem: str) -> str:
    """Return an error message in which flags replace the names of configuration keys."""
    key, _, why = problem.partition(": ")
    return f"{FLAGS[key]}: {why}" if key in FLAGS else problem


def pools_text(topology: Topology, config: NodeConfig) -> str:
    """Return the pools of a machine without pods as text; raise PinningError if the numbers do not fit."""
    from pinning.cmk.pools import CMKNode, cmk_pools, cmk_yaml
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_sets import check_machine, node_sets

    check_machine(topology, topology.online, config)
    sets = node_sets(topology, topology.online, config)
    note(f"CPUs {sets.reserved} are reserved ({sets.reserve_source})")
    for warning in _warnings(sets):
        note(warning)
    pools, ledger = sets.pools, Ledger()
    node = CMKNode(
        topology,
        sets.universe,
        pools.exclusive,
        pools.non_isolcpus,
        pools.set_aside,
        sets.shared(ledger),
        ledger,
        is_static=pools.is_static,
    )
    return cmk_yaml(cmk_pools(node))


def _warnings(sets: NodeSets) -> Iterator[str]:
    """Yield warnings about isolated cores outside of the pools."""
    from pinning.machine.cpuset import union
    from pinning.planning.ledger import Ledger

    stranded = (sets.isolated & sets.unpooled) - sets.shared(Ledger()) - sets.reserved
    whole = union(core.cpus for core in sets.topology.cores if core.cpus <= sets.isolated)
    if stranded & whole:
        yield (
            f"CPUs {stranded & whole} are in isolcpus and in no pool, so that nothing runs there: raise"
            " --num-exclusive-cores or --num-shared-cores, or take them out of isolcpus"
        )
    for core in sets.topology.cores:
        isolated = core.cpus & sets.isolated
        if isolated and isolated != core.cpus:
            yield (
                f"of the core {core.cpus} only CPUs {isolated} are in isolcpus: it counts as not isolated;"
                f" name all of {core.cpus} in isolcpus, or none"
            )


def _given(text: str | None, default: str) -> str:
    return default if text is None else text


def read_pools(args: argparse.Namespace) -> NodeConfig:
    """Return the configuration given by the flags."""
    from pinning.planning.node_config import read_node_config

    given = {
        "exclusive_cores": cores("--num-exclusive-cores", _given(args.num_exclusive_cores, "4")),
        "shared_cores": cores("--num-shared-cores", _given(args.num_shared_cores, "1")),
        "exclusive_mode": mode("--exclusive-mode", _given(args.exclusive_mode, "packed")),
        "shared_mode": mode("--shared-mode", _given(args.shared_mode, "packed")),
    }
    listed = listed_cores("--excl-non-isolcpus", _given(args.excl_non_isolcpus, "-1"))
    pools = {**given, "exclusive_non_isolcpus": listed} if listed else given
    return read_node_config({"pools": pools, "reserved": reserved_cpus(args.reserved_cpus)})
