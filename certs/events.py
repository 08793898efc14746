"""Kubernetes events of a rotation: one when a condition begins, then one each hour while it lasts."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from certs.cluster import Event
from certs.issue import CLOCK_SKEW
from certs.rotation import CreateCA, ForgetOld, IssueLeaf, Publish, Refuse, Trim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from certs.rotation import Seen, Step

AGAIN: Final = timedelta(hours=1)
SYNC_IS_LATE: Final = timedelta(minutes=5)  # a kubelet updates a mounted Secret within 90 s


def done(step: Step) -> Event | None:
    """Return the event of a completed step; None for a step that changes neither certificates nor caBundles."""
    match step:
        case CreateCA():
            return Event(
                "CARotationStarted",
                "a new CA was created",
            )
        case Publish(bundles, is_repair=True):
            return _warning(
                "CABundleRepaired", f"{len(bundles)} caBundles lacked the CA of the certificate in use"
            )
        case Publish(bundles):
            return Event("CAPublished", f"{len(bundles)} caBundles hold every CA that is needed")
        case IssueLeaf():
            return Event("CertificateIssued", "the Secret holds a new server certificate")
        case ForgetOld():
            return Event(
                "CARotated", "every replica serves a certificate of the new CA, and the old CA is removed"
            )
        case Trim(bundles):
            return Event("CABundleTrimmed", f"{len(bundles)} caBundles hold only the current CA")
        case _:
            return None


def wrong(seen: Seen, step: Step) -> Iterator[Event]:
    """Yield warnings for conditions that need an operator's attention."""
    if isinstance(step, Refuse):
        yield _warning("SecretForeign", step.reason)
        return
    if seen.secret.problems:
        problems = "; ".join(map(str, seen.secret.problems))
        yield _warning(
            "SecretDamaged", f"{problems}: damaged parts are replaced, and no CA in use is dropped"
        )
    if not seen.published:
        yield _warning("ConfigurationMissing", "none of the named webhook configurations has an entry")
    if seen.extras or _is_late(seen):
        yield from _about_replicas(seen)


def _about_replicas(seen: Seen) -> Iterator[Event]:
    if not seen.shown:
        yield _warning("ReplicasNotFound", "the names of the replicas do not resolve")
    if seen.silent:
        yield _warning("ReplicaSilent", f"no certificate is served by {', '.join(seen.silent)}")
    if seen.stale and _is_late(seen):
        yield _warning(
            "ReplicaStale", f"a certificate that is not the Secret's is served by {', '.join(seen.stale)}"
        )


def _is_late(seen: Seen) -> bool:
    """Return whether the leaf is so old that kubelets should have delivered it to every replica."""
    leaf = seen.secret.leaf.certificate
    return leaf is not None and seen.now > leaf.not_valid_before_utc + CLOCK_SKEW + SYNC_IS_LATE


def _warning(reason: str, message: str) -> Event:
    return Event(reason, message, is_warning=True)


class Once:
    """Filter that passes an event when its condition begins, then once an hour; not saved across restarts."""

    def __init__(self) -> None:
        self._emitted: dict[Event, datetime] = {}

    def new(self, lasting: Iterable[Event], now: datetime) -> list[Event]:
        """Return the events of current conditions that are due; forget conditions that have ended."""
        current = list(lasting)
        self._emitted = {event: when for event, when in self._emitted.items() if event in current}
        fresh = [
            event for event in current if event not in self._emitted or now - self._emitted[event] >= AGAIN
        ]
        self._emitted.update(dict.fromkeys(fresh, now))
        return fresh
