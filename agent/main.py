"""Entry point: choose each interface's implementation by the configuration; import heavy modules lazily."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import disable_created_metrics

from agent import cmk_command
from agent.absent import (
    NoBootingMachines,
    NoContainerWatch,
    NoDeviceClaims,
    NoDevices,
    NoObservedCPUs,
    NoVirtualMachines,
    NoWrappers,
)
from agent.access import api_access, open_api
from agent.clock import Clock
from agent.errors import Refused, Unavailable
from agent.group_start import GroupMemory
from agent.group_wait import reset_with, started_with, wait_for_newer
from agent.interfaces import Interfaces
from agent.kernel.cgroup_names import pod_roots
from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.cgroups import open_cgroups
from agent.kernel.cpusets import KernelCpusets
from agent.kernel.machine import NO_POD_ROOT, NodeMachine, machine_id
from agent.kernel.machine_watch import KernelMachineWatch
from agent.kubelet.policy import LOOK_SECONDS, MountedState, state_files
from agent.metrics import Metrics
from agent.process import Agent, Listeners, Parts, run_until_signal
from agent.quiet.assembly import quieting_of
from agent.reconcile.checkpoint import NeedsNewer, StateDir, Unusable
from agent.reconcile.reconciler import Settings
from agent.reconcile.reserve import start_config
from pinning.planning.node_config import ExecAffinity
from pinning.planning.node_sets import check_machine

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from agent.claim_interfaces import DeviceClaims
    from agent.config import AgentConfig
    from agent.cri.runtime import CRI
    from agent.group_start import ConfigFiles
    from agent.interfaces import (
        Cgroups,
        ContainerWatch,
        Cpusets,
        Devices,
        Machine,
        ObservedCPUs,
        PodSource,
        Runtime,
        Wrappers,
    )
    from agent.quiet.execs import ExecWatch
    from agent.quiet.watch import NoiseWatch
    from agent.reconcile.agenda import Agenda
    from agent.reconcile.checkpoint import Saved
    from agent.report.publisher import Reporter
    from agent.vm_interfaces import BootingMachines, VirtualMachines
    from agent.wrappers.claims import AskExit
    from apiserver.client import Api

logger = logging.getLogger(__name__)


async def run(config: AgentConfig, files: ConfigFiles | None = None) -> None:
    """Run the agent of this node until SIGTERM; the node's label chooses its configuration from `files`."""
    disable_created_metrics()  # type: ignore[no-untyped-call] # a third of the exposition, and unused
    if config.cmk_install_dir:
        _install_command(config.cmk_install_dir)
    await run_until_signal(_work(config, files))


async def _work(config: AgentConfig, files: ConfigFiles | None) -> None:
    config = await started_with(config, files)
    try:
        agent = await build(config)
    except NeedsNewer as problem:
        await wait_for_newer(config, str(problem))
    gc.collect()
    gc.freeze()  # objects loaded so far are permanent, so garbage collections skip them
    serving, agenda = agent.serve(Listeners(config.listen, config.socket)), agent.trigger.agenda
    await (_serve_until_outdated(serving, agenda, config.kubelet_state) if config.kubelet_state else serving)


