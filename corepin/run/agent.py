"""`corepin agent`: run the agent that assigns the CPUs of one node."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from corepin.errors import CommandFailed
from corepin.flags import (
    add_flag,
    add_list_flag,
    add_optional_flag,
    listed,
    optional_address,
)
from corepin.host_flags import add_host_flags, keeps_topology, publishes_near_cpus, runtime_endpoint
from pinning.contract import (
    AGENT_CONFIG,
    AGENT_NAMESPACE,
    AGENT_SOCKET,
    AGENT_STATE,
    GATE_CPU_MANAGER,
    GATE_SIDECAR,
    IRQBALANCE,
    SIDECAR_CPU,
    SIDECAR_MEMORY,
)
from pinning.planning.cpu_groups import NO_GROUP

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine

    from agent.config import AgentConfig, ApiFlags, NodeOptions
    from agent.group_start import ConfigFiles
    from pinning.planning.node_config import NodeConfig

CONFIG = Path(AGENT_CONFIG)
TAINTS = frozenset({"cmk", "overcommit"})
# The flag has the same values for agent and webhook; the agent uses only GATE_CPU_MANAGER.
GATES = frozenset({GATE_CPU_MANAGER, GATE_SIDECAR})
DESCRIPTION = "Own the CPUs of one node: pin the containers with CPU claims, and verify it in the kernel."
EPILOG = """\
Containers are found by the runtime's CRI socket, their cpusets in the kernel's cgroups, their pods at the API server
(in-cluster account) or in a directory. The checkpoint below --state-dir never has to be deleted by hand. SIGTERM
leaves every container as it is; --reset gives every container all CPUs back, removes what the agent reported, and exits.
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb `agent` to the command."""
    parser = subparsers.add_parser(
        "agent", help="own the CPUs of one node", description=DESCRIPTION, epilog=EPILOG
    )
    add_optional_flag(
        parser, "--node", "NAME", "this node, as the API server names it; default: the host name"
    )
    runs = (
        "cri: the node's container runtime; local: the agent runs the pods of --pods-dir as plain processes"
    )
    add_flag(parser, "--runtime", "cri|local", runs, "cri")
    add_host_flags(parser)
    pods = "directory of pod manifests, read instead of the API server's pods"
    add_optional_flag(parser, "--pods-dir", "DIR", pods)
    state = "directory of checkpoint and lock; it must survive the agent's pod"
    add_flag(parser, "--state-dir", "DIR", state, AGENT_STATE)
    add_optional_flag(parser, "--config", "FILE", f"node configuration; default: {CONFIG} if there is one")
    add_optional_flag(
        parser,
        "--kubelet-configz",
        "https://NODE:10250/configz",
        "ask the kubelet at start for its reserved CPUs and its CPU manager policy; needs `get` on nodes/configz; default: off",
    )
    add_optional_flag(
        parser,
        "--cmk-install-dir",
        "DIR",
        "answer `cmk isolate` of containers that mount this directory of the host; default: off",
    )
    _add_quiet_flags(parser)
    near = "place containers near devices of ResourceClaims too; needs `list` on resourceslices"
    add_flag(parser, "--near-dra", "on|off", near, "off")
    _add_served_flags(parser)
    _add_api_flags(parser)
    undo = "give all containers all CPUs, remove what the agent reported, and exit"
    parser.add_argument("--reset", action="store_true", help=undo)
    return parser


def _add_served_flags(parser: argparse.ArgumentParser) -> None:
    served = "where to serve health and metrics, plain HTTP; off: not served"
    add_flag(parser, "--metrics-listen", "HOST:PORT", served, ":8081")
    state = "socket that serves the agent's state as JSON, for corepin map, doctor and cmk; off: not served"
    add_flag(parser, "--socket", "PATH", state, AGENT_SOCKET)


def _add_quiet_flags(parser: argparse.ArgumentParser) -> None:
    irq = "the host's /proc/irq, writable, to keep interrupts off the CPUs of pods that ask for it; default: off"
    add_optional_flag(parser, "--irq", "DIR", irq)
    masks = "the host's /sys/devices/virtual/workqueue, writable, with --irq to keep workqueues off too; default: off"
    add_optional_flag(parser, "--workqueues", "DIR", masks)
    power = "the host's /sys/devices/system/cpu, writable, with --irq to bound idle states; default: off"
    add_optional_flag(parser, "--power", "DIR", power)
    add_flag(parser, "--irqbalance", "DIR", "where the host's irqbalance has its socket", IRQBALANCE)


def _add_api_flags(parser: argparse.ArgumentParser) -> None:
    add_optional_flag(parser, "--api-server", "URL", "the API server; default: the one of the agent's pod")
    add_optional_flag(parser, "--api-ca", "FILE", "with --api-server: its CA in PEM")
    add_optional_flag(parser, "--api-token", "FILE", "with --api-server: the agent's token")
    add_flag(
        parser,
        "--namespace",
        "NAME",
        "the agents' namespace, which has the ConfigMap cmk-config-NODE",
        AGENT_NAMESPACE,
    )
    add_list_flag(
        parser,
        "--feature-gates",
        "GATE,...",
        "features to turn on, e.g. CPUManager, which labels the node for KubeVirt",
    )
    add_list_flag(
        parser,
        "--taint",
        "cmk|overcommit",
        "taints to set: cmk is cmk=true:NoSchedule, overcommit is set while the shared CPUs are overcommitted",
    )
    add_flag(parser, "--cmk-reports", "on|off", "write CMK's reports about this node as objects", "off")
    text = "the webhook's sidecarResources, to report what its sidecars cost"
    add_flag(parser, "--sidecar-resources", "CPU,MEMORY", text, f"{SIDECAR_CPU},{SIDECAR_MEMORY}")


def run(args: argparse.Namespace) -> int:
    """Run the agent until SIGTERM, or with `--reset` undo its changes."""
    from agent import main
    from logs import formatter

    config, files = _config(args), _files(args)
    formatter.configure()
    _log_flags(args)
    work = main.reset if args.reset else main.run
    _finish(work(config, None if config.pods_dir else files))
    return 0


def _finish(work: Coroutine[object, object, None]) -> None:
    """Run the agent; turn errors that an operator can fix into CommandFailed, which prints one line."""
    import asyncio

    from agent.errors import AgentError
    from apiserver.errors import APIError
    from pinning.errors import PinningError

    try:
        asyncio.run(work)
    except (AgentError, APIError, PinningError) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:  # from opening a folder, a socket or a port
        problem = ": ".join(filter(None, (error.filename, error.strerror or str(error))))
        raise CommandFailed(f"{problem}: fix that, or name another with its flag") from error


def _config(args: argparse.Namespace) -> AgentConfig:
    from agent.config import AgentConfig, parse_cmk_reports, parse_configz, parse_dra, parse_nri
    from pinning.errors import BadContract

    try:
        return AgentConfig(
            node=args.node or socket.gethostname().lower(),
            state_dir=Path(args.state_dir),
            runtime=args.runtime,
            runtime_endpoint=runtime_endpoint(args),
            pods_dir=_path(args.pods_dir),
            root=Path(args.sysfs_root),
            cgroup_root=Path(args.cgroup_root),
            debugfs=Path(args.debugfs),
            interrupts=Path(args.interrupts),
            irq=_path(args.irq),
            workqueues=_path(args.workqueues),
            power=_path(args.power),
            irqbalance=Path(args.irqbalance),
            kubelet_cgroup_root=args.kubelet_cgroup_root,
            nri=parse_nri(args.nri),
            cmk_install_dir=_path(args.cmk_install_dir),
            config=_first_config(args),
            kubelet_state=Path(args.kubelet_state),
            kubelet_url=parse_configz(args.kubelet_configz),
            listen=optional_address("--metrics-listen", args.metrics_listen, ":8081"),
            socket=None if args.socket == "off" else Path(args.socket),
            api=_api(args),
            namespace=args.namespace,
            node_options=_node_options(args),
            cmk_reports=parse_cmk_reports(args.cmk_reports),
            dra=parse_dra(args.dra, parse_nri(args.nri)),
            near_dra=_near_dra(args),
            kubelet_root=Path(args.kubelet_root),
            cdi=Path(args.cdi_dir),
        )
    except BadContract as problem:
        raise CommandFailed(str(problem)) from problem


def _near_dra(args: argparse.Namespace) -> bool:
    from agent.config import parse_near_dra

    return parse_near_dra(args.near_dra)


def _first_config(args: argparse.Namespace) -> NodeConfig:
    """Return the file's configuration with --pods-dir; else the default, until the node's label chooses a file."""
    from pinning.planning.node_config import DEFAULT

    return _files(args).load(NO_GROUP) if args.pods_dir else DEFAULT


def _files(args: argparse.Namespace) -> ConfigFiles:
    """Return the configuration files; raise CommandFailed if a flag names a missing one."""
    from agent.group_start import ConfigFiles
    from corepin.node_file import read_node_file

    file = Path(args.config) if args.config else CONFIG
    files = ConfigFiles(file, lambda path: read_node_file(str(path)), is_named=bool(args.config))
    if files.is_named and not files.groups():
        files.load(NO_GROUP)
    return files


def _api(args: argparse.Namespace) -> ApiFlags | None:
    from agent.config import ApiFlags

    if args.api_server is None:
        return None
    return ApiFlags(args.api_server, _path(args.api_ca), _path(args.api_token))


def _node_options(args: argparse.Namespace) -> NodeOptions:
    from agent.config import NodeOptions, parse_sidecar

    taints = listed("--taint", _split(args.taint))
    if not taints <= TAINTS:
        wrong = ", ".join(sorted(taints - TAINTS))
        raise CommandFailed(f"--taint: {wrong} is unknown: write {' or '.join(sorted(TAINTS))}")
    gates = listed("--feature-gates", _split(args.feature_gates))
    if not gates <= GATES:
        wrong = ", ".join(sorted(gates - GATES))
        raise CommandFailed(f"--feature-gates: {wrong} is unknown: write {' or '.join(sorted(GATES))}")
    sidecar = parse_sidecar(args.sidecar_resources)
    return NodeOptions(
        gates,
        "cmk" in taints,
        "overcommit" in taints,
        sidecar,
        topology=keeps_topology(args),
        near_cpus=publishes_near_cpus(args),
    )


def _split(given: list[str] | None) -> list[str] | None:
    return None if given is None else [name for text in given for name in text.split(",")]


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _log_flags(args: argparse.Namespace) -> None:
    """Log the effective flags; none of them is a secret."""
    import logging

    facts = {name: value for name, value in vars(args).items() if name not in {"run", "verb"}}
    logging.getLogger("agent").info("starting", extra={"facts": facts})
