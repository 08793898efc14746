"""The rotation, step by step, with a fake cluster."""

from __future__ import annotations

from datetime import timedelta

import pytest

from certs import material
from certs.cluster import Change
from certs.issue import CA
from certs.material import CA_CERT, CA_KEY, LEAF_CERT, LEAF_KEY, MANAGED, NEXT_CERT, NEXT_KEY, OLD_CERTS
from certs.rotation import Refuse, Rest, RotationSettings, Wait, renewal_of
from tests.certs.altered import CURVE, EXTENSION, VERSION, altered
from tests.certs.world import NAME, START, World, foreign


@pytest.fixture
def served() -> World:
    """Return a cluster whose replicas serve the first certificate."""
    world = World()
    world.serve()
    return world


def reasons(world: World) -> list[str]:
    """Return the reasons of all events."""
    return [event.reason for event in world.events]


def test_first_issue_needs_no_wait() -> None:
    """An empty Secret is filled and published without a wait."""
    world = World()

    assert isinstance(world.rotator().settle(), Rest)

    assert set(world.secret_now.data) == {LEAF_CERT, LEAF_KEY, CA_CERT, CA_KEY}
    assert world.secret_now.annotations == {MANAGED: "true"}
    assert [configuration.bundles for configuration in world.configured] == [
        (world.secret_now.data[CA_CERT],) * count for count in world.entries
    ]
    assert material.read(world.secret_now).problems == ()


def test_leaf_is_good_for_the_service_and_its_time(served: World) -> None:
    """The leaf has the requested names, is valid for at most 90 days, and is backdated by five minutes."""
    leaf = served.leaf
    assert leaf is not None

    assert leaf.not_valid_before_utc == START - timedelta(minutes=5)
    assert leaf.not_valid_after_utc == START + timedelta(days=90)
    assert not served.untrusted()


def test_leaf_is_renewed_before_a_third_is_left(served: World) -> None:
    """A leaf is renewed before a third of its lifetime is left; CA and bundles do not change."""
    before, bundles = served.secret_now.data, served.configured[:]
    served.clock.advance(days=90 * 2 / 3 - 1)

    served.rotator().settle()

    after = served.secret_now.data
    assert after[LEAF_CERT] != before[LEAF_CERT]
    assert {key for key in after if after[key] != before[key]} == {LEAF_CERT, LEAF_KEY}
    assert served.configured == bundles


def test_rotation_takes_its_steps_in_order(served: World) -> None:
    """A rotation publishes both CAs, waits, switches the leaf, checks the replicas, and drops the old CA, in order."""
    served.rotate()
    rotator = served.rotator()

    first = rotator.settle()
    assert first == Wait("the API servers have to notice the new caBundles", START + timedelta(seconds=60))
    data = served.secret_now.data
    assert {NEXT_CERT, NEXT_KEY} < set(data)
    assert served.trusted == material.anchors_of(data[CA_CERT] + data[NEXT_CERT])

    served.advance(60)
    second = rotator.settle()
    assert isinstance(second, Wait)
    assert second.reason == "the old certificate is still served by a:1, b:1"
    assert served.secret_now.data[CA_CERT] == data[NEXT_CERT]
    assert served.secret_now.data[OLD_CERTS] == data[CA_CERT]

    served.kubelets_sync()
    third = rotator.settle()
    assert isinstance(third, Wait)
    assert third.until == START + timedelta(seconds=150)

    served.advance(90)
    assert isinstance(rotator.settle(), Rest)
    assert set(served.secret_now.data) == {LEAF_CERT, LEAF_KEY, CA_CERT, CA_KEY}
    assert served.secret_now.annotations == {MANAGED: "true"}
    assert served.trusted == material.anchors_of(data[NEXT_CERT])
    assert reasons(served)[-5:] == [
        "CARotationStarted",
        "CAPublished",
        "CertificateIssued",
        "CARotated",
        "CABundleTrimmed",
    ]


def test_authorities_differ_in_name_and_key_id(served: World) -> None:
    """Old and new CA differ in name and key id."""
    served.rotate()
    served.rotator().settle()

    parts = material.read(served.secret_now)
    assert parts.ca.certificate is not None
    assert parts.next_ca.certificate is not None
    assert parts.ca.certificate.subject != parts.next_ca.certificate.subject


