"""The agent's record of each container, from its first listing until its removal.

Other modules change a record only through its methods, and assign no fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from agent.node_state import Path, Proof
from apiserver.backoff import Backoff
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner, State
from pinning.planning.task_parts import NO_PARTS, Parts, parts_of

if TYPE_CHECKING:
    from agent.interfaces import RuntimeContainer
    from pinning.planning.task_parts import Tally


FIRST_RETRY_SECONDS: Final = 0.1
LONGEST_RETRY_SECONDS: Final = 10.0


@dataclass(slots=True)
class Retry:
    """Retry state of a container or a virtual machine, with exponential backoff."""

    not_before: float = 0.0  # earliest next try, on the monotonic clock
    reason: str = ""  # why the last write failed; empty if it succeeded
    _backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS))

    def reset(self) -> None:
        """Forget past failures."""
        self.not_before, self.reason = 0.0, ""
        self._backoff.reset()

    def failed(self, reason: str, now: float, *, latest: float = math.inf) -> None:
        """Delay the next try by the backoff, at most until `latest`."""
        self.reason = reason
        self.not_before = min(now + self._backoff.next(), latest)


@dataclass(slots=True)
class ContainerRecord:
    """One container: its identity, the last readings, and its errors."""

    seen: RuntimeContainer
    is_awaited: bool  # its unpinned time is still to be reported; never for containers older than the agent
    is_new: bool = False  # its tasks were not checked since the agent saw it appear
    is_assured: bool = False  # this agent has checked once whether the runtime's record has its CPUs
    wanted: CPUSet = EMPTY  # CPUs by the last plan; empty before the first plan
    # the planned CPUs on which it was last seen, and its unpinned time in seconds
    right: tuple[CPUSet, float | None] | None = None
    mems: CPUSet = EMPTY  # NUMA nodes for its memory if it starts now; empty: unbound
    sent_mems: CPUSet = EMPTY  # NUMA nodes of `mems` that the runtime accepted last
    memory: CPUSet = EMPTY  # NUMA nodes that it may allocate memory from, if read from the kernel
    # the last CPUs that the runtime accepted; the only evidence if its cgroup cannot be read
    sent: CPUSet = EMPTY
    born: CPUSet = EMPTY  # CPUs that it was created with, over NRI
    was_seen_as_born: bool = False  # the kernel has shown it on the CPUs that it was created with
    is_owner: bool = False  # the last plan gives it exclusive CPUs
    home: CPUSet = EMPTY  # its own CPUs, if it may use more: for tasks that the application does not move
    parts: Parts = NO_PARTS  # the last parts of its tasks; without a home: not split
    is_split: bool = False  # this agent moved its tasks to their parts
    is_outrun: bool = False  # this agent tried to move its tasks, but new ones started faster
    # The cpuset read last from the kernel; empty: not read since its state changed, or since a write between passes.
    applied: CPUSet = EMPTY
    replaced: CPUSet = EMPTY  # `applied` before the last cpuset that this agent did not write
    proof: Proof | None = None
    retry: Retry = field(default_factory=Retry)
    owner: Owner = field(init=False)  # key of its CPUs in the ledger, the same after each restart
    # Its pid, state, CPUs and parts when its tasks were last compared; empty: not compared.
    _compared_at: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        self.owner = Owner(self.seen.pod_uid, self.seen.name)

    @property
    def name(self) -> str:
        """The container's name in messages: namespace/pod/container."""
        return self.seen.full_name

    @property
    def cgroup(self) -> str | None:
        """The container's cgroup on the host; None for a container in a VM."""
        return None if self.seen.in_vm else self.seen.cgroup

    @property
    def is_running(self) -> bool:
        """Return whether the container runs."""
        return self.seen.state is State.RUNNING

    @property
    def is_right(self) -> bool:
        """Return whether it has the CPUs of the last plan: by the kernel, or if that was not read by the runtime."""
        is_home = not self.is_running or self.split_home == self.home
        return is_home and (self.applied or self.sent) == self.wanted

    @property
    def split_home(self) -> CPUSet:
        """Return the own CPUs to which this agent moved the container's tasks; empty: it did not split them."""
        return self.parts.home if self.is_split else EMPTY

    @property
    def path(self) -> Path:
        """Return the path by which the container got its current CPUs."""
        path = self.proof.path if self.proof else Path.FOUND
        return Path.RUNTIME if path is Path.FOUND and self.sent == self.wanted else path

    @property
    def started_right(self) -> bool:
        """Return whether the kernel showed it on the CPUs of its creation.

        Those of an owner are the planned ones, or include its own.
        """
        is_own = self.born == self.wanted or EMPTY != self.home <= self.born
        return self.was_seen_as_born and (not self.is_owner or is_own)

    @property
    def mems_at_start(self) -> CPUSet:
        """NUMA nodes to send to the runtime with its CPUs.

        A running container keeps its memory, and a VM has NUMA nodes of its own: for these the set is empty.
        """
        return self.mems if self.seen.state is State.CREATED and not self.seen.in_vm else EMPTY

    @property
    def lacks_memory(self) -> bool:
        """Return whether memory nodes for the start must still be sent to the runtime."""
        return not self.born and self.mems_at_start not in (EMPTY, self.sent_mems)

    def listed(self, container: RuntimeContainer) -> None:
        """Store the runtime's listing; a cpuset that changes together with the state is no foreign write."""
        if self.seen.state is not container.state:
            self.applied = EMPTY
        self.seen = container

    def was_born(self, cpus: CPUSet) -> None:
        """Record the CPUs with which the runtime creates the container."""
        self.born = self.sent = cpus

    def planned(self, cpus: CPUSet, mems: CPUSet = EMPTY, home: CPUSet = EMPTY, *, is_owner: bool) -> None:
        """Store the planned CPUs, and the memory nodes for a start from now on."""
        self.wanted, self.mems, self.home, self.is_owner = cpus, mems, home, is_owner

    def held(self, own: CPUSet) -> None:
        """Use the CPUs in an earlier agent's ledger as its parts, until this agent moves its tasks."""
        if not (self.is_split or self.is_new or self.is_outrun) and own <= self.applied != own:
            self.parts = parts_of(self.applied, own)

    def split(self, parts: Parts, seconds: float | None = None) -> None:
        """Record the parts of the container's tasks, and the time of the move if the container was widened for it."""
        self.parts, self.is_split = parts, bool(parts.home) and self.is_running
        self.is_new, self.is_outrun = self.is_new and not self.is_split, False
        if self.proof and seconds is not None and self.proof.split_seconds is None:
            self.proof = replace(self.proof, split_seconds=round(seconds, 4))

    def was_outrun(self) -> None:
        """Record that its tasks started faster than they were moved.

        A task on all of its CPUs then does not count as the application's choice.
        """
        self.is_outrun = True

    def found(self, cpus: CPUSet, when: str) -> None:
        """Record a cpuset read from the kernel that this agent did not write."""
        self.replaced, self.applied = self.applied, cpus
        self.was_seen_as_born |= cpus == self.born
        self._prove(cpus, when, Path.NRI if cpus == self.born else Path.FOUND)

    def wrote(self, cpus: CPUSet, when: str, path: Path) -> None:
        """Record a cpuset read back after a write of this agent."""
        self.applied = cpus
        self._prove(cpus, when, path)

    def wrote_beside(self) -> None:
        """Drop the last cpuset reading, because a write of this agent between passes is not a foreign write."""
        self.applied = EMPTY

    def was_sent(self, cpus: CPUSet, mems: CPUSet = EMPTY) -> None:
        """Record the CPUs and memory nodes that the runtime accepted."""
        self.sent = cpus
        self.sent_mems = mems or self.sent_mems

    def read_memory(self, mems: CPUSet) -> None:
        """Record the NUMA nodes from which the container may allocate memory."""
        self.memory = mems

    def assured(self) -> None:
        """Record that the runtime's record of its CPUs was checked once."""
        self.is_assured = True

    def looked_at(self) -> None:
        """Record that its tasks were checked once; from now on their masks are its own choice."""
        self.is_new = False

    @property
    def is_compared(self) -> bool:
        """Return whether its tasks were compared with its present CPUs, and none ran outside of them."""
        return self._compared_at == self._placement and not (self.proof and self.proof.outside)

    @property
    def _placement(self) -> tuple[object, ...]:
        return self.seen.pid, self.seen.state, self.wanted, self.applied, self.parts, self.is_split

    def compared(self, outside: int, narrowed: int, tally: Tally | None = None) -> bool:
        """Record a comparison of its tasks with its CPUs; return whether the result changed.

        `outside` tasks may run on other CPUs too, `narrowed` ones on fewer CPUs than the container; `tally` counts the
        tasks by part.
        """
        if self.proof is None:
            return False
        before, self._compared_at = self.proof, self._placement
        self.proof = replace(before, outside=outside, narrowed=narrowed, tally=tally, unread="")
        return self.proof != before

    def not_compared(self, reason: str) -> bool:
        """Record why not all of its tasks are read; return whether that is new.

        Tasks that were found outside of its CPUs stay recorded until a complete reading finds none, or its CPUs change.
        """
        before = self.proof
        self.compared(before.outside if before else 0, 0)
        self.proof = self.proof and replace(self.proof, unread=reason)
        return self.proof != before

    def was_right(self, cpus: CPUSet, seconds: float | None) -> None:
        """Record that it is on its CPUs, and how long it was unpinned before; None: unknown.

        Of several calls for the same CPUs the shortest known time is kept.
        """
        if self.right and self.right[0] in (cpus, self.home):
            seconds = min((it for it in (seconds, self.right[1]) if it is not None), default=None)
        self.right = (cpus, seconds)

    def settled(self) -> float | None:
        """Store and return the unpinned time in seconds at the first call; None at later ones, or if it is unknown.

        It is 0 if the container was created on its CPUs, or if no write of this agent was needed.
        """
        if not self.is_awaited or self.proof is None:
            return None
        self.is_awaited = False
        window = self.right[1] if self.right and not self.started_right else 0.0
        if window is not None:
            self.proof = replace(self.proof, window_seconds=round(window, 4))
        return window

    def _prove(self, cpus: CPUSet, when: str, path: Path) -> None:
        if self.proof is None or self.proof.cpus != cpus:
            window = self.proof.window_seconds if self.proof else None
            split = self.proof.split_seconds if self.proof else None
            self.proof = Proof(cpus, when, path, window_seconds=window, split_seconds=split)
            self._compared_at = ()
