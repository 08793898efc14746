"""Delay of the reconcile pass after a change of a plain pod, which always runs in the shared set. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.own_pods import memory_kills, unready_guards
from pinning.contract import ASKING_MARKS
from pinning.planning.observed import UNTRUSTED_CLASS, SeenPod
from pinning.pods.annotations import is_policy_key
from pinning.pods.claims import Origin
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from pinning.pods.types import Pod

NOW: Final = 0.0
GATHER_SECONDS: Final = 0.05  # several events within some 50 ms report one start
# runtime and API server report the end of a pod about a second apart
SETTLE_SECONDS: Final = 1.0
MOST_PARSED: Final = 4096  # far more pods than a node runs


class PodChange(NamedTuple):
    """The old and new version of one pod in the API; None: the pod did not, or does not, exist."""

    uid: str  # the pod's uid in the API
    before: Pod | None
    after: Pod | None


class ParsedPods:
    """Cache of parsed pods: each version of a pod is parsed once."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[Pod, SeenPod]] = {}

    def read(self, uid: str, pod: Pod) -> SeenPod:
        """Return the parsed pod, from the cache if it has this version.

        A pod keeps UNTRUSTED_CLASS when its user removes the annotation, because the runtime may have started the pod
        with it.
        """
        known = self._newest.get(uid)
        if known and known[0] is pod:
            return known[1]
        if len(self._newest) >= MOST_PARSED:  # reached only while no pass evicts deleted pods
            self._newest.clear()
        seen = SeenPod.of(pod, uid)
        if known and known[1].runtime_class == UNTRUSTED_CLASS and not seen.runtime_class:
            seen = replace(seen, runtime_class=UNTRUSTED_CLASS)
        self._newest[uid] = (pod, seen)
        return seen

    def keep(self, uids: Collection[str]) -> None:
        """Keep the parsed pods of these uids, and evict all others."""
        for uid in self._newest.keys() - set(uids):
            del self._newest[uid]


def changed_pods(before: Mapping[str, Pod], after: Mapping[str, Pod]) -> Iterator[PodChange]:
    """Yield each pod that was added, removed or replaced by another object."""
    for uid, pod in after.items():
        known = before.get(uid)
        if known is not pod:
            yield PodChange(uid, known, pod)
    for uid in before.keys() - after.keys():
        yield PodChange(uid, before[uid], None)


def soonest(waits: Iterable[float | None]) -> float | None:
    """Return the shortest of some waits for a pass; None: no pass is needed."""
    return min((wait for wait in waits if wait is not None), default=None)


def seconds_for_pod(
    change: PodChange, seen: Callable[[Pod], SeenPod] = SeenPod.of, *, asks_first: bool = False
) -> float | None:
    """Return the seconds within which a pass must follow a change of the API; None: no pass is needed.

    `seen` returns the parsed pod, which may come from a cache. With `asks_first` the runtime asks the agent for the
    CPUs of each container that it creates. A new plain pod without the guard's mark then needs no pass before its
    containers start: they get the same CPUs before and after a pass, and another pass follows their start.
    """
    versions = change.before, change.after
    before, after = (_read(pod, seen) if pod else None for pod in versions)
    if before == after:
        return None
    if before and before[0].is_final and (after is None or after[0].is_final):
        return SETTLE_SECONDS  # its CPUs were freed when it ended, or are held until its last container exits
    if not all(
        is_plain(pod, read[0]) for pod, read in zip(versions, (before, after), strict=True) if pod and read
    ):
        return NOW
    is_new = before is None and asks_first and not is_marked(change.after)
    return SETTLE_SECONDS if after is None or after[0].is_final or is_new else GATHER_SECONDS


def is_plain(pod: Pod, seen: SeenPod) -> bool:
    """Return whether a pod has no claims, policies, virtual machine or runtime class, so that a pass can wait."""
    has_policy = any(map(is_policy_key, _annotations(pod)))
    asks = seen.claims or seen.claim_uses or seen.causes or seen.warnings or has_policy
    return not (asks or seen.is_vm or seen.runtime_class)


def is_marked(pod: Pod | None) -> bool:
    """Return whether a pod has an annotation for which its containers are held back until a pass knows the pod."""
    return not ASKING_MARKS.isdisjoint(_annotations(pod))


def _annotations(pod: Pod | None) -> Mapping[str, str]:
    return ((pod or {}).get("metadata") or {}).get("annotations") or {}


def keeps_cpus(seen: SeenPod) -> bool:
    """Return whether a pod keeps the same CPUs until the API server deletes it, whichever container exits.

    The CPUs change if init containers use CPUs that other containers get afterwards, or if its CPUs also depend on
    a budget, ResourceClaims, devices, wrappers or virtual machines.
    """
    is_simple = all(it.origin is Origin.ANNOTATION and it.role is not Role.INIT for it in seen.claims)
    follows_others = seen.budget or seen.claim_names or seen.device_containers or seen.is_vm
    return is_simple and not (follows_others or seen.is_final or seen.runtime_class)


def _read(pod: Pod, seen: Callable[[Pod], SeenPod]) -> tuple[SeenPod, object, object]:
    """Return all parts of a pod that passes read, for comparison."""
    return seen(pod), memory_kills((pod,)), unready_guards((pod,))
