"""Plugin names and event masks."""

from __future__ import annotations

import pytest

from agent.nri.wire import GUARD_EVENTS, WORKER_EVENTS, WORKER_EVENTS_OLD, Event, PluginName, mask
from agent.nri.wire.handlers import may_be_unknown


def test_event_masks_have_the_bits_that_runtimes_accept() -> None:
    """Every runtime accepts the old mask of the worker, and runtimes from NRI 0.10 on the validation event."""
    assert (WORKER_EVENTS_OLD, WORKER_EVENTS, GUARD_EVENTS) == (0x4A9, 0x24A9, 0x2000)


def test_mask_has_one_bit_for_each_event() -> None:
    """The first event is the lowest bit, and repeated events count once."""
    assert mask(Event.RUN_POD_SANDBOX, Event.CREATE_CONTAINER, Event.RUN_POD_SANDBOX) == 0b1001


@pytest.mark.parametrize(
    ("events", "runtime", "expected"),
    [
        (WORKER_EVENTS, "containerd v2.4.2", False),
        (GUARD_EVENTS, "containerd 2.2.0-k3s1", False),
        (WORKER_EVENTS, "containerd v10.0.0", False),
        (WORKER_EVENTS, "containerd v2.1.9", True),
        (WORKER_EVENTS, "containerd 1.7.30", True),
        (WORKER_EVENTS, "containerd unknown", True),
        (WORKER_EVENTS, "cri-o 1.35.0", True),
        (WORKER_EVENTS_OLD, "containerd 1.7.30", False),
        (WORKER_EVENTS_OLD, "", False),
    ],
)
def test_versions_with_the_validation_event(events: int, runtime: str, expected: bool) -> None:
    """Only containerd from 2.2 on is known to have the validation event; the old mask is accepted by all."""
    assert may_be_unknown(events, runtime) is expected


def test_name_is_written_as_the_runtime_writes_it() -> None:
    """The plugin's index is written with two digits, as runtimes write it."""
    assert str(PluginName("corepin", 5)) == "05-corepin"


@pytest.mark.parametrize(
    ("name", "index", "reason"),
    [("a b", 10, "not 'a b'"), ("", 10, "not ''"), ("a", 100, "not 100"), ("a", -1, "not -1")],
    ids=["space", "empty", "three-digits", "negative"],
)
def test_name_that_a_runtime_refuses_is_refused(name: str, index: int, reason: str) -> None:
    """A name or index that runtimes would refuse raises when it is constructed."""
    with pytest.raises(ValueError, match=reason):
        PluginName(name, index)