async def _serve_until_outdated(work: Coroutine[object, object, None], agenda: Agenda, state: Path) -> None:
    """Serve until the kubelet's state file is replaced; then raise Refused, so that a new container mounts it."""
    mounted, outdated = MountedState(state), asyncio.get_running_loop().create_future()

    def look() -> float | None:
        reason = mounted.replaced()
        if reason:
            outdated.set_result(reason)
        return None if reason else LOOK_SECONDS

    agenda.add_poll("kubelet's mounted state", look, 0.0)
    serving = asyncio.create_task(work)
    try:
        await asyncio.wait((serving, outdated), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            return await serving
        raise Refused(f"{outdated.result()}: the agent exits, and reads the new file at its next start")
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


async def reset(config: AgentConfig, files: ConfigFiles | None = None) -> None:
    """Let every container run on all CPUs again, and remove everything that the agent published."""
    config = await reset_with(config, files)
    agent = await build(config)
    await _reset_with_claims(config, agent)
    if files:
        GroupMemory(config.state_dir, config.node).forget()
    if config.cmk_install_dir:
        cmk_command.remove(config.cmk_install_dir)


async def _reset_with_claims(config: AgentConfig, agent: Agent) -> None:
    """Reset the agent, and serve the kubelet until it has unprepared all ResourceClaims."""
    if config.pods_dir or not config.dra or config.runtime != "cri":
        return await agent.reset()
    from agent.dra.closing import ClosingDriver
    from agent.dra.reader import ClaimReader

    api = open_api(config)
    reader = ClaimReader(api, config.node)
    try:
        driver = ClosingDriver(reader, config.node, config.kubelet_root, config.cdi)
        await driver.serve_during(agent.reset())
    finally:
        await api.close()


def _install_command(folder: Path) -> None:
    """Install the command `cmk`; if that fails, the agent runs without it."""
    try:
        is_new = cmk_command.install(folder)
    except OSError as error:
        facts = {"folder": str(folder), "reason": str(error)}
        logger.error("cmk command not installed", extra={"facts": facts})
        return
    if is_new:
        logger.info("cmk command installed", extra={"facts": {"folder": str(folder)}})


async def build(config: AgentConfig) -> Agent:
    """Return the agent of this node; raise AgentError or PinningError for a fault that an operator must correct.

    The checkpoint is read first: an agent that cannot use it must change nothing.
    """
    state_dir = StateDir(config.state_dir)
    saved = load(state_dir, machine_id(config.root))
    api = None if config.pods_dir else open_api(config)
    pods = _pods(config, api)
    metrics = Metrics()
    devices = _devices(config, api, metrics)
    runtime, cgroups, container_watch = await _runtime(config, pods, devices)
    machine = _machine(config, cgroups.cpusets, saved)
    if config.runtime == "cri":
        _warn_without_pod_root(machine, config)
    topology = machine.topology()
    check_machine(topology, machine.universe(topology), start_config(config.config, saved, machine))
    settings = await _settings(config, machine)
    observed = _observed_cpus(config, runtime)
    vms = _virtual_machines(config, cgroups)
    wrappers = _wrappers(config, cgroups, machine, runtime)
    boots = _booting_machines(config)
    claims = _claims(config, api, metrics)
    edges = runtime, cgroups, pods, machine, container_watch
    interfaces = Interfaces(*edges, observed, vms, wrappers, boots, devices, claims)
    chosen = (*reporters(config, api, interfaces.pods, metrics), *_slices(config, api, claims))
    noise, execs = _noise_watch(config, metrics), _exec_watch(config, runtime, metrics)
    quieting = quieting_of(config, state_dir, machine)
    watch = _machine_watch(config, cgroups.cpusets, machine)
    parts = Parts(interfaces, settings, state_dir, saved, chosen, metrics, machine_watch=watch)
    return Agent(replace(parts, noise=noise, execs=execs, quieting=quieting))


def _machine(config: AgentConfig, cpusets: Cpusets, saved: Saved | None) -> NodeMachine:
    """Return the machine, which starts with the topology and CPUs in the checkpoint."""
    roots = pod_roots(config.kubelet_cgroup_root)
    widen = cpusets.widen if isinstance(cpusets, KernelCpusets) else None
    make = partial(NodeMachine, config.root, cpusets, widen=widen, pod_roots=roots)
    machine = make()
    if saved is None or saved.boot_id != machine.boot_id():
        return machine
    return make(known=saved.topology, pod_cpus=saved.universe)


def _machine_watch(config: AgentConfig, cpusets: Cpusets, machine: NodeMachine) -> KernelMachineWatch | None:
    """Return the watch of this kernel's CPUs and cgroups and of the kubelet's state; None on a simulated machine."""
    if config.root != Path("/") or not isinstance(cpusets, KernelCpusets):
        return None
    kubelet = state_files(config.kubelet_state) if config.kubelet_state else ()
    try:
        return KernelMachineWatch(lambda: (*map(cpusets.file, machine.cgroups), *kubelet))
    except Refused as error:
        logger.warning("no inotify, polling", extra={"facts": {"what": "machine", "reason": str(error)}})
        return None


def _warn_without_pod_root(machine: NodeMachine, config: AgentConfig) -> None:
    """Warn if the kubelet's pod root is not found, because CPUs that pods may not use could be allocated."""
    if machine.pod_root() == NO_POD_ROOT:
        facts = {
            "looked_for": pod_roots(config.kubelet_cgroup_root),
            "remedy": "start the kubelet, or name its cgroupRoot with --kubelet-cgroup-root",
        }
        logger.warning("no cgroup of the kubelet found, all CPUs are used", extra={"facts": facts})


def load(state_dir: StateDir, machine_id: str) -> Saved | None:
    """Return the checkpoint, None if no usable one exists; raise NeedsNewer for one of a later version."""
    try:
        return state_dir.load(machine_id)
    except Unusable as error:
        logger.warning("checkpoint set aside", extra={"facts": {"reason": str(error)}})
        return None


async def _settings(config: AgentConfig, machine: Machine) -> Settings:
    """Return the operator's settings, with missing ones from the kubelet's configuration (/configz)."""
    settings = Settings(
        config.node,
        config.config,
        config.kubelet_state,
        group=config.group,
        keeps_quiet=config.keeps_quiet,
    )
    if config.kubelet_url is None:
        return settings
    from agent.kubelet.configz import adopt, ask_kubelet

    topology = machine.topology()
    kubelet = await ask_kubelet(replace(api_access(config), url=config.kubelet_url), topology)
    if kubelet is None:
        return settings
    chosen = adopt(config.config, kubelet, topology, machine.universe(topology))
    return replace(
        settings,
        config=chosen,
        kubelet_policy=kubelet.policy,
        memory_policy=kubelet.memory_policy,
        topology_manager=kubelet.topology_manager,
    )


async def _runtime(
    config: AgentConfig, pods: PodSource, devices: Devices
) -> tuple[Runtime, Cgroups, ContainerWatch]:
    """Return the runtime, its cgroups, and a watch for new containers if another program creates them."""
    from agent.local.pods_dir import PodsDir

    if config.runtime == "local" and isinstance(pods, PodsDir):
        from agent.local.runtime import open_local

        return *open_local(pods, config.cgroup_root, config.state_dir), NoContainerWatch()
    runtime = await _cri(config)
    return (
        runtime,
        open_cgroups(find_hierarchy(config.cgroup_root)),
        _container_watch(config, runtime, devices),
    )


def _container_watch(config: AgentConfig, runtime: CRI, devices: Devices) -> ContainerWatch:
    """Return the watch for new containers: over NRI, or by their cgroups alone."""
    from agent.cri.container_info import cgroup_path
    from agent.kernel.mover import put_process
    from agent.kernel.new_cgroups import CgroupWatcher

    roots = pod_roots(config.kubelet_cgroup_root)
    if config.nri is None:
        return CgroupWatcher(config.cgroup_root, runtime, roots)
    from agent.nri.container_watch import NriContainerWatch, StartedOwners
    from agent.nri.plugin import Plugin
    from pinning.pods.vm_handlers import is_vm_handler

    has_cgroup = find_hierarchy(config.cgroup_root).has
    plugin = Plugin(
        is_vm_handler, put=put_process, is_on_host=lambda path: has_cgroup(cgroup_path(path) or "/")
    )
    plugin.sandbox_started = devices.sandbox_started
    runtime.facts.first_process = plugin.first_process
    runtime.facts.has_cgroup = has_cgroup
    cgroups = CgroupWatcher(config.cgroup_root, StartedOwners(plugin, runtime), roots)
    return NriContainerWatch(config.nri, plugin, cgroups, runtime.largest_environments)


def _observed_cpus(config: AgentConfig, runtime: Runtime) -> ObservedCPUs:
    """Return the reader of the kubelet's CPU assignments, if a kubelet starts the containers."""
    if config.runtime != "cri" or config.kubelet_state is None:
        return NoObservedCPUs()
    from agent.cri.runtime import CRI
    from agent.kubelet.observed_cpus import KubeletAssignments
    from agent.kubelet.pod_resources import PodResources, socket_beside

    kubelet = PodResources(socket_beside(config.kubelet_state))
    return KubeletAssignments(kubelet, runtime) if isinstance(runtime, CRI) else NoObservedCPUs()


def _devices(config: AgentConfig, api: Api | None, metrics: Metrics) -> Devices:
    """Return the reader of the kubelet's device assignments, if there is a kubelet."""
    if config.runtime != "cri" or config.kubelet_state is None:
        return NoDevices(config.config)
    from agent.kubelet.call_limit import CallLimit
    from agent.kubelet.device_list import DeviceList
    from agent.kubelet.devices import KubeletDevices
    from agent.kubelet.pod_resources import socket_beside

    socket, free, claims = socket_beside(config.kubelet_state), None, None
    limit = CallLimit()
    if config.node_options.near_cpus:
        from agent.kubelet.free_devices import FreeDeviceList, FreeDeviceWatch

        free = FreeDeviceWatch(FreeDeviceList(socket), metrics, limit)
    if api and config.near_dra:
        from agent.kubelet.claimed_devices import ClaimedDevices

        claims = ClaimedDevices(api, config.node, config.root)
    devices = DeviceList(socket)
    return KubeletDevices(
        devices, metrics, config.config, free=free, claims=claims, limit=limit, time_of_day=Clock().text
    )


def _claims(config: AgentConfig, api: Api | None, metrics: Metrics) -> DeviceClaims:
    """Return the driver of ResourceClaims, if it is enabled and the agent assigns CPUs."""
    if api is None or not config.dra or config.runtime != "cri" or config.config.observe:
        return NoDeviceClaims()
    from agent.dra.claim_metrics import ClaimMetrics
    from agent.dra.driver import DRADriver
    from agent.dra.reader import ClaimReader

    reader, shown = ClaimReader(api, config.node), ClaimMetrics(metrics.registry)
    return DRADriver(reader, config.node, config.kubelet_root, config.cdi, shown)


def _slices(config: AgentConfig, api: Api | None, claims: DeviceClaims) -> tuple[Reporter, ...]:
    """Return the publisher of ResourceSlices; while the agent only observes, it removes them."""
    if api is None or not config.dra:
        return ()
    from agent.dra.driver import DRADriver
    from agent.report.resource_slices import SliceReport

    report = SliceReport(api, config.node)
    if isinstance(claims, DRADriver):
        claims.plugin.registered = report.look_again
    return (report,)


def _virtual_machines(config: AgentConfig, cgroups: Cgroups) -> VirtualMachines:
    """Return access to virtual machines, if cgroups identify a process's container."""
    if not isinstance(cgroups.cpusets, KernelCpusets):
        return NoVirtualMachines()
    from agent.vm.machines import KernelVirtualMachines
    from agent.vm.shared_reads import Roots

    hierarchy = find_hierarchy(config.cgroup_root)
    return KernelVirtualMachines(Roots(config.root / "proc", config.debugfs / "kvm", hierarchy))


def _booting_machines(config: AgentConfig) -> BootingMachines:
    """Return access to booting machines, if a kubelet creates the cgroups of pods."""
    if config.runtime != "cri":
        return NoBootingMachines()
    from agent.vm.boot import KernelBootingMachines
    from agent.vm.shared_reads import Roots

    hierarchy = find_hierarchy(config.cgroup_root)
    roots = Roots(config.root / "proc", config.debugfs / "kvm", hierarchy)
    return KernelBootingMachines(roots, pod_roots(config.kubelet_cgroup_root))


def _noise_watch(config: AgentConfig, metrics: Metrics) -> NoiseWatch:
    """Return the counter of interrupts and waits on exclusive CPUs."""
    from agent.kernel.tasks import tasks_below
    from agent.quiet.noise_metrics import NoiseMetrics
    from agent.quiet.sample import Places
    from agent.quiet.watch import NoiseWatch

    def tasks(cgroup: str) -> list[int]:
        hierarchy = find_hierarchy(config.cgroup_root)
        return tasks_below(hierarchy.folder(cgroup), hierarchy.tasks)

    places = Places(config.root / "proc", config.interrupts, tasks)
    return NoiseWatch(places, NoiseMetrics(metrics.registry), limits=config.config.noise_limits)


def _exec_watch(config: AgentConfig, runtime: Runtime, metrics: Metrics) -> ExecWatch | None:
    """Return the counter of processes that enter containers by exec, if the runtime may report them."""
    if config.runtime != "cri":
        return None
    from agent.cri.exec_events import ContainerdExecs
    from agent.cri.runtime import CRI
    from agent.kernel.execs import place_exec
    from agent.kernel.procfs import started
    from agent.quiet.execs import ExecMetrics, ExecWatch

    if not isinstance(runtime, CRI):
        return None
    events, affinity = ContainerdExecs(runtime.socket), config.config.exec_affinity
    if not config.keeps_quiet:
        affinity = affinity or ExecAffinity.NONE
    return ExecWatch(events, ExecMetrics(metrics.registry), affinity, place_exec, started)


def _wrappers(config: AgentConfig, cgroups: Cgroups, machine: Machine, runtime: Runtime) -> Wrappers:
    """Return the service of `cmk isolate`, if it is enabled and cgroups identify a process's container."""
    if config.cmk_install_dir is None or not isinstance(cgroups.cpusets, KernelCpusets):
        return NoWrappers()
    from agent.report.cmk_node import TEXTS
    from agent.wrappers.service import Dependencies, WrapperService
    from agent.wrappers.store import FILE, Store

    store = Store(config.state_dir / FILE, machine.boot_id())
    hierarchy, is_strict = find_hierarchy(config.cgroup_root), config.config.strict_threads
    edges = Dependencies(hierarchy, exit_of=_exit_of(config, runtime))
    return WrapperService(config.cmk_install_dir, edges, store, TEXTS, is_strict=is_strict)


def _exit_of(config: AgentConfig, runtime: Runtime) -> AskExit:
    """Return the lookup of container exit statuses by the runtime, for kernels that do not keep them."""
    from agent.wrappers.claims import not_known

    if config.runtime != "cri":
        return not_known
    from agent.cri.runtime import CRI

    return runtime.exit_of if isinstance(runtime, CRI) else not_known


async def _cri(config: AgentConfig) -> CRI:
    from agent.cri.container_info import find_socket
    from agent.cri.runtime import CRI

    socket = config.runtime_endpoint or find_socket()
    if socket is None:
        raise Refused("no runtime: none of the usual CRI sockets exists; name it with --runtime-endpoint")
    runtime = CRI(socket)
    with suppress(Unavailable):  # the runtime may start later; the loop retries
        await runtime.identify()
    return runtime


def _pods(config: AgentConfig, api: Api | None) -> PodSource:
    if api is None:
        from agent.local.finished_pods import FILE
        from agent.local.pods_dir import PodsDir

        return PodsDir(config.pods_dir or config.state_dir, config.state_dir / FILE)
    from agent.pod_watch import PodWatch

    return PodWatch(api, config.node, own_namespace=config.namespace)


def reporters(
    config: AgentConfig, api: Api | None, pods: PodSource, metrics: Metrics
) -> tuple[Reporter, ...]:
    """Return the reporters of the agent's state; without an API server only those that write to the log."""
    from agent.report.mode_log import LogReport, RefusalLog

    if api is None:
        return (LogReport(), RefusalLog())
    from agent.report.cmk_config_map import PoolReport
    from agent.report.event_recorder import EventReport
    from agent.report.load_metrics import MetricsReport
    from agent.report.node import NodeReport
    from agent.report.node_topology import TopologyReport
    from agent.report.overwritten_labels import OverwrittenLabels
    from agent.report.pod_status import PodReport

    topology = (TopologyReport(api, config.node),) if config.node_options.topology else ()
    chosen: tuple[Reporter, ...] = (
        LogReport(),
        PodReport(api, config.node, pods),
        EventReport(api, config.node, pods),
        NodeReport(api, config.node, pods, config.node_options, labels=OverwrittenLabels(Clock(), metrics)),
        PoolReport(api, config.node, config.namespace),
        MetricsReport(metrics.registry, api, pods, config.node_options),
        *topology,
    )
    if not config.cmk_reports:
        return chosen
    from agent.report.cmk_reports import CMKReports

    return (*chosen, CMKReports(api, config.node, config.namespace))
