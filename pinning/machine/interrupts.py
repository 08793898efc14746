"""The affinity of each device interrupt while some CPUs are quiet. Pure.

An `irq-policy` lets interrupts stay on quiet CPUs: those of a container's devices are confined to its CPUs
(`Stay.home`), others keep their affinity. Any other interrupt loses the bits of quiet CPUs in its affinity, and gets
them back when the CPUs are no longer quiet. The agent restores an affinity only if it is one that the agent wrote. Any
other value was set by another program, or by the kernel when a CPU went offline, and becomes the new original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from pinning.machine.cpuset import EMPTY, CPUSet

LEAST_OTHERS: Final = 2  # online CPUs left for interrupts; the vectors of a single CPU can run out


class Stay(NamedTuple):
    """Quiet CPUs on which one interrupt is allowed by an `irq-policy`."""

    may: CPUSet = EMPTY
    home: CPUSet = EMPTY  # CPUs of `may` to which it is confined; empty: it may fire on other CPUs too

    def allowed(self, cpus: CPUSet) -> Stay:
        """Return a copy that allows the interrupt on further CPUs."""
        return self._replace(may=self.may | cpus)

    def at_home(self, cpus: CPUSet) -> Stay:
        """Return a copy that confines the interrupt to further CPUs."""
        return Stay(self.may | cpus, self.home | cpus)


NO_STAY: Final = Stay()


@dataclass(frozen=True, slots=True)
class Quiet:
    """The quiet CPUs, and the online CPUs of the machine."""

    cpus: CPUSet
    online: CPUSet
    stay: Stay = NO_STAY  # exceptions for the current interrupt

    @property
    def others(self) -> CPUSet:
        """The online CPUs that interrupts may use."""
        return self.online - self.cpus

    @property
    def shut(self) -> CPUSet:
        """The CPUs on which the current interrupt must not fire."""
        return self.cpus - self.stay.may if self.stay.may else self.cpus

    @property
    def home(self) -> CPUSet:
        """The online CPUs to which the current interrupt is confined; empty: it is not confined."""
        return self.stay.home & self.online

    def is_kept_by(self, affinity: CPUSet) -> bool:
        """Return whether an affinity is right for the current interrupt."""
        return affinity.isdisjoint(self.shut) and (not self.home or affinity <= self.home)


class Taken(NamedTuple):
    """An interrupt whose affinity the agent changed."""

    original: CPUSet
    wrote: tuple[CPUSet, ...]  # newest last; a killed agent may have recorded the last one without writing it
    name: str = ""  # names of the actions of the interrupt, because numbers are reused


class Decision(NamedTuple):
    """A decision about one interrupt; the caller saves the record before it writes the affinity."""

    taken: Taken | None  # the record to save; None: nothing has to be restored after the write
    write: CPUSet | None = None  # affinity to write; None: the affinity is not changed
    is_foreign: bool = False  # another program moved the interrupt back to quiet CPUs since the last reading


def hindrance(quiet: Quiet) -> str:
    """Return why no interrupt can be kept off quiet CPUs; empty if enough other CPUs are left."""
    if len(quiet.others) >= LEAST_OTHERS:
        return ""
    left = f"only CPU {quiet.others}" if quiet.others else "no CPU"
    return f"interrupts need {LEAST_OTHERS} online CPUs that are not quiet, and {left} is left"


def away(original: CPUSet, quiet: Quiet, near: CPUSet = EMPTY) -> CPUSet:
    """Return the affinity that keeps an interrupt off quiet CPUs; it has an online CPU if the original has one.

    `near` are the CPUs of its device's NUMA node, to which an interrupt that loses all of its CPUs preferably moves.
    """
    if quiet.home:
        return original & quiet.home or quiet.home
    if original.isdisjoint(quiet.shut):
        return original
    rest = original - quiet.shut
    if not rest.isdisjoint(quiet.online):
        return rest
    beside = quiet.others & near
    return beside if len(beside) >= LEAST_OTHERS else quiet.others


def decide(
    now: CPUSet,
    taken: Taken | None,
    quiet: Quiet,
    *,
    near: CPUSet = EMPTY,
    may_take: bool = True,
    proven: CPUSet | None = None,
) -> Decision:
    """Decide about an interrupt with the affinity `now`.

    Without `may_take` the interrupt loses no CPU, except when its original affinity is restored. `proven` is the
    affinity that the agent wrote and read back; the caller leaves it out if the kernel or irqbalance may have changed
    it since.
    """
    is_ours = taken is not None and now in taken.wrote
    original = taken.original if taken and is_ours else now
    is_foreign = not is_ours and proven is not None and not quiet.is_kept_by(now)
    wanted = away(original, quiet, near)
    if wanted.isdisjoint(quiet.online) and not now.isdisjoint(quiet.online):
        wanted = away(now, quiet, near)  # the kernel refuses an affinity without an online CPU
    if wanted == original:
        return Decision(None, None if now == original else original, is_foreign)
    ours = taken if is_ours else None
    if wanted == now:
        return Decision(ours, None, is_foreign)
    if not may_take and not now <= wanted:
        return Decision(ours, None, is_foreign)
    wrote = (now, wanted) if is_ours else (wanted,)
    return Decision(Taken(original, wrote, taken.name if taken else ""), wanted, is_foreign)


def born(now: CPUSet, default: Taken | None, online: CPUSet, near: CPUSet = EMPTY) -> Taken | None:
    """Return the record of an interrupt that was requested under a default affinity without quiet CPUs; else None.

    Only the exact affinity that the kernel gives at the request is recognised: any other was chosen by a
    driver, an operator or irqbalance, and did not lose quiet CPUs. `near` are the CPUs of its device's NUMA node.
    """
    if default is None:
        return None
    full = _at_birth(default.original, online, near)
    for wrote in reversed(default.wrote):
        for given, original in zip(_at_birth(wrote, online, near), full, strict=True):
            if now == given:
                return Taken(original, (now,)) if original != now else None
    return None


def _at_birth(default: CPUSet, online: CPUSet, near: CPUSet) -> tuple[CPUSet, CPUSet]:
    """Return the affinities that the kernel gives a new interrupt: once it is started, and before that."""
    started = (default & online) or online
    return (started & near) or started, default
