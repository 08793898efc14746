"""State machine test: after any events API servers trust the replicas' certificates, and every rotation ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from certs import material
from certs.cluster import Change, Conflict
from certs.material import KEYS, PUBLISHED, SHOWN
from certs.rotation import Rest, RotationSettings, next_step
from tests.certs.world import NAME, Killed, World

if TYPE_CHECKING:
    from certs.rotation import Step
    from certs.rotator import Look

SETTINGS = RotationSettings((NAME,))
REPLICAS = st.sampled_from(["a:1", "b:1"])


class Rotation(RuleBasedStateMachine):
    """Random steps, kills, clock jumps, edits, and delays of two rotators, kubelets and replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.rotators = [self.world.rotator(), self.world.rotator()]
        self.decided: tuple[Look, Step] | None = None  # step that the second, slower rotator has decided on
        self.replaced = 0  # upper bound of CAs that were replaced because they were damaged or not valid yet

    @initialize(is_serving=st.booleans())
    def begin(self, is_serving: bool) -> None:
        """Start with an empty Secret or with served certificates."""
        if is_serving:
            self.world.serve()

    @rule(writes=st.none() | st.integers(1, 6), takes_effect=st.booleans())
    def work(self, writes: int | None, takes_effect: bool) -> None:
        """Let the first rotator take all due steps, or be killed at one of its writes and restarted."""
        self.world.writes_until_killed, self.world.takes_effect = writes, takes_effect
        try:
            self.rotators[0].settle()
        except Killed:
            self.rotators[0] = self.world.rotator()
        self.world.writes_until_killed = None

    @rule()
    def decide(self) -> None:
        """Let the second rotator observe and decide, without acting yet."""
        look = self.rotators[1].look()
        self.decided = look, next_step(look.seen, SETTINGS)

    @precondition(lambda self: self.decided is not None)
    @rule()
    def act_late(self) -> None:
        """Let the second rotator act on an outdated observation."""
        assert self.decided is not None
        (look, step), self.decided = self.decided, None
        try:
            self.rotators[1].act(step, look)
        except Conflict:
            self.world.advance(1)

    @rule(seconds=st.sampled_from([1.0, 29.0, 31.0, 61.0, 89.0, 91.0]))
    def wait(self, seconds: float) -> None:
        """Let seconds pass."""
        self.world.advance(seconds)

    @rule(days=st.integers(1, 100))
    def wait_long(self, days: int) -> None:
        """Let days pass while the first rotator runs."""
        for _ in range(days // 20 + 1):
            self.world.advance(min(days, 20) * 86400)
            self.rotators[0].settle()

    @rule(seconds=st.integers(-10_000_000, 10_000_000).filter(lambda seconds: abs(seconds) > 10))
    def jump(self, seconds: int) -> None:
        """Let the clock jump, which running rotators detect at their next observation.

        After a jump backwards an issued CA may not be valid yet, and is replaced.
        """
        self.replaced += seconds < 0
        self.world.clock.jump(seconds)
        self.rotators[0].settle()
        self.decided = None
        self.rotators[1].settle()

    @rule(name=REPLICAS)
    def sync(self, name: str) -> None:
        """Let a kubelet update the Secret volume of a replica."""
        self.world.replicas[name].leaf = self.world.leaf or self.world.replicas[name].leaf

    @rule(is_brought=st.booleans())
    def switch(self, is_brought: bool) -> None:
        """Rotate to the new leaf, and let the replicas load it or not; random rules alone rarely get there."""
        self.world.rotate()
        self.rotators[0].settle()
        self.world.advance(61)
        self.rotators[0].settle()
        if is_brought:
            self.world.kubelets_sync()
            self.rotators[0].settle()

    @rule(name=REPLICAS, data=st.data())
    def restart(self, name: str, data: st.DataObject) -> None:
        """Restart a replica with the Secret that its kubelet may still have cached."""
        cached = self.world.cached_leaves()
        self.world.replicas[name].leaf = data.draw(st.sampled_from(cached)) if cached else None

    @rule(name=REPLICAS)
    def fall_silent_or_speak(self, name: str) -> None:
        """Disconnect or reconnect a replica."""
        self.world.replicas[name].answers = not self.world.replicas[name].answers

    @rule()
    def ask_for_rotation(self) -> None:
        """Request a rotation of the CA."""
        self.world.rotate()

    @rule(key=st.sampled_from(KEYS), content=st.sampled_from([None, b"garbage"]))
    def damage(self, key: str, content: bytes | None) -> None:
        """Damage a part of the Secret; a lost key leads to a new CA, and the earlier CA stays trusted."""
        self.replaced += 1
        self.world.edit(Change({key: content}, {}))

    @rule(
        name=st.sampled_from([PUBLISHED, SHOWN]), content=st.sampled_from([None, "garbage", "2026-11-20 x"])
    )
    def damage_mark(self, name: str, content: str | None) -> None:
        """Damage the annotation with the start of a wait."""
        self.world.edit(Change({}, {name: content}))

    @invariant()
    def every_leaf_is_trusted(self) -> None:
        """Every API server trusts every valid leaf that a replica serves now or after a restart."""
        now = self.world.clock.now()
        untrusted = [
            leaf.serial_number
            for leaf, _ in self.world.untrusted()
            if leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc
        ]
        assert untrusted == []

    @invariant()
    def one_rotation_at_a_time(self) -> None:
        """At most the next, the serving, two old and the replaced CAs are in the Secret."""
        assert len(material.read(self.world.secret_now).anchors) <= 4 + self.replaced

    def teardown(self) -> None:
        """Without further events the rotation ends with a valid Secret and one CA in the bundles."""
        for replica in self.world.replicas.values():
            replica.answers = True
        rotator = self.world.rotator()
        for _ in range(12):
            rotator.settle()
            self.world.advance(91)
        if self.world.secret_now.annotations.get(material.MANAGED) == "true":
            assert isinstance(rotator.settle(), Rest)
            parts = material.read(self.world.secret_now)
            assert self.world.trusted == {parts.ca.certificate} == parts.anchors
            assert parts.problems == ()


TestRotation = Rotation.TestCase
TestRotation.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
