"""Rotation loop: observe the API objects and replicas, choose a step, take it, and repeat.

If the process is killed at any point, the next one continues from the last write. Only two things are kept in memory:
the offset of the clocks, because a jump restarts waits, and the warnings that were emitted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from certs import events, material, rotation
from certs.cluster import Change, ClusterError, Configuration, Conflict
from certs.issue import CA
from certs.material import (
    CA_CERT,
    CA_KEY,
    LEAF_CERT,
    LEAF_KEY,
    MANAGED,
    NEXT_CERT,
    NEXT_KEY,
    OLD_CERTS,
    PUBLISHED,
    ROTATE,
    SHOWN,
)
from certs.rotation import (
    CreateCA,
    ForgetOld,
    IssueLeaf,
    MarkPublished,
    MarkShown,
    Place,
    Publish,
    Refuse,
    Rest,
    RotationSettings,
    Seen,
    Step,
    Trim,
    Unmark,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from certs.cluster import Cluster, Event
    from certs.material import Anchors
    from certs.metrics import Metrics

# Least jump of the wall clock that restarts waits: longer than scheduling delays, shorter than any wait.
JUMP: Final = timedelta(seconds=5)
# Most steps in a row; a whole rotation has about ten, and more mean that two writers undo each other's steps.
STEPS_AT_ONCE: Final = 50
UNMARKED: Final[Mapping[str, str | None]] = {PUBLISHED: None, SHOWN: None}

logger = logging.getLogger(__name__)


class Clock(Protocol):
    """A wall clock and a monotonic clock."""

    def now(self) -> datetime:
        """Return the wall clock's time."""
        ...

    def elapsed(self) -> float:
        """Return the monotonic clock's seconds."""
        ...


class SystemClock:
    """The system's clocks (interface `Clock`)."""

    def now(self) -> datetime:
        """Return the wall clock's time."""
        return datetime.now(UTC)

    def elapsed(self) -> float:
        """Return the monotonic clock's seconds."""
        return monotonic()


@dataclass(frozen=True, slots=True)
class Look:
    """An observation, with the read objects and versions for optimistic locking."""

    seen: Seen
    version: str
    configurations: tuple[Configuration, ...]


