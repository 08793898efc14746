"""A fake cluster for the rotation: objects, delays of kubelets and API servers, and a clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from cryptography import x509

from certs import material
from certs.cluster import Change, Configuration, Conflict, Event
from certs.issue import CA
from certs.material import LEAF_CERT, LEAF_KEY, Anchors, Secret
from certs.metrics import Metrics
from certs.rotation import RotationSettings
from certs.rotator import Rotator

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
NAME = "corepin-webhook.corepin-system.svc"
KUBELET_SECONDS = 90.0  # maximum delay of a changed Secret in pods
NOTICE_SECONDS = 30.0  # maximum delay of a changed webhook configuration in API servers


class Killed(Exception):
    """The process was killed."""


class FakeClock:
    """A clock set by tests; a jump changes only the time of day."""

    def __init__(self, start: datetime = START) -> None:
        self.seconds = 0.0
        self.start = start

    def now(self) -> datetime:
        """Return the time of day."""
        return self.start + timedelta(seconds=self.seconds)

    def elapsed(self) -> float:
        """Return the monotonic time."""
        return self.seconds

    def advance(self, **by: float) -> None:
        """Let time pass."""
        self.seconds += timedelta(**by).total_seconds()

    def jump(self, seconds: float) -> None:
        """Change the time of day, but not the monotonic time."""
        self.start += timedelta(seconds=seconds)


@dataclass
class Replica:
    """A webhook with its leaf, and whether it can be reached."""

    leaf: x509.Certificate | None = None
    answers: bool = True


@dataclass
class World:
    """The Secret, webhook configurations, events and replicas of a cluster, with their delays."""

    entries: tuple[int, ...] = (1, 3)
    clock: FakeClock = field(default_factory=FakeClock)
    secret_now: Secret = field(default_factory=lambda: Secret(version="1"))
    events: list[Event] = field(default_factory=list)
    writes_until_killed: int | None = None  # None: never; the last write may or may not take effect
    takes_effect: bool = True
    replicas: dict[str, Replica] = field(default_factory=lambda: {"a:1": Replica(), "b:1": Replica()})

    def __post_init__(self) -> None:
        names = ("zz-corepin", "corepin", "third")
        kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        self.configured = [
            Configuration(kinds[index % 2], names[index], "1", (b"",) * count)
            for index, count in enumerate(self.entries)
        ]
        self._version = 1
        self._leaves: list[
            tuple[float, x509.Certificate]
        ] = []  # leaves of the Secret with the time of the change
        self._trusted: list[tuple[float, Anchors]] = [(-1e9, frozenset())]

    # Reads and writes of the rotation

    def secret(self) -> Secret:
        """Return the Secret."""
        return self.secret_now

    def configurations(self) -> tuple[Configuration, ...]:
        """Return the configurations."""
        return tuple(self.configured)

    def write_secret(self, change: Change, version: str) -> None:
        """Change the Secret if the version matches."""
        is_killed = self._is_killed()
        if not is_killed or self.takes_effect:
            if version != self.secret_now.version:
                raise Conflict("the Secret was changed")
            self.edit(change)
        if is_killed:
            raise Killed

    def write_bundles(self, configuration: Configuration, bundles: Mapping[int, bytes]) -> None:
        """Change a configuration if its version matches."""
        is_killed = self._is_killed()
        if not is_killed or self.takes_effect:
            self._replace(configuration, bundles)
        if is_killed:
            raise Killed

    def record(self, event: Event) -> None:
        """Record the event."""
        self.events.append(event)

    def probe(self) -> dict[str, bytes | None]:
        """Return the certificates that the replicas serve."""
        return {
            address: material.der(replica.leaf) if replica.answers and replica.leaf else None
            for address, replica in self.replicas.items()
        }

    def _is_killed(self) -> bool:
        if self.writes_until_killed is None:
            return False
        self.writes_until_killed -= 1
        if self.writes_until_killed > 0:
            return False
        self.writes_until_killed = None
        return True

    def _replace(self, configuration: Configuration, bundles: Mapping[int, bytes]) -> None:
        index = next(
            index
            for index, configured in enumerate(self.configured)
            if (configured.kind, configured.name) == (configuration.kind, configuration.name)
        )
        if self.configured[index].version != configuration.version:
            raise Conflict("the configuration was changed")
        held = tuple(bundles.get(entry, pem) for entry, pem in enumerate(configuration.bundles))
        self.set_bundles(index, held)

    # Actions of other programs

    def edit(self, change: Change) -> None:
        """Change the Secret as another client."""
        self._version += 1
        data = {**self.secret_now.data, **change.data}
        annotations = {**self.secret_now.annotations, **change.annotations}
        self.secret_now = Secret(
            {key: value for key, value in data.items() if value is not None},
            {key: value for key, value in annotations.items() if value is not None},
            str(self._version),
        )
        leaf = self.leaf
        if leaf and (not self._leaves or self._leaves[-1][1] != leaf):
            self._leaves.append((self.clock.seconds, leaf))

    def set_bundles(self, index: int, bundles: tuple[bytes, ...]) -> None:
        """Change a configuration."""
        self._version += 1
        former = self.configured[index]
        self.configured[index] = Configuration(former.kind, former.name, str(self._version), bundles)
        self._trusted.append((self.clock.seconds, self.trusted))

    @property
    def leaf(self) -> x509.Certificate | None:
        """Return the leaf of the Secret if a webhook would serve it."""
        parts = material.read(
            Secret({key: self.secret_now.data.get(key, b"") for key in (LEAF_CERT, LEAF_KEY)})
        )
        return parts.leaf.certificate if parts.leaf.private_key else None

    @property
    def trusted(self) -> Anchors:
        """Return the CAs that every entry trusts."""
        held = [
            material.anchors_of(pem) for configuration in self.configured for pem in configuration.bundles
        ]
        return frozenset.intersection(*held) if held else frozenset()

    def kubelets_sync(self) -> None:
        """Update the Secret volume of every replica."""
        for replica in self.replicas.values():
            replica.leaf = self.leaf or replica.leaf

    def advance(self, seconds: float) -> None:
        """Let time pass; kubelets update volumes after KUBELET_SECONDS at the latest."""
        self.clock.advance(seconds=seconds)
        if self._leaves and self.clock.seconds - self._leaves[-1][0] > KUBELET_SECONDS:
            self.kubelets_sync()

    def cached_leaves(self) -> list[x509.Certificate]:
        """Return the leaves that a starting pod may get: the newest, and those replaced within KUBELET_SECONDS."""
        return _lasting(self._leaves, self.clock.seconds - KUBELET_SECONDS)

    def untrusted(self) -> list[tuple[x509.Certificate, Anchors]]:
        """Return pairs of a leaf that may be served and the CAs of an API server that would refuse it."""
        shown = [replica.leaf for replica in self.replicas.values() if replica.leaf] + self.cached_leaves()
        return [
            (leaf, anchors)
            for leaf in shown
            for anchors in self._views()
            if not any(material.is_issued_by(leaf, anchor) for anchor in anchors)
        ]

    def _views(self) -> list[Anchors]:
        """Return the CAs that API servers may trust: the newest, and those replaced within NOTICE_SECONDS.

        Views in which every CA has expired are skipped.
        """
        now = self.clock.now()
        views = _lasting(self._trusted, self.clock.seconds - NOTICE_SECONDS)
        return [view for view in views if any(anchor.not_valid_after_utc > now for anchor in view)]

    def rotator(self, settings: RotationSettings | None = None) -> Rotator:
        """Return a new rotation of this cluster."""
        return Rotator(self, self.probe, settings or RotationSettings((NAME,)), Metrics(), self.clock)

    def serve(self) -> None:
        """Issue the first certificate and let every replica serve it."""
        self.rotator().settle()
        self.kubelets_sync()
        self.rotator().settle()

    def rotate(self) -> None:
        """Ask for a new CA."""
        self.edit(Change({}, {material.ROTATE: "ca"}))


def _lasting(history: list[tuple[float, T]], still: float) -> list[T]:
    """Return the newest value of a history, and those that were replaced after the time `still`."""
    ends = [*(since for since, _ in history[1:]), float("inf")]
    return [value for (_, value), until in zip(history, ends, strict=False) if until >= still]


def foreign() -> dict[str, bytes]:
    """Return certificate and key of another issuer."""
    leaf = CA.create(now=START).issue_cert(NAME, now=START)
    return {LEAF_CERT: leaf.cert, LEAF_KEY: leaf.key}
