"""Inside the guest: interrupts of devices and idle states of CPUs, without and with a pod that requests quiet CPUs."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.quiet.interrupts import KernelInterrupts
from pinning.contract import CRANE_CPU_MANAGER, IRQ_POLICY, NOISE_POLICY
from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import (
    CPUS,
    WORK,
    Node,
    ask,
    online,
    report,
    running_node,
    switch,
)
from tests.environments.guest.polling import wait_until
from tests.environments.node.containerd import VERSIONS
from tests.smt.quiet_files import (
    IRQ,
    WORKQUEUES,
    affinities,
    bounds,
    bring_up,
    busiest,
    cards,
    counts,
    default_affinity,
    grown,
    limit,
    managed,
    masks,
    one_card,
    pci_device,
    ping,
    place_interrupts,
    reaches,
    refusal,
    settings,
    traffic,
)
from tests.smt.scenario_irqbalance import balanced
from tests.smt.scenario_quiet_kills import kills
from tests.smt.scenario_strangers import execs, strangers
from tests.smt.starter import Start

CONFIG = "reserved: 0-1\nquiet: {interrupts: true, workqueues: true, powerLatency: 20}\n"
EXCLUSIVE = {CRANE_CPU_MANAGER: "exclusive"}
QUIET = {**EXCLUSIVE, f"{NOISE_POLICY}/pod": "quiet"}
MOST = "20"  # microseconds, as configured
LEFT_ALONE = "4"  # a CPU that is neither the pod's nor reserved


def main() -> None:
    """Report where interrupts fire before, while and after CPUs are quiet."""
    report("boot", kernel=os.uname().release)
    load_a_disk()
    with running_node(VERSIONS[-1]) as node:
        (WORK / "config.yaml").write_text(CONFIG)
        files = {"--irq": IRQ, "--workqueues": WORKQUEUES, "--power": CPUS, "--config": WORK / "config.yaml"}
        node.agent.arguments += [str(word) for flag in files.items() for word in flag]
        node.agent.start()
        node.add("hot", 2, EXCLUSIVE)
        node.settle()
        cpus = CPUSet.parse(node.cpuset("hot"))
        strangers(node, cpus)
        place_interrupts(cpus)
        limit(max(cpus), "100")  # the other one has no bound
        originals = settings()
        tell("before", cpus)
        ask_for_quiet(node, cpus)
        tell("quiet", cpus)
        keep_one(node, cpus)
        load_a_driver(cpus)
        add_a_card(cpus)
        off_and_on(node, cpus)
        killed(node, cpus)
        ended(node, originals)
        reset(node, originals)
        execs(node, "again")
        balanced(node)
        kills(node)


def load_a_disk() -> None:
    """Load a disk driver, and report the interrupts of its queues and the kernel's errors when they are moved."""
    subprocess.run(["modprobe", "nvme"], check=True)
    wait_until(lambda: len(managed()) == os.cpu_count())
    files = {number: IRQ / number / "smp_affinity_list" for number in managed()}
    report(
        "managed",
        queues={
            number: {
                "name": name,
                "cpus": files[number].read_text().strip(),
                "mode": f"{files[number].stat().st_mode & 0o777:o}",
                "error": refusal(number),
            }
            for number, name in managed().items()
        },
    )


def tell(step: str, cpus: CPUSet, use: str = "") -> None:
    """Report how many interrupts fire on the pod's CPUs and on others while devices are used."""
    use_devices(use)  # a written affinity holds from the next interrupt on
    before = counts()
    use_devices(use)
    report(
        "interrupts",
        step=step,
        cpus=str(cpus),
        fired=grown(before),
        affinities=affinities(),
        default=str(default_affinity()),
        masks=masks(),
        bounds=bounds(),
        quiet=published(),
    )


def use_devices(file: str) -> None:
    """Cause interrupts of the host's file system, a network card and the device from which a file is read."""
    traffic()
    ping()
    if file:
        with Path(file).open("rb", buffering=0) as device:
            for _ in range(20):
                device.read(64)


def until_off(cpus: CPUSet) -> None:
    """Wait until nothing is left on the CPUs, or until a timeout, after which the report shows what is left."""
    began = time.monotonic()
    wait_until(lambda: not reaches(cpus) and are_narrow(cpus))
    report("waited", seconds=round(time.monotonic() - began, 1), reaches=reaches(cpus))


def are_narrow(cpus: CPUSet) -> bool:
    """Return whether the default affinity and masks exclude the CPUs, and these have a bound for idle states."""
    lists = [default_affinity(), *map(CPUSet.parse, masks().values())]
    return all(it.isdisjoint(cpus) for it in lists) and all(
        bound == MOST for cpu, bound in bounds().items() if int(cpu) in cpus
    )


def ask_for_quiet(node: Node, cpus: CPUSet) -> None:
    """Change the running pod's annotations."""
    node.edit("hot", 2, QUIET)
    until_off(cpus)
    wait_until(lambda: published().get("cpus") == str(cpus) and not published().get("kept"))


