"""Foreign threads on exclusive CPUs: their unit, session or pod, and the command that moves them. Pure."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.doctor.check import finding, ok
from agent.kernel.cgroup_names import pod_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

    from agent.doctor.check import Check
    from pinning.machine.cpuset import CPUSet

_LISTED: Final = 8  # cgroups at most, so that the output stays readable
_NAMED: Final = 3  # programs shown of one cgroup
_UNIT: Final = re.compile(r"[^/]+\.(?:service|scope|socket|mount|swap)(?=/|$)")
_SLICE: Final = re.compile(r"/([^/]+\.(?:slice|scope))(?=/|$)")
# Cgroup of CRI-O's monitor of one container, which copies the container's output.
_CONMON: Final = "/crio-conmon-"
_MAP: Final = (
    "corepin map shows where its containers may run; the agent moves back threads that left their CPUs"
)


class Stranger(NamedTuple):
    """The unit, session or pod of a cgroup as a readable name, and the command that moves its threads."""

    name: str
    remedy: str


def stranger_checks(
    by_cgroup: Mapping[str, Counter[str]], exclusive: CPUSet, others: CPUSet, pods: Mapping[str, str]
) -> Iterator[Check]:
    """Yield a check per cgroup whose threads ran on exclusive CPUs; `others` are CPUs that they could use instead."""
    subject = "strangers"
    if not exclusive:
        yield ok(subject, "no CPU is exclusive now")
        return
    by_count = sorted(by_cgroup, key=lambda cgroup: (-by_cgroup[cgroup].total(), cgroup))
    for cgroup in by_count[:_LISTED]:
        name, remedy = stranger(cgroup, others, pods)
        yield finding(
            subject, f"{_threads(by_cgroup[cgroup])} of {name} ran on exclusive CPUs {exclusive}", remedy
        )
    if len(by_count) > _LISTED:
        message = f"and threads of {len(by_count) - _LISTED} more cgroups"
        yield finding(subject, message, "move the first ones and look again")
    if not by_count:
        yield ok(subject, f"no foreign thread ran on exclusive CPUs {exclusive}")


def stranger(cgroup: str, others: CPUSet, pods: Mapping[str, str]) -> Stranger:
    """Return the unit, session or pod of a cgroup, with the remedy; `pods` are the names of pods by uid."""
    pod = pod_of(cgroup)
    if _CONMON in cgroup:
        return Stranger(_conmon(pod, pods), _conmon_remedy(others))
    if pod is not None:
        return Stranger(f"pod {pods.get(pod, pod)}" if pod else f"a pod ({cgroup})", _MAP)
    if cgroup == "/":
        move = f"taskset -apc {others} PID moves it; systemd starts services in system.slice, which can be kept off"
        return Stranger("the root cgroup", move)
    top = _SLICE.match(cgroup)
    if top is None:
        return Stranger(
            f"cgroup {cgroup}", f"echo {others} > {shlex.quote(f'/sys/fs/cgroup{cgroup}/cpuset.cpus')}"
        )
    units = _UNIT.findall(cgroup)
    move = f"systemctl set-property {shlex.quote(top[1])} AllowedCPUs={others} (with --runtime until the next boot)"
    return Stranger(f"{units[-1]} in {cgroup.rpartition(units[-1])[0]}" if units else cgroup, move)


def _conmon(pod: str | None, pods: Mapping[str, str]) -> str:
    of_pod = f" in pod {pods.get(pod, pod)}" if pod else ""
    return f"conmon, CRI-O's monitor of a container{of_pod}"


def _conmon_remedy(others: CPUSet) -> str:
    return (
        f'write `infra_ctr_cpuset = "{others}"` and `conmon_cgroup = "pod"` below [crio.runtime] into the configuration of'
        " CRI-O, and restart it; the conmon of each container created afterwards runs there"
    )


def _threads(names: Counter[str]) -> str:
    """Return the number of threads and the most frequent of their names."""
    often = sorted(names, key=lambda name: (-names[name], name))
    shown = ", ".join(often[:_NAMED]) + (", ..." if len(often) > _NAMED else "")
    return f"{names.total()} thread{'s' * (names.total() > 1)} ({shown})"
