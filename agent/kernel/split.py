"""Split the tasks of a container that may use pools: each task runs on the container's own CPUs or on the pools.

A cpuset change resets masks that no longer fit, and before Linux 6.2 all masks: the task may then run on every CPU of
its container. So tasks are moved before the change, while the container has its old and new CPUs, and again after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Gone, TooMany, Unsettled
from agent.kernel.affinity import EVERYWHERE, KERNEL
from agent.kernel.mover import Bound, ListedThreads, Listing, Moved, move_threads
from pinning.machine.cpuset import EMPTY
from pinning.planning.task_parts import Parts, Tally, follow, is_away

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.interfaces import Cpusets
    from agent.kernel.affinity import Affinities
    from pinning.machine.cpuset import CPUSet

BOUND: Final = Bound(rounds=100, listed=65_536)  # limits for the move of one container


class KernelSplit:
    """Moves the tasks in the cgroups of a hierarchy with their cpusets (interface `SplitTasks`)."""

    def __init__(
        self,
        tasks: Callable[[str], list[int]],
        cpusets: Cpusets,
        affinities: Affinities = KERNEL,
        *,
        forgets_pins: bool = False,
    ) -> None:
        self._tasks = tasks
        self._cpusets = cpusets
        # The kernel resets affinities at every write of a cpuset (cgroup v1).
        self._forgets_pins = forgets_pins
        self._affinities = affinities
        # by cgroup: ids of tasks that the application moved off the container's own CPUs
        self._away: dict[str, frozenset[int]] = {}

    def move(self, cgroup: str, before: Parts, after: Parts) -> None:
        """Change a cgroup's CPUs, and set each task's affinity to its part (own CPUs or pools).

        Raises Gone, Refused, Unsettled.
        """
        current = self._cpusets.read(cgroup)
        turn = self._turn(cgroup, before.within(current), after)
        moved = self._pin(cgroup, turn)
        both = current | after.cpus
        if both not in (current, after.cpus):
            moved = self._write(cgroup, both, turn)
        # The cpuset is written even if tasks start faster than they are moved, to confine them.
        if after.cpus != self._cpusets.read(cgroup):
            moved = self._write(cgroup, after.cpus, turn)
        # After an incomplete move `look` would take tasks that were not moved for tasks that the application placed.
        _check(moved)
        self.look(cgroup, after)

    def _write(self, cgroup: str, cpus: CPUSet, turn: _Turn) -> Moved:
        self._cpusets.write(cgroup, cpus)
        return self._pin(cgroup, turn)

    def pin(self, cgroup: str, before: Parts, after: Parts) -> None:
        """Set each task's affinity to its part (own CPUs or pools) within the cgroup's CPUs; raise Gone, Unsettled."""
        current = self._cpusets.read(cgroup)
        _check(self._pin(cgroup, self._turn(cgroup, before.within(current), after)))

    def _turn(self, cgroup: str, before: Parts, after: Parts) -> _Turn:
        if not before.home:
            before = Parts(EMPTY, self._cpusets.read(cgroup))
        return _Turn(before, after, self._away.get(cgroup, frozenset()), forgets_pins=self._forgets_pins)

    def look(self, cgroup: str, parts: Parts) -> Tally:
        """Return the numbers of tasks by part; store which of them the application moved to pools; raise Gone."""
        home = others = 0
        away = set()
        tasks = self._tasks(cgroup)
        for task in tasks:
            mask = self._affinities.read(task)
            home += mask <= parts.home
            if mask and is_away(mask, parts):
                others += 1
                away.add(task)
        if cgroup not in self._away:
            self._forget_removed()
        self._away[cgroup] = frozenset(away)
        return Tally(home, others, len(tasks) - home - others)

    def _forget_removed(self) -> None:
        """Forget the tasks of removed cgroups, so that the map does not grow with each container."""
        for cgroup in tuple(self._away):
            try:
                self._cpusets.read(cgroup)
            except Gone:
                del self._away[cgroup]
            except AgentError:  # the cgroup may still exist
                continue

    def _pin(self, cgroup: str, turn: _Turn) -> Moved:
        """Move the tasks to their parts; tasks that they start inherit the masks."""
        usable = self._cpusets.read(cgroup)
        threads = _TurnThreads(lambda: self._tasks(cgroup), turn)
        try:
            return move_threads(
                threads, lambda task, mask: self._wanted(task, mask, turn, usable), self._affinities, BOUND
            )
        except TooMany as error:  # the caller still writes the cpuset, which confines the tasks
            return Moved({}, is_settled=False, reason=str(error))

    def _wanted(self, task: int, mask: CPUSet, turn: _Turn, usable: CPUSet) -> CPUSet | None:
        """Return the affinity to set for one task; None if it needs no change."""
        target = turn.target(task, mask)
        wanted = target & usable
        is_freed = bool(self._cpusets.version) and turn.frees(task, target)
        if not wanted or (mask == wanted and not is_freed):
            return None
        return EVERYWHERE if is_freed else target


def _check(moved: Moved) -> None:
    if not moved.is_settled:
        outrun = f"its tasks create tasks faster than the agent moves them: {len(moved.masks)} were moved"
        raise Unsettled(moved.reason or outrun)


class _Turn:
    """One change of a container's own CPUs and pools. Each task stays in its part: own CPUs or pools."""

    def __init__(self, before: Parts, after: Parts, away: frozenset[int], *, forgets_pins: bool) -> None:
        self.after = after
        self.rounds = 0  # number of finished rounds; in the first one no task has been moved yet
        self._forgets_pins = forgets_pins
        self._before = before
        self._away = away
        self._targets: dict[int, CPUSet] = {}
        self._freed: set[int] = set()

    def target(self, task: int, mask: CPUSet) -> CPUSet:
        """Return the CPUs for a task; a task that a moved task started keeps the mask that it inherited."""
        known = self._targets.get(task)
        if known is None:
            known = self._targets[task] = mask if self._is_reached(mask) else self._of(task, mask)
        return known

    def frees(self, task: int, target: CPUSet) -> bool:
        """Return whether to widen a task because the container is no longer split; True once per task."""
        is_free = bool(self._before.home) and not self.after.home and target == self.after.cpus
        if not is_free or task in self._freed:
            return False
        self._freed.add(task)
        return True

    def _is_reached(self, mask: CPUSet) -> bool:
        return self.rounds > 1 and mask in self._targets.values()

    def _of(self, task: int, mask: CPUSet) -> CPUSet:
        """Return the new CPUs of a task's part, by its old mask; a mask of all CPUs may come from a kernel reset."""
        had_all = self._before.cpus <= mask
        was_away = task in self._away and had_all
        if self._forgets_pins and had_all and not was_away:
            return follow(self._before.home or mask, self._before, self.after)
        return follow(mask, self._before, self.after, was_away=was_away)


class _TurnThreads(ListedThreads):
    """The tasks of a container; each listing counts as a round of the change."""

    def __init__(self, tasks: Callable[[], list[int]], turn: _Turn) -> None:
        super().__init__(tasks)
        self._turn = turn

    def list(self) -> Listing:
        """Return the current ids; raise Gone."""
        self._turn.rounds += 1
        return super().list()
