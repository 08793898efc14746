"""Pod identity: no pod takes the place of another by its annotations."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pinning.pods.identity import by_runtime_uid
from pinning.pods.types import Pod


def pod(uid: str, says: str | None = None, created: str = "2026-01-01T00:00:00Z") -> Pod:
    """Return a pod named as its uid, which says that it is the mirror of another one."""
    notes = {"kubernetes.io/config.mirror": says, "kubernetes.io/config.hash": says} if says else {}
    metadata: Any = {
        "uid": uid,
        "namespace": "n",
        "name": uid,
        "annotations": notes,
        "creationTimestamp": created,
    }
    return {"metadata": metadata}


def uids_of(*pods: Pod, **names: str) -> dict[str, str | None]:
    """Return the names of the pods by uid of the runtime, which has pods of these names."""
    found = by_runtime_uid(pods, {uid: ("n", name) for uid, name in names.items()})
    return {uid: (pod["metadata"] or {})["name"] for uid, pod in found.items()}


def test_a_static_pod_is_known_by_its_hash() -> None:
    """A static pod's uid is its config hash, from its mirror pod."""
    assert uids_of(pod("mirror", "hash")) == {"hash": "mirror"}


def test_no_mirror_speaks_for_a_pod_of_the_api() -> None:
    """The mirror annotation never overrides the uid of a pod of the API, whatever age and order."""
    pods = pod("fake", "victim", "2020-01-01T00:00:00Z"), pod("victim")
    assert uids_of(*pods) == uids_of(*reversed(pods)) == {"victim": "victim", "fake": "fake"}


def test_of_two_mirrors_the_older_is_believed() -> None:
    """Of two pods that claim to be the mirror of one hash the older is, and the other keeps its own uid."""
    pods = pod("fake", "hash", "2027-01-01T00:00:00Z"), pod("mirror", "hash")
    assert uids_of(*pods) == uids_of(*reversed(pods)) == {"hash": "mirror", "fake": "fake"}


def test_the_runtimes_name_decides() -> None:
    """A mirror annotation counts only if the runtime's pod has the same name, even while the mirror pod is missing."""
    fake, mirror = pod("fake", "hash", "2020-01-01T00:00:00Z"), pod("mirror", "hash")
    assert uids_of(fake, mirror, hash="mirror") == {"hash": "mirror", "fake": "fake"}
    assert uids_of(fake, hash="mirror") == {"fake": "fake"}


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 7)), unique_by=lambda pair: pair[0]))
def test_every_pod_is_known_by_one_uid(said: list[tuple[int, int | None]]) -> None:
    """Every pod has a uid of its own, and a pod without the annotation keeps its uid."""
    pods = [pod(f"u{uid}", None if says is None else f"u{says}") for uid, says in said]
    found = uids_of(*pods)
    assert sorted(map(str, found.values())) == sorted(f"u{uid}" for uid, _ in said)
    assert all(found[f"u{uid}"] == f"u{uid}" for uid, says in said if says is None)