def test_old_ca_outlives_a_silent_replica_until_it_expires(served: World) -> None:
    """A silent replica delays the rotation, with an event, until the old CA expires at the latest."""
    served.replicas["b:1"].answers = False
    served.rotate()
    rotator = served.rotator()
    rotator.settle()
    served.advance(60)
    rotator.settle()
    served.advance(91)

    waiting = rotator.settle()
    assert isinstance(waiting, Wait)
    assert waiting.reason == "no answer from b:1"
    assert reasons(served).count("ReplicaSilent") == 1
    assert OLD_CERTS in served.secret_now.data

    served.clock.advance(days=365)  # no rotation renewed the leaf during that year
    served.kubelets_sync()
    served.rotator().settle()
    assert OLD_CERTS not in served.secret_now.data


def test_no_rotation_begins_while_an_old_ca_is_trusted(served: World) -> None:
    """A rotation that is requested during another one begins after it."""
    served.rotate()
    served.rotator().settle()
    served.advance(60)
    served.rotator().settle()
    served.rotate()

    served.rotator().settle()
    assert NEXT_CERT not in served.secret_now.data

    served.advance(91)
    served.rotator().settle()
    served.advance(91)
    served.rotator().settle()
    assert NEXT_CERT in served.secret_now.data


def test_replica_that_shows_another_leaf_starts_the_wait_anew(served: World) -> None:
    """A replica that serves another leaf restarts the wait."""
    served.rotate()
    for seconds in (0, 60, 91):
        served.advance(seconds)
        served.rotator().settle()
    assert material.SHOWN in served.secret_now.annotations
    former = served.replicas["a:1"].leaf
    served.replicas["a:1"].leaf = CA.create(now=START).certificate

    served.rotator().settle()
    assert material.SHOWN not in served.secret_now.annotations

    served.replicas["a:1"].leaf = former
    waiting = served.rotator().settle()
    assert waiting == Wait(
        "a replica that starts may still get the old certificate", served.clock.now() + timedelta(seconds=90)
    )


def test_restart_goes_on_waiting_where_the_old_process_was(served: World) -> None:
    """The start of a wait is in the Secret, so that a restarted process continues it."""
    served.rotate()
    first = served.rotator().settle()
    served.advance(30)

    assert served.rotator().settle() == first


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_clock_that_jumps_begins_the_wait_anew(served: World, seconds: float) -> None:
    """A jump of the clock restarts the wait."""
    served.rotate()
    rotator = served.rotator()
    rotator.settle()

    served.clock.jump(seconds)
    waiting = rotator.settle()

    assert isinstance(waiting, Wait)
    assert waiting.until == served.clock.now() + timedelta(seconds=60)
    assert NEXT_CERT in served.secret_now.data


def test_certificates_of_the_future_are_replaced(served: World) -> None:
    """Certificates that are not valid yet, from a wrong clock, are replaced."""
    served.clock.jump(3 * 365 * 86400)
    rotator = served.rotator()
    rotator.settle()
    for _ in range(4):
        served.advance(91)
        rotator.settle()
    served.clock.jump(-3 * 365 * 86400)

    for _ in range(6):
        rotator.settle()
        served.advance(91)

    assert isinstance(rotator.settle(), Rest)
    assert served.leaf is not None
    assert served.leaf.not_valid_before_utc <= served.clock.now()


@pytest.mark.parametrize("key", [LEAF_CERT, LEAF_KEY, CA_CERT, CA_KEY])
@pytest.mark.parametrize("content", [None, b"garbage"], ids=["removed", "garbage"])
def test_damaged_part_is_reported_and_replaced(served: World, key: str, content: bytes | None) -> None:
    """A damaged part is replaced in steps; the replicas' certificates stay trusted, and an event names the key."""
    served.edit(Change({key: content}, {}))
    rotator = served.rotator()

    for _ in range(5):
        rotator.settle()
        assert not served.untrusted()
        served.advance(91)

    assert isinstance(rotator.settle(), Rest)
    assert material.read(served.secret_now).problems == ()
    messages = [event.message for event in served.events if event.reason == "SecretDamaged"]
    assert key in messages[0]


@pytest.mark.parametrize(
    ("key", "change"),
    [
        (CA_CERT, VERSION),
        (CA_CERT, CURVE),
        (CA_CERT, EXTENSION),
        (LEAF_CERT, VERSION),
        (LEAF_CERT, CURVE),
        (OLD_CERTS, VERSION),
    ],
)
def test_certificate_with_a_wrong_byte_is_replaced(
    served: World, key: str, change: tuple[bytes, bytes]
) -> None:
    """A certificate that `cryptography` loads but does not read in whole stops no pass, and is replaced in steps."""
    content = served.secret_now.data[LEAF_CERT if key == LEAF_CERT else CA_CERT]
    served.edit(Change({key: altered(content, change)}, {}))

    for _ in range(5):
        served.rotator().settle()
        assert not served.untrusted()
        served.advance(91)

    assert isinstance(served.rotator().settle(), Rest)
    assert material.read(served.secret_now).problems == ()
    assert served.leaf is not None
    assert material.dns_names(served.leaf) >= {NAME}


