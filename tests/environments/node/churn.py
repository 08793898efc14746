"""Random changes of pods on a simulated machine, with an agent process that can be killed."""

from __future__ import annotations

import json
import multiprocessing
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from agent.kernel.sysfs import read_topology
from agent.reconcile.checkpoint import NAME, read
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import Topology
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import ledger_from_dict
from pinning.planning.node_config import DEFAULT
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from pinning.planning.plan import plan
from tests.agent import simulated
from tests.agent.simulated import LOG, MACHINE_ID, SOCKET
from tests.environments.process.client import SimulatedMachine
from tests.pinning.world import Wish, pod_document

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

PATIENCE_SECONDS = 180  # timeout; settling takes half a second on an idle machine
POLL_SECONDS = 0.01
POLICIES = (None, "none", "share", "exclusive", "exclusive", "exclusive")
SMT = (None, None, None, "require", "isolate")

# Fork agents from a process that has imported their modules, because the imports take ten times as long as the
# agent's start.
AGENTS: Final = multiprocessing.get_context("forkserver")
AGENTS.set_forkserver_preload([simulated.__name__])


class AgentProcess:
    """The agent process on a simulated machine, which can be restarted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state_dir = root / "state"
        self._process: ForkServerProcess | None = None

    @property
    def checkpoint(self) -> Path:
        """The path of the checkpoint."""
        return self.state_dir / NAME

    def start(self) -> None:
        """Start the agent, with its log in a file."""
        self._process = AGENTS.Process(target=simulated.run, args=(self.root, self.state_dir))
        self._process.start()

    def kill(self) -> None:
        """Kill the agent with SIGKILL."""
        if self._process:
            assert self._process.exitcode is None, self.log()[-3000:]
            self._process.kill()
            self.wait()

    def stop(self) -> int:
        """Stop the agent with SIGTERM; return its exit code."""
        assert self._process
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait until the agent has ended; return its exit code."""
        assert self._process
        self._process.join(PATIENCE_SECONDS)
        code = self._process.exitcode
        assert code is not None, self.log()[-3000:]
        self._process = None
        return code

    def log(self) -> str:
        """Return what agents have logged."""
        return (self.root / LOG).read_text()

    def state(self) -> dict[str, Any] | None:
        """Return the agent's state, or None while it does not answer."""
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(self.root / SOCKET))
                with client.makefile("rb") as answer:
                    found: dict[str, Any] | None = json.loads(answer.read() or b"null")
        except (OSError, ValueError):
            return None
        return found


@dataclass
class Churn:
    """A node under random changes: pods in a file, containers in the machine; a seed repeats them."""

    machine: SimulatedMachine
    random: Random
    most_pods: int
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        (self.machine.root / MACHINE_ID).write_text("machine-1")
        self.save()

    def save(self) -> None:
        """Replace the file of pods atomically."""
        new = self.machine.root / "pods.new"
        new.write_text(json.dumps(self.pods))
        new.replace(self.machine.root / "pods.json")

    def step(self) -> None:
        """Make one random change."""
        changes = [self.edit, self.edit, self.restart, self.remove]
        if len(self.pods) < self.most_pods:
            changes += [self.add, self.add]
        self.random.choice(changes)()
        self.save()

    def add(self) -> None:
        """Create a pod and start its containers."""
        self.count += 1
        uid = f"u{self.count}"
        wishes = [self._wish() for _ in range(self.random.choice((1, 1, 2)))]
        self.pods[uid] = pod_document(uid, wishes, created=self.count)
        for container in self.pods[uid]["spec"]["containers"]:
            self._start(uid, container["name"])

    def edit(self) -> None:
        """Change the policies of a pod."""
        uid = self._pick()
        if uid:
            before = self.pods[uid]
            count = len(before["spec"]["containers"])
            self.pods[uid] = pod_document(uid, [self._wish() for _ in range(count)])
            created = before["metadata"]["creationTimestamp"]
            self.pods[uid]["metadata"]["creationTimestamp"] = created

    def restart(self) -> None:
        """Stop a container and start it again."""
        live = self.live()
        if live:
            container = self.random.choice(live)
            self.machine.call("stop", id=container["id"])
            self.machine.call("remove", id=container["id"])
            self._start(container["pod_uid"], container["name"])

    def remove(self) -> None:
        """Delete a pod and stop its containers."""
        uid = self._pick()
        if uid:
            del self.pods[uid]
            for container in self.live():
                if container["pod_uid"] == uid:
                    self.machine.call("stop", id=container["id"])
                    self.machine.call("remove", id=container["id"])

    def live(self) -> list[dict[str, Any]]:
        """Return the running containers with their CPUs."""
        listed = [container for container in self.machine.call("list") if container["state"] != State.EXITED]
        return [
            {**container, "cpus": self.machine.call("read", cgroup=container["cgroup"])}
            for container in listed
        ]

    def observe(self) -> Observed:
        """Return the observed node."""
        topology = self.topology()
        return Observed(
            topology,
            topology.online,
            tuple(SeenPod.of(pod) for pod in self.pods.values()),  # type: ignore[arg-type]
            tuple(
                SeenContainer(
                    container["id"],
                    Owner(container["pod_uid"], container["name"]),
                    State(container["state"]),
                    CPUSet.parse(container["cpus"]),
                )
                for container in self.live()
            ),
        )

    def topology(self) -> Topology:
        """Return the machine's topology."""
        return read_topology(self.machine.root)

    def _pick(self) -> str | None:
        return self.random.choice(sorted(self.pods)) if self.pods else None

    def _wish(self) -> Wish:
        policy = self.random.choice(POLICIES)
        cpu = self.random.choice(("1", "2", "3", "500m"))
        return Wish(cpu, policy=policy, smt=self.random.choice(SMT) if policy == "exclusive" else None)

    def _start(self, uid: str, name: str) -> None:
        self.count += 1
        number = f"{uid}-{name}-{self.count}"
        self.machine.call("create", id=number, pod_uid=uid, name=name, namespace="test", pod=f"pod-{uid}")
        self.machine.call("start", id=number)


def settled(agent: AgentProcess, churn: Churn) -> Ledger:
    """Wait until a plan of the node changes nothing; return the agent's ledger, or fail after a timeout."""
    return planned(agent.state, churn.observe, agent.log)


def planned(
    state: Callable[[], dict[str, Any] | None], observe: Callable[[], Observed], log: Callable[[], str]
) -> Ledger:
    """Wait until a plan of the observed node changes nothing; return the agent's ledger."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    why = "it told nothing"
    while time.monotonic() < deadline:
        answer = state()
        if answer and answer["podsComplete"]:
            ledger = ledger_from_dict(answer["ledger"])
            planned = plan(observe(), ledger, DEFAULT)
            if planned.ledger == ledger and not planned.actions:
                return ledger
            why = f"left to do: {planned.actions} {set(planned.ledger) ^ set(ledger)}"
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"not settled after {PATIENCE_SECONDS} s: {why}\n{log()[-3000:]}")


def held_on_disk(agent: AgentProcess) -> Ledger:
    """Return the ledger of the checkpoint."""
    return read(agent.checkpoint.read_bytes(), "machine-1").ledger