def published() -> dict[str, Any]:
    """Return the agent's state of quiet CPUs, which it publishes after it has changed the settings."""
    return (ask() or {}).get("quiet") or {}


def keep_one(node: Node, cpus: CPUSet) -> None:
    """Keep the interrupt that fires most on the pod's CPUs for a while, by its name."""
    number = busiest()
    kernel = KernelInterrupts(IRQ, Path("/sys"))
    node.edit("hot", 2, {**QUIET, f"{IRQ_POLICY}/pod": kernel.name(number)})
    wait_until(lambda: not kernel.affinity(number).isdisjoint(cpus) and published().get("kept"))
    tell("kept", cpus)
    devices = {path.name: kernel.of_device(path.name) for path in Path("/sys/bus/pci/devices").iterdir()}
    report("kept", number=number, devices=devices)
    ask_for_quiet(node, cpus)


def load_a_driver(cpus: CPUSet) -> None:
    """Load a driver whose interrupts did not exist before."""
    numbers = {number for number in affinities() if any(it.is_dir() for it in (IRQ / number).iterdir())}
    subprocess.run(["modprobe", "virtio_rng"], check=True)
    tell("driver", cpus, use="/dev/hwrng")
    now = {number for number in affinities() if any(it.is_dir() for it in (IRQ / number).iterdir())}
    report("loaded", new={number: affinities()[number] for number in now - numbers})


def add_a_card(cpus: CPUSet) -> None:
    """Use a network card whose driver was just loaded, and again after the card was unplugged and plugged in."""
    if "NETWORK_CARD" not in os.environ:
        return
    subprocess.run(["modprobe", "virtio_net"], check=True)
    bring_up(card := one_card())
    until_off(cpus)  # its driver lets it fire on all CPUs
    tell("card", cpus)
    slot = pci_device(card)
    (slot / "remove").write_text("1")
    wait_until(lambda: not cards())
    Path("/sys/bus/pci/rescan").write_text("1")
    wait_until(cards)
    bring_up(one_card())
    until_off(cpus)
    tell("card put in", cpus)


def inodes() -> dict[str, int]:
    """Return the identity of each interrupt, which changes when its number is reused."""
    return {entry.name: entry.stat().st_ino for entry in Path("/sys/kernel/irq").iterdir()}


def reload_a_driver() -> None:
    """Free interrupts that the agent knows, and request them again with the same numbers."""
    before = inodes()
    subprocess.run(["modprobe", "-r", "virtio_rng"], check=True)
    freed = before.keys() - inodes().keys()
    subprocess.run(["modprobe", "virtio_rng"], check=True)
    after = inodes()
    report("reloaded", freed={number: [before[number], after.get(number)] for number in freed})


def off_and_on(node: Node, cpus: CPUSet) -> None:
    """Take the only CPU of all interrupts offline, so that the kernel spreads them, and online again.

    The agent is suspended in the meantime: otherwise it could move them before they are reported.
    """
    os.kill(node.agent.pid, signal.SIGSTOP)
    for number in affinities():
        with suppress(OSError):
            (IRQ / number / "smp_affinity_list").write_text(LEFT_ALONE)
    traffic()
    switch(int(LEFT_ALONE), on=False)
    report("spread", reaches=reaches(cpus))
    os.kill(node.agent.pid, signal.SIGCONT)
    until_off(cpus)
    tell("offline", cpus)
    switch(int(LEFT_ALONE), on=True)
    until_settled()
    until_off(cpus)
    tell("online", cpus)


def until_settled() -> None:
    """Wait until the agent has seen that all CPUs are online."""
    wait_until(lambda: (ask() or {}).get("sets", {}).get("universe") == online())


def killed(node: Node, cpus: CPUSet) -> None:
    """Kill the agent, move interrupts back to the pod's CPUs, and start the next agent."""
    node.agent.kill()
    tell("no agent", cpus)
    place_interrupts(cpus)
    node.agent.start()
    node.settle()
    until_off(cpus)
    tell("next agent", cpus)


def ended(node: Node, originals: dict[str, str]) -> None:
    """Delete the pod, after which the settings are restored."""
    node.remove("hot")
    until_original(originals)
    report("ended", settings=settings(), originals=originals)


def until_original(originals: dict[str, str]) -> None:
    """Wait until all settings have their original values, or until a timeout."""
    wait_until(lambda: originals.items() <= settings().items())


def reset(node: Node, originals: dict[str, str]) -> None:
    """Make CPUs quiet again, kill the agent, and reset the node."""
    node.add("again", 2, QUIET)
    node.settle()
    until_off(CPUSet.parse(node.cpuset("again")))
    report("taken", settings=settings())
    reload_a_driver()
    node.agent.kill()
    node.agent.starter.send(Start([*node.agent.arguments, "--reset"]))
    node.agent.starter.recv()
    status = node.agent.starter.recv()
    report(
        "reset",
        status=status,
        settings=settings(),
        originals=originals,
        left=sorted(path.name for path in (WORK / "state").iterdir()),
    )


if __name__ == "__main__":
    main()