class Rotator:
    """Rotates the certificates of one Secret."""

    def __init__(
        self,
        cluster: Cluster,
        probe: Callable[[], Mapping[str, bytes | None]],
        settings: RotationSettings,
        metrics: Metrics,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._probe = probe
        self._settings = settings
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._drift = self._offset()
        self._is_doubtful = False
        self._once = events.Once()

    def settle(self) -> Wait | Rest | Refuse:
        """Take all steps that are possible now; return the last one, which is a wait, rest or refusal."""
        for _ in range(STEPS_AT_ONCE):
            try:
                step = self.take_step()
            except Conflict as conflict:
                self._metrics.conflicts.inc()
                logger.info(
                    "changed by another writer, looking again", extra={"facts": {"reason": str(conflict)}}
                )
                continue
            if isinstance(step, Wait | Rest | Refuse):
                return step
        raise ClusterError(f"not done after {STEPS_AT_ONCE} steps: does another program write the Secret?")

    def take_step(self) -> Step:
        """Observe, take one step and return it.

        Raise Conflict if another writer was faster, ClusterError if a request failed.
        """
        look = self.look()
        step = rotation.next_step(look.seen, self._settings)
        self._metrics.show(look.seen, step)
        self._record(self._once.new(events.wrong(look.seen, step), look.seen.now))
        self.act(step, look)
        self._metrics.last_pass.set(look.seen.now.timestamp())
        return step

    def look(self) -> Look:
        """Read the Secret, the webhook configurations and the replicas' certificates."""
        self._metrics.passes.inc()
        secret = self._cluster.secret()
        configurations = self._cluster.configurations()
        parts = material.read(secret)
        shown = self._probe() if parts.leaf.certificate else {}
        published = {
            Place(configuration.kind, configuration.name, entry): material.anchors_of(pem)
            for configuration in configurations
            for entry, pem in enumerate(configuration.bundles)
        }
        seen = Seen(parts, published, self._clock.now(), shown, self._has_jumped())
        return Look(seen, secret.version, configurations)

    def act(self, step: Step, look: Look) -> None:
        """Take a step that was chosen from an observation; idempotent, and safe to be killed at any point."""
        match step:
            case Wait() | Rest() | Refuse():
                pass
            case Publish(bundles) | Trim(bundles):
                self._write_bundles(bundles, look)
                self._note(step)
            case _:
                self._cluster.write_secret(self._change(step, look.seen), look.version)
                self._note(step)
        self._is_doubtful = False  # no mark from before a jump of the clock is left

    def _note(self, step: Step) -> None:
        self._metrics.steps.labels(type(step).__name__).inc()
        logger.info("step taken", extra={"facts": {"step": type(step).__name__}})
        event = events.done(step)
        self._record([event] if event else [])

    def _change(
        self, step: CreateCA | Unmark | MarkPublished | MarkShown | IssueLeaf | ForgetOld, seen: Seen
    ) -> Change:
        """Return the change of the Secret that a step makes."""
        match step:
            case CreateCA():
                return self._new_authority(seen)
            case IssueLeaf(signer):
                return self._new_leaf(signer, seen)
            case Unmark():
                return Change({}, UNMARKED)
            case MarkPublished(mark):
                return Change({}, {PUBLISHED: str(mark)})
            case MarkShown(mark):
                return Change({}, {SHOWN: str(mark)})
            case ForgetOld():
                return Change({OLD_CERTS: None}, {})
            case _:
                assert_never(step)

    def _new_authority(self, seen: Seen) -> Change:
        ca = CA.create(days=self._settings.ca_days, now=seen.now)
        return Change({NEXT_CERT: ca.cert, NEXT_KEY: ca.key}, {MANAGED: "true", ROTATE: None, **UNMARKED})

    def _new_leaf(self, signer: CA, seen: Seen) -> Change:
        """Return the Secret's change for a new leaf; if the next CA signs it, that becomes the current CA."""
        settings, secret = self._settings, seen.secret
        leaf = signer.issue_cert(*settings.dns_names, days=settings.leaf_days, now=seen.now)
        data: dict[str, bytes | None] = {LEAF_CERT: leaf.cert, LEAF_KEY: leaf.key}
        if seen.next_authority == signer:
            former = (secret.ca.certificate,) if secret.ca.certificate else ()
            old = material.bundle({*secret.old, *former})
            data |= {CA_CERT: signer.cert, CA_KEY: signer.key, NEXT_CERT: None, NEXT_KEY: None}
            data[OLD_CERTS] = old or None
        return Change(data, UNMARKED)

    def _write_bundles(self, bundles: Mapping[Place, Anchors], look: Look) -> None:
        for configuration in look.configurations:
            changed = {
                place.entry: material.bundle(anchors)
                for place, anchors in bundles.items()
                if (place.kind, place.name) == (configuration.kind, configuration.name)
            }
            if changed:
                self._cluster.write_bundles(configuration, changed)

    def _record(self, events: list[Event]) -> None:
        """Log and create events; a failure to create one is ignored."""
        for event in events:
            level = logging.WARNING if event.is_warning else logging.INFO
            facts = {"reason": event.reason, "message": event.message}
            logger.log(level, "certificates", extra={"facts": facts})
            try:
                self._cluster.record(event)
            except ClusterError as error:
                self._metrics.event_errors.inc()
                logger.warning("event not made", extra={"facts": {"reason": str(error)}})

    def _offset(self) -> float:
        return self._clock.now().timestamp() - self._clock.elapsed()

    def _has_jumped(self) -> bool:
        """Return whether the wall clock has jumped since the last step, so that marks may be wrong."""
        offset = self._offset()
        if abs(offset - self._drift) > JUMP.total_seconds():
            self._is_doubtful = True
            logger.warning("the clock jumped", extra={"facts": {"seconds": offset - self._drift}})
        self._drift = offset
        return self._is_doubtful
