"""After any sequence of faults no container runs on CPUs of another, and the node reaches the planned state."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, rule

from agent.errors import Refused, Unavailable
from agent.reconcile.reconciler import PODS_SECONDS
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.observed import Owner, State
from tests.agent.fakes import FakeNode
from tests.pinning.machines import FLAT, FOUR_NODES, WITHOUT_SMT
from tests.pinning.world import Wish

WISHES = st.builds(
    Wish,
    cpu=st.sampled_from(["1", "2", "3", "500m"]),
    policy=st.sampled_from([None, "none", "share", "exclusive", "exclusive"]),
    smt=st.sampled_from([None, None, "require", "isolate"]),
)


class FaultyNode(RuleBasedStateMachine):
    """Create and remove pods and containers while writes fail, updates are lost and agents die."""

    uids = Bundle("uids")

    @initialize(topology=st.sampled_from([FLAT, FOUR_NODES, WITHOUT_SMT]))
    def boot(self, topology) -> None:  # type: ignore[no-untyped-def]
        """Start with an empty node and an agent."""
        self.folder = tempfile.TemporaryDirectory()
        self.node = FakeNode(Path(self.folder.name), topology)
        self.count = 0
        self.before = Ledger()
        self.write = self.node.cgroups.write
        self.node.cgroups.write = self.checked_write  # type: ignore[method-assign]

    def teardown(self) -> None:
        """Remove all faults and check that the node reaches the planned state."""
        if hasattr(self, "node"):
            self.node.runtime.down = False
            self.node.runtime.errors.clear()
            self.node.cgroups.errors.clear()
            self.node.runtime.lost = self.node.cgroups.lost = 0
            for _ in range(4):
                self.node.time.now += 700
                self.act()
            self.check_converged()
            self.node.close()
            self.folder.cleanup()

    def ledger(self) -> Ledger:
        """Return the ledger of the agent, which is already on disk."""
        saved = self.node.agent.reconciler.checkpoint.saved
        return saved.ledger if saved else Ledger()

    def checked_write(self, cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        """Check that the write adds no CPU that another container owns, then write."""
        ledger = self.ledger()
        by_cgroup = {
            container.cgroup: Owner(container.pod_uid, container.name)
            for container in self.node.containers.values()
        }
        me = ledger.of(by_cgroup[cgroup])
        gains = cpus - self.node.cpusets.get(cgroup, cpus)
        for other, theirs in self.node.cpusets.items():
            held = ledger.of(by_cgroup[other])
            if by_cgroup[other] == by_cgroup[cgroup]:
                continue
            if held and held.is_exclusive:
                assert gains.isdisjoint(theirs & held.footprint), f"{cgroup} is let onto {other}"
            comes = gains and me and me.is_exclusive and cpus == me.cpus
            if me and comes and not self.had(me.owner, cpus):  # CPUs that the container gains by this write
                assert theirs.isdisjoint(me.footprint), f"{cgroup} comes while {other} is there"
        self.write(cgroup, cpus, before)

    def had(self, owner: Owner, cpus: CPUSet) -> bool:
        """Return whether a container had these CPUs before this pass."""
        before = self.before.of(owner)
        return before is not None and cpus <= before.cpus

    @rule(target=uids, wishes=st.lists(WISHES, min_size=1, max_size=2), state=st.sampled_from(State))
    def add(self, wishes: list[Wish], state: State) -> str:
        """Create a pod and its containers."""
        self.count += 1
        uid = f"u{self.count}"
        self.node.add(uid, *wishes)
        for number in range(len(wishes)):
            self.node.start(uid, f"c{number}", state)
        return uid

    @rule(uid=uids, wish=WISHES)
    def edit(self, uid: str, wish: Wish) -> None:
        """Change the request of a pod."""
        if uid in self.node.documents:
            count = len(self.node.documents[uid]["spec"]["containers"])
            self.node.add(uid, *[wish] * count)

    @rule(uid=consumes(uids), force=st.booleans())
    def remove(self, uid: str, force: bool) -> None:
        """Delete a pod from the API; with `force` its containers continue to run."""
        self.node.documents.pop(uid, None)
        for number, container in list(self.node.containers.items()):
            if container.pod_uid == uid and not force:
                self.node.stop(number)

    @rule(lost=st.booleans())
    def begin(self, lost: bool) -> None:
        """Start every created container, with the cpuset that the runtime was sent, or with none."""
        for number, container in list(self.node.containers.items()):
            if container.state is State.CREATED:
                self.node.begin(number, lost=lost)

    @rule(pick=st.integers(0, 20), foreign=st.sampled_from(["0", "0-3", "1-2"]))
    def rewrite(self, pick: int, foreign: str) -> None:
        """Write the cpuset of a shared container, as another program would."""
        sharers = [
            container.cgroup
            for container in self.node.containers.values()
            if container.cgroup in self.node.cpusets
            and not self.ledger().of(Owner(container.pod_uid, container.name))
        ]
        if sharers:
            self.node.cpusets[sharers[pick % len(sharers)] or ""] = CPUSet.parse(foreign)

    @rule(pick=st.integers(0, 20), error=st.sampled_from([None, Refused("EACCES"), Unavailable("EIO")]))
    def break_cgroup(self, pick: int, error: Exception | None) -> None:
        """Let writes of a container's cgroup fail, or succeed again."""
        cgroups = sorted(self.node.cpusets)
        if cgroups and error:
            self.node.cgroups.errors[cgroups[pick % len(cgroups)]] = error  # type: ignore[assignment]
        else:
            self.node.cgroups.errors.clear()

    @rule(updates=st.integers(0, 2), writes=st.integers(0, 2), down=st.booleans())
    def lose(self, updates: int, writes: int, down: bool) -> None:
        """Lose the next updates and writes, and stop or start the runtime."""
        self.node.runtime.lost, self.node.cgroups.lost, self.node.runtime.down = updates, writes, down

    @rule(seconds=st.sampled_from([0.1, 1, 30, 700]))
    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.node.time.now += seconds

    @rule()
    def kill_the_agent(self) -> None:
        """Start another agent from the checkpoint."""
        self.node.new_agent()
        self.node.agent.reconciler.checkpoint.saved = self.node.parts().saved
        self.node.time.now += PODS_SECONDS

    @rule()
    def act(self) -> None:
        """Run a pass."""
        self.before = self.ledger()
        self.node.runner.run(self.node.agent.reconciler.run_pass())
        self.node.runner.run(self.node.drain())

    def check_converged(self) -> None:
        """Check that every running container has the CPUs of the ledger."""
        state = self.node.run()
        ledger = self.ledger()
        assert not state.failures
        assert not state.conflicts
        for container in self.node.containers.values():
            if container.cgroup in self.node.cpusets:
                owner = Owner(container.pod_uid, container.name)
                assert self.node.cpusets[container.cgroup] == ledger.cpus_of(owner, state.shared)


FaultyNode.TestCase.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
TestFaultyNode = FaultyNode.TestCase
TestFaultyNode.__doc__ = "Any sequence of faults keeps owners alone and ends well."
