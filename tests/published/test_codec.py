"""Publishing and reading: versions, unknown and missing members, and damage."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.errors import BadCPUList, PinningError
from pinning.machine.topology import BadTopology
from published.agent_state import AgentSets, AgentState, Pod
from published.codec import AnotherVersion, Published, decode, encode
from published.node_pools import Owner, Pools
from published.node_topology import decode_topology, encode_topology
from published.pod_status import MOST_VCPUS, Applied, Container, GuestPlace, Machine, PodStatus, Refusal
from tests.pinning.machines import FLAT

STATUS = PodStatus(
    refusal=Refusal(reason="Invalid", message="why", blocks_start=True),
    containers={
        "main": Container(policy="exclusive", cpus="1", idle="", numa_nodes=(), applied=Applied(cpus="1")),
        "side": Container(),
    },
    vm=Machine(kind="qemu", guest=(GuestPlace(core=1),)),
)
POOLS = Pools(
    reserved="0",
    shared="0",
    set_aside="",
    owners={"a/b/c": Owner(policy="share", cpus="1")},
    align_uncore=False,
)
SETS = AgentSets(reserved="0", shared="0", set_aside="")
STATE = AgentState(
    node="n", runtime="r", topology={}, sets=SETS, ledger={}, pods=(Pod(containers=STATUS.containers),)
)
KINDS = [pytest.param(thing, id=type(thing).__name__) for thing in (STATUS, POOLS, STATE)]


def members(thing: Published, **more: Any) -> str:
    """Return the text of a thing with other members at its top."""
    return json.dumps(json.loads(encode(thing)) | more)


@pytest.mark.parametrize("thing", KINDS)
def test_what_is_written_is_read(thing: Published) -> None:
    """A published object is read back equal; its first member is the version of its kind."""
    text = encode(thing)

    assert decode(type(thing), text) == msgspec.structs.replace(thing, version=thing.VERSION)
    assert next(iter(json.loads(text).items())) == ("version", thing.VERSION)


@pytest.mark.parametrize("thing", KINDS)
def test_another_version_alone_is_refused(thing: Published) -> None:
    """Another version is refused with both numbers; unknown members of the same version are ignored."""
    kind, known = type(thing), decode(type(thing), encode(thing))

    for version in (known.version + 1, 2**31 - 1):
        with pytest.raises(AnotherVersion, match=rf"version {version}; this one reads version \d") as found:
            decode(kind, members(thing, version=version))
        assert found.value.version == version
    assert decode(kind, members(thing, devices={"gpu": [1]}, pinned=3)) == known


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "3", "[" * 100_000, '{"x":' * 100_000, "\ud800", "\x00", '{"version":true}'),
        *('{"version":-1}', '{"version":1e99}', '{"version":' + "9" * 5000 + "}", '{"version":"1"}'),
    ],
)
@pytest.mark.parametrize("kind", [PodStatus, Pools, AgentState])
def test_damage_is_one_error(kind: type[Published], text: str) -> None:
    """Any damage, since users may write the annotation, is one error in a few words."""
    with pytest.raises(AnotherVersion, match="damaged, or written by another version of corepin") as found:
        decode(kind, text)
    assert found.value.version is None
    assert len(str(found.value)) < 400


@given(text=st.text() | st.binary())
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    """Any text is read or raises one of the two errors."""
    for read in (lambda: decode(PodStatus, text), lambda: decode_topology(text)):
        with suppress(PinningError):
            read()


def test_words_that_are_not_known_are_kept() -> None:
    """A policy, a path or a reason of a later version is shown as it is written."""
    text = (
        '{"containers":{"main":{"policy":"borrowed","applied":{"path":"magic"},"refusal":{"reason":"New"}}}}'
    )
    container = decode(PodStatus, text).containers["main"]

    assert container.applied
    assert container.refusal
    assert (container.policy, container.applied.path, container.refusal.reason) == (
        "borrowed",
        "magic",
        "New",
    )


def test_more_vcpus_than_a_machine_has_are_damage() -> None:
    """A status with more vCPUs than the limit is refused while it is decoded."""
    text = json.dumps({"vm": {"vcpus": ["0"] * MOST_VCPUS}})
    vm = decode(PodStatus, text).vm
    assert vm
    assert len(vm.vcpus) == MOST_VCPUS
    with pytest.raises(AnotherVersion, match="vcpus"):
        decode(PodStatus, json.dumps({"vm": {"vcpus": ["0"] * (MOST_VCPUS + 1)}}))


def test_members_that_say_something_by_being_empty_are_written() -> None:
    """Empty members that have a meaning are written: no containers, no idle CPUs, no NUMA nodes."""
    assert encode(PodStatus()) == b'{"version":1,"containers":{}}'
    main = Container(policy="share", cpus="1", idle="", numa_nodes=(), vcpus=(), applied=Applied())
    assert json.loads(encode(PodStatus(containers={"main": main})))["containers"]["main"] == {
        "policy": "share",
        "cpus": "1",
        "idle": "",
        "numaNodes": [],
        "pinned": False,
        "vcpus": [],
        "applied": {},
    }


def test_a_machine_is_read_as_it_was_written() -> None:
    """A text from before versions is read too; another version is refused, and damage is a different error."""
    text = encode_topology(FLAT)

    for damaged in ("", "[" * 100_000, "\ud800"):
        with pytest.raises(AnotherVersion, match="damaged, or written by another version"):
            decode_topology(damaged)
    for impossible in ("[]", "{}", "null"):
        with pytest.raises(BadTopology):
            decode_topology(impossible)
    assert json.loads(text)["version"] == 1
    assert decode_topology(text) == decode_topology(json.dumps(FLAT.to_dict())) == FLAT
    for version in (2, "1", "x" * 10**6, None, [1], 9**999):
        with pytest.raises(AnotherVersion, match="this one reads version 1") as found:
            decode_topology(json.dumps({**FLAT.to_dict(), "version": version}))
        assert len(str(found.value)) < 200


def test_a_problem_within_a_text_is_one_of_the_text() -> None:
    """A bad CPU list within a text makes the text damaged; an error about its version is kept."""
    version = AnotherVersion("the text", "version 3", 3)

    assert AnotherVersion.of("the text", version) is version
    assert "the text is damaged, or" in str(AnotherVersion.of("the text", BadCPUList("x")))
