"""Flags for runtime, kernel and kubelet paths of a node, shared by agent and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corepin.errors import CommandFailed
from corepin.flags import add_flag, add_optional_flag
from pinning.contract import CDI_FOLDER, DEBUGFS, KUBELET_ROOT, KUBELET_STATE, NRI_SOCKET

if TYPE_CHECKING:
    import argparse


def add_host_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags with the paths of runtime, kernel and kubelet."""
    add_optional_flag(
        parser, "--runtime-endpoint", "SOCKET", "CRI socket; default: the first usual one that exists"
    )
    root = "directory at which the host's / is mounted, with sys and proc"
    add_flag(parser, "--sysfs-root", "DIR", root, "/")
    add_flag(parser, "--cgroup-root", "DIR", "where the host's cgroups are mounted", "/sys/fs/cgroup")
    add_flag(parser, "--kubelet-cgroup-root", "CGROUP", "the kubelet's cgroupRoot, above kubepods", "/")
    state = (
        "the kubelet's cpu_manager_state; its socket pod-resources/kubelet.sock is below the same directory"
    )
    add_flag(parser, "--kubelet-state", "FILE", state, KUBELET_STATE)
    add_flag(parser, "--debugfs", "DIR", "where the host's debugfs is mounted, if it is", DEBUGFS)
    interrupts = "the host's /proc/interrupts, which Kubernetes masks in containers from 1.34 on"
    add_flag(parser, "--interrupts", "FILE", interrupts, "/proc/interrupts")
    asks = f"NRI socket, over which the runtime asks the agent before it creates a container; auto: {NRI_SOCKET}, as soon as it exists"
    add_flag(parser, "--nri", "auto|off|SOCKET", asks, "auto")
    keeps = "whether the agent publishes a NodeResourceTopology with the free resources of each NUMA node, for schedulers"
    add_flag(parser, "--node-topology", "on|off", keeps, "off")
    near = "whether the agent publishes how many CPUs are free near the free devices of each device plugin"
    add_flag(parser, "--near-cpus", "on|off", near, "off")
    serves = "whether the agent is the driver of ResourceClaims for CPUs (DeviceClass cpu.corepin.io); needs Kubernetes 1.36 and NRI"
    add_flag(parser, "--dra", "on|off", serves, "off")
    add_flag(parser, "--kubelet-root", "DIR", "with --dra: the kubelet's root directory", KUBELET_ROOT)
    add_flag(parser, "--cdi-dir", "DIR", "with --dra: where the runtime reads CDI files", CDI_FOLDER)


def runtime_endpoint(args: argparse.Namespace) -> Path | None:
    """Return the path of the runtime's socket, which the flag may give with `unix://`; None without the flag."""
    return Path(args.runtime_endpoint.removeprefix("unix://")) if args.runtime_endpoint else None


def keeps_topology(args: argparse.Namespace) -> bool:
    """Return whether the agent publishes the free resources of NUMA nodes; raise CommandFailed unless on or off."""
    return _is_on("--node-topology", args.node_topology)


def publishes_near_cpus(args: argparse.Namespace) -> bool:
    """Return whether the agent publishes the free CPUs near devices; raise CommandFailed unless on or off."""
    return _is_on("--near-cpus", args.near_cpus)


def _is_on(flag: str, value: str) -> bool:
    if value not in {"on", "off"}:
        raise CommandFailed(f"{flag}: {value!r} is unknown: write on or off")
    return value == "on"


def nri_socket(args: argparse.Namespace) -> Path:
    """Return the path of the runtime's NRI socket, even if NRI is off."""
    return Path(NRI_SOCKET if args.nri in {"auto", "off"} else args.nri)
