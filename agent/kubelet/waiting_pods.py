"""Pods that wait for their devices, and which answers of the kubelet are complete. Pure.

The kubelet allocates devices container by container and resource by resource, and the devices of a claim driver by
driver. A list that is read in between has only some of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.kubelet.device_list import MOST_ENTRIES, ClaimedDevice
from pinning.machine.near import Device

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.kubelet.device_list import Entries, Name, Named

# How long the name of a deleted pod is kept, and the sandbox of a pod that is not known.
REMEMBERED_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod whose devices are not all known."""

    name: Name
    kinds: Mapping[str, int]  # number of device resources in the limits, by container
    since: float
    claims: Mapping[str, frozenset[str]]  # its ResourceClaims by container
    awaits_claims: bool  # the devices of its claims are looked up
    asked: str = ""  # `since` as the time of day

    def of_containers(self, listed: Named) -> Named:
        """Return an entry of the kubelet's list with the containers that have devices, and no others."""
        return {container: listed.get(container, ()) for container in self.kinds}

    def lists_all(self, named: Named) -> bool:
        """Return whether an answer has devices of each resource and claim of every container."""
        return all(self._has_all(container, entries) for container, entries in named.items())

    def is_whole(self, named: Named) -> bool:
        """Return whether an answer has every device for certain, even if it was requested before the pod's sandbox existed.

        A resource has all its devices at once. A claim may have devices of several drivers, of which one may be
        slower.
        """
        return self.lists_all(named) and not (self.awaits_claims and any(map(_is_claimed, named.values())))

    def _has_all(self, container: str, entries: Entries | None) -> bool:
        if entries is None:
            return True
        named = self.claims.get(container, frozenset())
        claimed = [entry for entry in entries if isinstance(entry, ClaimedDevice)]
        kinds = {entry.resource for entry in entries if isinstance(entry, Device)}
        # Devices of a claim that the container does not name belong to an extended resource.
        behind = {(entry.claim, entry.driver) for entry in claimed if entry.claim not in named}
        is_prepared = not self.awaits_claims or named <= {entry.claim for entry in claimed}
        return len(kinds) + len(behind) >= self.kinds[container] and is_prepared


def _is_claimed(entries: Entries | None) -> bool:
    return any(isinstance(entry, ClaimedDevice) for entry in entries or ())


def merged(before: Named, now: Named) -> Named:
    """Return an answer with the devices of an earlier one that it lacks, because a pod never loses devices.

    None replaces more than MOST_ENTRIES entries of a container, which bounds the memory.
    """
    return {
        container: None if entries is None else _both(before.get(container) or (), entries)
        for container, entries in now.items()
    }


def _both(before: Entries, now: Entries) -> Entries | None:
    both = (*now, *(Counter(before) - Counter(now)).elements()) if before else now
    return both if len(both) <= MOST_ENTRIES else None


class Sandboxes:
    """Names of known pods, and when their sandboxes were first seen; kept for REMEMBERED_SECONDS after the pod."""

    def __init__(self) -> None:
        self._names: dict[Name, dict[str, float]] = {}  # when each pod of a name was last seen, by uid
        self._seen_at: dict[str, float] = {}  # when a pod's sandbox was first seen, by uid

    def note(self, names: Mapping[str, Name], sandboxes: Collection[str], now: float) -> frozenset[str]:
        """Record pods by uid, and those with a sandbox; drop old records. Return the pods whose sandboxes are new."""
        new = frozenset(uid for uid in sandboxes if uid not in self)
        for uid in new:
            self.saw(uid, now)
        for uid, name in names.items():
            self._names.setdefault(name, {})[uid] = now
        for name, uids in list(self._names.items()):
            self._names[name] = {uid: at for uid, at in uids.items() if now - at < REMEMBERED_SECONDS}
            if not self._names[name]:
                del self._names[name]
        for uid, at in list(self._seen_at.items()):
            if uid not in names and now - at >= REMEMBERED_SECONDS:
                del self._seen_at[uid]
        return new

    def saw(self, uid: str, now: float) -> None:
        """Record that a pod's sandbox exists from now on."""
        self._seen_at.setdefault(uid, now)

    def __contains__(self, uid: str) -> bool:
        return uid in self._seen_at

    def is_single(self, name: Name) -> bool:
        """Return whether at most one pod had this name lately."""
        return len(self._names.get(name, {})) <= 1

    def is_before(self, uid: str, moment: float) -> bool:
        """Return whether a pod's sandbox was seen before a moment."""
        return self._seen_at.get(uid, moment) < moment