@pytest.mark.parametrize("key", [NEXT_CERT, NEXT_KEY])
@pytest.mark.parametrize("content", [None, b"garbage"], ids=["removed", "garbage"])
def test_damaged_next_ca_is_made_anew(served: World, key: str, content: bytes | None) -> None:
    """A damaged new CA is created again, and the rotation ends."""
    served.rotate()
    served.rotator().settle()
    served.edit(Change({key: content}, {}))

    for _ in range(5):
        served.rotator().settle()
        assert not served.untrusted()
        served.advance(91)

    assert isinstance(served.rotator().settle(), Rest)
    assert set(served.secret_now.data) == {LEAF_CERT, LEAF_KEY, CA_CERT, CA_KEY}
    assert served.trusted == material.anchors_of(served.secret_now.data[CA_CERT])


def test_emptied_secret_is_no_first_issue(served: World) -> None:
    """An emptied Secret is a rotation with its waits, because replicas still serve their old pair."""
    served.edit(Change(dict.fromkeys(served.secret_now.data), {MANAGED: None}))

    waiting = served.rotator().settle()

    assert isinstance(waiting, Wait)
    assert not served.untrusted()


def test_foreign_certificate_is_left_alone() -> None:
    """A certificate of another issuer is not touched; an event has the remedy."""
    world = World()
    world.edit(Change(dict(foreign()), {}))
    before = world.secret_now

    refusal = world.rotator().settle()

    assert isinstance(refusal, Refuse)
    assert world.secret_now == before
    assert f"set the annotation {MANAGED}=true" in refusal.reason
    assert world.events[-1].reason == "SecretForeign"


def test_foreign_certificate_is_taken_over_when_allowed() -> None:
    """With the annotation, a foreign CA in the bundles stays trusted until every replica shows ours."""
    world = World()
    theirs = CA.create(now=START)
    leaf = theirs.issue_cert(NAME, now=START)
    for index, count in enumerate(world.entries):
        world.set_bundles(index, (theirs.cert,) * count)
    world.edit(Change({LEAF_CERT: leaf.cert, LEAF_KEY: leaf.key}, {MANAGED: "true"}))
    world.kubelets_sync()

    for _ in range(4):
        world.rotator().settle()
        assert not world.untrusted()
        world.advance(91)

    assert isinstance(world.rotator().settle(), Rest)
    assert theirs.certificate not in world.trusted


def test_emptied_bundle_is_repaired_at_once(served: World) -> None:
    """A caBundle that an `apply` emptied is repaired in the next pass, with an event."""
    before = served.configured[1].bundles
    served.set_bundles(1, (b"", before[1], b"garbage"))

    assert isinstance(served.rotator().settle(), Rest)

    assert served.configured[1].bundles == before
    assert served.events[-1].reason == "CABundleRepaired"


def test_other_names_want_another_leaf(served: World) -> None:
    """A Service that was renamed is served by a new leaf of the same CA."""
    renamed = RotationSettings(("other.corepin-system.svc",))

    served.rotator(renamed).settle()

    assert served.leaf is not None
    assert "CertificateIssued" in reasons(served)
    assert isinstance(served.rotator(renamed).settle(), Rest)


def test_nothing_is_dropped_while_no_replica_is_found(served: World) -> None:
    """While no replica is found the old CA stays trusted."""
    served.rotate()
    served.replicas.clear()
    for _ in range(4):
        served.rotator().settle()
        served.advance(91)

    assert OLD_CERTS in served.secret_now.data
    assert "ReplicasNotFound" in reasons(served)


def test_repeated_warning_is_rate_limited(served: World) -> None:
    """A lasting condition is an event once an hour, not in every pass."""
    served.replicas["a:1"].answers = False
    served.advance(300)
    rotator = served.rotator()
    for _ in range(130):
        rotator.settle()
        served.advance(60)

    assert reasons(served).count("ReplicaSilent") == 3


def test_renewal_leaves_more_than_a_third(served: World) -> None:
    """CA and leaf are renewed before a third of their lifetime is left."""
    parts = material.read(served.secret_now)
    for pair in (parts.ca, parts.leaf):
        assert pair.certificate is not None
        ends, life = pair.certificate.not_valid_after_utc, pair.certificate.not_valid_before_utc
        assert ends - renewal_of(pair.certificate) > (ends - life) / 3
