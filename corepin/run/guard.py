"""`corepin guard`: delay the start of containers that require their CPUs until the agent has assigned them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from corepin.errors import CommandFailed
from corepin.flags import add_flag, add_list_flag, add_optional_flag, listed, optional_address
from corepin.run.agent import CONFIG
from pinning.contract import AGENT_STATE, KUBELET_STATE, NRI_SOCKET
from pinning.planning.cpu_groups import NO_GROUP, key_of

if TYPE_CHECKING:
    import argparse

LISTEN: Final = ":8083"
EXEMPT: Final = "kube-system"
DESCRIPTION: Final = "Hold back containers that require their CPUs until the agent has assigned them."
EPILOG: Final = """\
It registers with the container runtime as an NRI plugin that validates (containerd 2.2 or later), changes nothing, and
needs no right except access to the socket. It checks pods with the annotation guard.corepin.io/pod: "true", which the
webhook gives to pods that require their CPUs (smt-policy require or isolate, CMK's resources, virtual machines), and
containers with ResourceClaims for CPUs. Where the agent only observes it admits everything.
"""

logger = logging.getLogger("agent.nri.guard")


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb `guard` to the command."""
    parser = subparsers.add_parser(
        "guard",
        help="hold back containers that require their CPUs while the agent is down",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    add_flag(parser, "--nri", "SOCKET", "the runtime's NRI socket", NRI_SOCKET)
    add_optional_flag(parser, "--namespace", "NAME", "the guard's own namespace, whose pods always start")
    text = f"other namespaces whose pods always start; may be repeated; default: {EXEMPT}"
    add_list_flag(parser, "--exempt", "NAMESPACE,...", text)
    add_flag(parser, "--config", "FILE", "the agent's node configuration", str(CONFIG))
    text = "the agent's state directory, which names the CPU group of this node"
    add_flag(parser, "--state-dir", "DIR", text, AGENT_STATE)
    add_flag(parser, "--kubelet-state", "FILE", "the kubelet's cpu_manager_state", KUBELET_STATE)
    add_flag(
        parser, "--health-listen", "HOST:PORT", "where to serve health, plain HTTP; off: not served", LISTEN
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Guard until SIGTERM; raise CommandFailed if the kubelet's state file is replaced."""
    from agent.kubelet.policy import MountedState
    from agent.nri import guard_process
    from agent.nri.guard import Guard
    from logs import formatter

    listen = optional_address("--health-listen", args.health_listen, LISTEN)
    config, kubelet_state, state_dir = Path(args.config), Path(args.kubelet_state), Path(args.state_dir)
    guard = Guard(exempt(args), lambda: observes(config, kubelet_state, state_dir))
    formatter.configure()
    facts = {name: value for name, value in vars(args).items() if name not in {"run", "verb"}}
    logger.info("starting", extra={"facts": facts})
    try:
        reason = guard_process.run(Path(args.nri), guard, listen, MountedState(kubelet_state).replaced)
    except OSError as error:  # from binding the health address
        problem = f"--health-listen: cannot listen on {args.health_listen}: {error.strerror or error}"
        raise CommandFailed(f"{problem}: name another address, or off") from error
    if reason:
        raise CommandFailed(f"{reason}: the guard exits, and reads the new file at its next start")
    return 0


def exempt(args: argparse.Namespace) -> frozenset[str]:
    """Return the namespaces whose containers are never delayed."""
    given = None if args.exempt is None else [name for text in args.exempt for name in text.split(",")]
    named = listed("--exempt", given) or {EXEMPT}
    return frozenset({*named, args.namespace} - {None})


def observes(config: Path, kubelet_state: Path, state_dir: Path) -> bool:
    """Return whether the agent only observes this node, by the same rule as in the agent.

    The configuration is that of the node's CPU group, which the agent stored in its state directory at its last start.
    Returns False if it cannot be read, because the agent does not run then.
    """
    from agent.group_start import GroupMemory
    from agent.kubelet.policy import read_kubelet_policy
    from corepin.node_file import read_node_file
    from pinning.contract import KubeletPolicy

    if read_kubelet_policy(kubelet_state) is KubeletPolicy.STATIC:
        return True
    try:
        file = config.with_name(key_of(GroupMemory(state_dir).recall() or NO_GROUP, config.name))
        return file.exists() and read_node_file(str(file)).observe
    # ValueError: the name of the group is not valid as a file name.
    except (CommandFailed, OSError, ValueError) as error:
        logger.warning("node configuration not read", extra={"facts": {"reason": str(error)}})
        return False
