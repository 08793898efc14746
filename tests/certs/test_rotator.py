"""The rotation's loop: write conflicts, kills, metrics, and refused events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from certs import material
from certs.cluster import Change, ClusterError, Event
from certs.material import NEXT_CERT
from certs.metrics import Metrics
from certs.rotation import Rest, RotationSettings
from certs.rotator import Rotator
from tests.certs.world import NAME, Killed, World

if TYPE_CHECKING:
    from certs.material import Secret


class Crowd(World):
    """A cluster in which another client changes the Secret after each of the first reads."""

    others = 0

    def secret(self) -> Secret:
        """Return the Secret, and then change it."""
        read = self.secret_now
        if self.others:
            self.others -= 1
            self.edit(Change({}, {"somebody": str(self.others)}))
        return read


class Mute(World):
    """A cluster that refuses events."""

    def record(self, event: Event) -> None:
        """Refuse the event."""
        raise ClusterError(f"{event.reason} refused")


def rotator_of(world: World) -> tuple[Rotator, Metrics]:
    """Return a rotation and its metrics."""
    metrics = Metrics()
    return Rotator(world, world.probe, RotationSettings((NAME,)), metrics, world.clock), metrics


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return one value."""
    return metrics.registry.get_sample_value(f"corepin_certs_{name}", labels)


def test_step_is_retried_after_a_conflict() -> None:
    """On a conflict another client's change is kept, the conflict is counted, and the step is decided again."""
    world = Crowd()
    world.others = 3
    rotator, metrics = rotator_of(world)

    assert isinstance(rotator.settle(), Rest)

    assert sample(metrics, "conflicts_total") == 3
    assert world.secret_now.annotations["somebody"] == "0"


def test_pass_fails_after_repeated_conflicts() -> None:
    """Endless conflicts fail the pass with the reason, and do not end the program."""
    world = Crowd()
    world.others = 1000
    rotator, _ = rotator_of(world)

    with pytest.raises(ClusterError, match="does another program write the Secret"):
        rotator.settle()


def test_events_are_not_needed() -> None:
    """A rotation continues if events cannot be created, and counts the failures."""
    world = Mute()
    rotator, metrics = rotator_of(world)

    assert isinstance(rotator.settle(), Rest)

    failed = sample(metrics, "event_errors_total")
    assert failed is not None
    assert failed >= 3


@pytest.mark.parametrize("takes_effect", [False, True], ids=["lost", "written"])
@pytest.mark.parametrize("write", range(1, 11))
def test_killed_at_each_write_of_a_rotation(write: int, takes_effect: bool) -> None:
    """If the process is killed at its n-th write, before or after its effect, the next process ends the rotation."""
    world = World()
    world.serve()
    world.rotate()
    former = world.trusted
    world.writes_until_killed, world.takes_effect = write, takes_effect
    rotator, _ = rotator_of(world)
    for _ in range(9):
        try:
            rotator.settle()
        except Killed:
            rotator, _ = rotator_of(world)
        assert not world.untrusted()
        world.advance(91)

    assert isinstance(rotator.settle(), Rest)
    assert world.writes_until_killed is None
    assert len(world.trusted) == 1
    assert world.trusted != former


def test_metrics_show_what_was_seen() -> None:
    """Gauges show expiry, replicas, problems and the due step of the last observation."""
    world = World()
    world.serve()
    world.replicas["b:1"].answers = False
    world.rotate()
    world.edit(Change({NEXT_CERT: b"garbage"}, {}))
    rotator, metrics = rotator_of(world)

    rotator.settle()

    leaf = material.read(world.secret_now).leaf.certificate
    assert leaf is not None
    ends = leaf.not_valid_after_utc.timestamp()
    assert sample(metrics, "certificate_not_after_seconds", certificate="leaf") == ends
    shown = [sample(metrics, "replicas", shows=shows) for shows in ("current", "another", "nothing")]
    assert shown == [1, 0, 1]
    assert sample(metrics, "secret_problems") == 0
    assert sample(metrics, "bundles") == 4
    assert sample(metrics, "step", step="Wait") == 1
    assert sample(metrics, "last_pass_timestamp_seconds") == world.clock.now().timestamp()


class Locked(World):
    """A cluster that lets the rotation read, and refuses its writes."""

    def write_secret(self, change: Change, version: str) -> None:
        """Refuse the change."""
        raise ClusterError("PATCH secrets: 403: forbidden")


def test_pass_whose_write_fails_has_not_succeeded() -> None:
    """While a write is refused the time of the last successful pass does not change, so that an alert fires."""
    rotator, metrics = rotator_of(Locked())
    with pytest.raises(ClusterError, match="403"):
        rotator.settle()
    assert sample(metrics, "step", step="CreateCA") == 1
    assert sample(metrics, "last_pass_timestamp_seconds") == 0
