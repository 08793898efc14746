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

    not_before: float = 0.0  # of the next try, on the monotonic clock
    reason: str = ""  # why the last write failed; empty when it did not
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
    """One container: how it is reached, what was read of it, and what went wrong with it."""

    seen: RuntimeContainer
    is_awaited: bool  # how long it ran elsewhere is to be reported; never of what is older than the agent
    is_new: bool = False  # its tasks were not looked at since this agent saw it come
    is_assured: bool = False  # this agent sent its CPUs to the runtime
    wanted: CPUSet = EMPTY  # where the last plan wants it; empty before there is one
    right: tuple[CPUSet, float | None] | None = None  # what it was seen right on, after how many seconds
    mems: CPUSet = EMPTY  # the NUMA nodes that its memory is bound to if it starts now; empty: to none
    sent_mems: CPUSet = EMPTY  # what the runtime took for these last
    memory: CPUSet = EMPTY  # the NUMA nodes that the kernel gives it memory from, where that was read
    sent: CPUSet = EMPTY  # what the runtime took for it last: all there is to know where nothing can be read
    born: CPUSet = EMPTY  # what it was made with, where the runtime asked first
    was_seen_so: bool = False  # the kernel showed it on what it was made with
    is_owner: bool = False  # the last plan gives it CPUs of its own
    home: CPUSet = EMPTY  # where its unmoved tasks stay, of one that runs on more CPUs than it owns
    parts: Parts = NO_PARTS  # where its tasks were put last; without a home: nowhere
    is_split: bool = False  # this agent has put them there
    is_outrun: bool = False  # it tried, and they were started faster
    applied: CPUSet = EMPTY  # what was last read after a write of ours, or found and left
    proof: Proof | None = None
    retry: Retry = field(default_factory=Retry)

    @property
    def owner(self) -> Owner:
        """The owner of its CPUs, the same for each restart."""
        return Owner(self.seen.pod_uid, self.seen.name)

    @property
    def name(self) -> str:
        """Name for messages: namespace/pod/container."""
        return self.seen.full_name

    @property
    def cgroup(self) -> str | None:
        """Its cgroup on the host; None for a container in a VM."""
        return None if self.seen.in_vm else self.seen.cgroup

    @property
    def is_running(self) -> bool:
        """Say whether it runs."""
        return self.seen.state is State.RUNNING

    @property
    def is_right(self) -> bool:
        """Return whether it runs on the CPUs of the last plan, as far as kernel and runtime show."""
        is_home = not self.is_running or self.split_home == self.home
        return is_home and (self.applied or self.sent) == self.wanted

    @property
    def split_home(self) -> CPUSet:
        """Where this agent put its unmoved tasks; empty: nowhere."""
        return self.parts.home if self.is_split else EMPTY

    @property
    def path(self) -> Path:
        """By which path it came to be where it is."""
        path = self.proof.path if self.proof else Path.FOUND
        return Path.RUNTIME if path is Path.FOUND and self.sent == self.wanted else path

    @property
    def started_right(self) -> bool:
        """Say whether it was made where it was to run then; one that owns CPUs now was to run on them."""
        is_own = self.born == self.wanted or EMPTY != self.home <= self.born
        return self.was_seen_so and (not self.is_owner or is_own)

    @property
    def mems_at_start(self) -> CPUSet:
        """NUMA nodes to tell the runtime with its CPUs: what runs keeps its memory, and a VM has nodes of its own."""
        return self.mems if self.seen.state is State.CREATED and not self.seen.in_vm else EMPTY

    @property
    def lacks_memory(self) -> bool:
        """Return whether the runtime was never sent these nodes, neither at creation nor later."""
        return not self.born and self.mems_at_start not in (EMPTY, self.sent_mems)

    def listed(self, container: RuntimeContainer) -> None:
        """Take over the runtime's listing; a cpuset that changes by a start is no foreign write."""
        if self.seen.state is not container.state:
            self.applied = EMPTY
        self.seen = container

    def was_born(self, cpus: CPUSet) -> None:
        """Record the CPUs with which the runtime creates it."""
        self.born = self.sent = cpus

    def planned(self, cpus: CPUSet, mems: CPUSet = EMPTY, home: CPUSet = EMPTY, *, is_owner: bool) -> None:
        """Take over where it is to run from now on, and where its memory lies if it starts now."""
        self.wanted, self.mems, self.home, self.is_owner = cpus, mems, home, is_owner

    def held(self, own: CPUSet) -> None:
        """Take what an earlier agent let it own and more for its parts, until this one puts its tasks there."""
        if not (self.is_split or self.is_new or self.is_outrun) and own <= self.applied != own:
            self.parts = parts_of(self.applied, own)

    def split(self, parts: Parts, seconds: float | None = None) -> None:
        """Note where its tasks were put, and how long that took where it was widened for it."""
        self.parts, self.is_split = parts, bool(parts.home) and self.is_running
        self.is_new, self.is_outrun = self.is_new and not self.is_split, False
        if self.proof and seconds is not None and self.proof.split_seconds is None:
            self.proof = replace(self.proof, split_seconds=round(seconds, 4))

    def was_outrun(self) -> None:
        """Note that its tasks were started faster than they were put anywhere: one on all of its CPUs chose nothing."""
        self.is_outrun = True

    def found(self, cpus: CPUSet, when: str) -> None:
        """Record a cpuset read from the kernel that this agent has not written since the creation."""
        self.applied = cpus
        self.was_seen_so |= cpus == self.born
        self._prove(cpus, when, Path.NRI if cpus == self.born else Path.FOUND)

    def wrote(self, cpus: CPUSet, when: str, path: Path) -> None:
        """Record a cpuset read back after a write of this agent."""
        self.applied = cpus
        self._prove(cpus, when, path)

    def wrote_beside(self) -> None:
        """Forget the cpuset read before: a write beside the passes is no foreign write."""
        self.applied = EMPTY

    def was_sent(self, cpus: CPUSet, mems: CPUSet = EMPTY) -> None:
        """Record the CPUs and memory nodes that the runtime accepted."""
        self.sent = cpus
        self.sent_mems = mems or self.sent_mems

    def read_memory(self, mems: CPUSet) -> None:
        """Note the NUMA nodes that the kernel gives it memory from."""
        self.memory = mems

    def assured(self) -> None:
        """Record that this agent sent its CPUs to the runtime."""
        self.is_assured = True

    def looked_at(self) -> None:
        """Record that its tasks were checked once; from now on their masks are its own choice."""
        self.is_new = False

    def compared(self, outside: int, narrowed: int, tally: Tally | None = None) -> bool:
        """Note how many of its tasks keep to other CPUs than it, or to which part; say whether that is news."""
        if self.proof is None:
            return False
        before = self.proof
        self.proof = replace(before, outside=outside, narrowed=narrowed, tally=tally)
        return self.proof != before

    def was_right(self, cpus: CPUSet, seconds: float | None) -> None:
        """Note on which CPUs it is as it is to be, and for how long it may have run by then; None: not known.

        The first time counts.
        """
        if self.right and self.right[0] in (cpus, self.home):
            seconds = min((it for it in (seconds, self.right[1]) if it is not None), default=None)
        self.right = (cpus, seconds)

    def settled(self) -> float | None:
        """Note that it runs where it is to; return the seconds that it may have run elsewhere, the first time.

        What was right when it was first looked at started so. None where the seconds are not known.
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
