"""The plugin's methods, called with payloads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nri.wire import (
    GUARD_EVENTS,
    WORKER_EVENTS,
    WORKER_EVENTS_OLD,
    Event,
    PluginName,
    ProtocolError,
    Reject,
    mask,
)
from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.handlers import may_be_unknown
from agent.nri.wire.service import PLUGIN_SERVICE, PluginService, Stage
from tests.agent.nri.fake_runtime import container, known, known_pod, pod
from tests.agent.nri.wire.plugins import Recorder, resources, update

DEDICATED = {
    "RunPodSandbox": Event.RUN_POD_SANDBOX,
    "StopPodSandbox": Event.STOP_POD_SANDBOX,
    "RemovePodSandbox": Event.REMOVE_POD_SANDBOX,
    "PostCreateContainer": Event.POST_CREATE_CONTAINER,
    "StartContainer": Event.START_CONTAINER,
    "PostStartContainer": Event.POST_START_CONTAINER,
    "PostUpdateContainer": Event.POST_UPDATE_CONTAINER,
    "StopContainer": Event.STOP_CONTAINER,
    "RemoveContainer": Event.REMOVE_CONTAINER,
    "PostUpdatePodSandbox": Event.POST_UPDATE_POD_SANDBOX,
}
METHODS = [
    *DEDICATED,
    *("Configure", "Synchronize", "CreateContainer", "UpdateContainer", "UpdatePodSandbox", "StateChange"),
    *("ValidateContainerAdjustment", "Shutdown"),
]


@pytest.fixture
def handlers() -> Recorder:
    """Return handlers that record their calls."""
    return Recorder()


@pytest.fixture
def service(handlers: Recorder) -> PluginService:
    """Return a plugin with the worker's events."""
    return PluginService(handlers, WORKER_EVENTS)


def answer(service: PluginService, method: str, payload: bytes) -> bytes:
    """Call a method of the plugin."""
    return service.answer(PLUGIN_SERVICE, method, payload)


def test_configure_returns_the_events(service: PluginService, handlers: Recorder) -> None:
    """The answer has the event mask, and the handler gets the runtime and its timeouts."""
    asked = pb.ConfigureRequest(runtime_name="cri-o", runtime_version="1.34.1", request_timeout=2000)

    said = pb.ConfigureResponse.FromString(answer(service, "Configure", asked.SerializeToString()))

    assert said.events == 0x24A9
    assert service.runtime == "cri-o 1.34.1"
    assert service.stage is Stage.CONFIGURED
    assert handlers.calls == [("configure", "cri-o", 2000)]


def test_parts_of_synchronize_are_joined(service: PluginService, handlers: Recorder) -> None:
    """Each part is answered with `more`, and the handler is called once with all parts."""
    handlers.updates = [update("a-c", "0-1")]
    parts = [
        pb.SynchronizeRequest(pods=[pod("a")], more=True),
        pb.SynchronizeRequest(pods=[pod("b")], containers=[container("c", "a")], more=True),
        pb.SynchronizeRequest(containers=[container("d", "b")]),
    ]

    said = [
        pb.SynchronizeResponse.FromString(answer(service, "Synchronize", part.SerializeToString()))
        for part in parts
    ]

    assert [part.more for part in said] == [True, True, False]
    assert [len(part.update) for part in said] == [0, 0, 1]
    assert handlers.calls == [("synchronize", ["a", "b"], ["c", "d"])]
    assert service.stage is Stage.SYNCHRONIZED


def test_rejected_synchronize_is_not_completed(service: PluginService, handlers: Recorder) -> None:
    """If the handler rejects the list, the stage stays SYNCHRONIZING."""
    handlers.failure = Reject("not now")

    with pytest.raises(Reject, match="not now"):
        answer(service, "Synchronize", b"")

    assert service.stage is Stage.SYNCHRONIZING


def test_create_and_update_are_answered_by_the_handlers(service: PluginService, handlers: Recorder) -> None:
    """The handlers' CPUs are in the answers to a creation and an update."""
    about, of = container("c", "a"), pod("a")
    create = pb.CreateContainerRequest(pod=of, container=about)
    change = pb.UpdateContainerRequest(pod=of, container=about, linux_resources=resources("0-9"))

    adjusted = pb.CreateContainerResponse.FromString(
        answer(service, "CreateContainer", create.SerializeToString())
    )
    updated = pb.UpdateContainerResponse.FromString(
        answer(service, "UpdateContainer", change.SerializeToString())
    )

    assert adjusted.adjust.linux.resources.cpu.cpus == "2-3"
    assert updated.update[0].linux.resources.cpu.cpus == "2-3"
    assert handlers.calls == [("create", "a", "c"), ("update", "a", "c", "0-9")]


@pytest.mark.parametrize("reason", ["", "no cpuset of ours"], ids=["passes", "rejected"])
def test_validate_rejects_with_a_reason(service: PluginService, handlers: Recorder, reason: str) -> None:
    """If the handler returns a reason the container is rejected, and otherwise accepted."""
    handlers.reason = reason
    asked = pb.ValidateContainerAdjustmentRequest(container=container("c", "a")).SerializeToString()

    said = pb.ValidateContainerAdjustmentResponse.FromString(
        answer(service, "ValidateContainerAdjustment", asked)
    )

    assert (said.reject, said.reason) == (reason != "", reason)


@pytest.mark.parametrize(("method", "event"), DEDICATED.items(), ids=list(DEDICATED))
def test_events_of_both_styles_reach_the_handler(
    service: PluginService, handlers: Recorder, method: str, event: Event
) -> None:
    """The handler gets the same event by its own method and by StateChange."""
    dedicated = pb.LifecycleRequest(pod=known_pod(pod("a")), container=known(container("c", "a")))
    change = pb.StateChangeEvent(event=event, pod=dedicated.pod, container=dedicated.container)

    assert answer(service, method, dedicated.SerializeToString()) == b""
    assert answer(service, "StateChange", change.SerializeToString()) == b""
    assert handlers.calls == [(event, "a", "c")] * 2


def test_changed_pod_is_an_event(service: PluginService, handlers: Recorder) -> None:
    """UpdatePodSandbox is an event without a container; its resources are ignored."""
    asked = pb.UpdatePodSandboxRequest(pod=known_pod(pod("a"))).SerializeToString()
    overhead = resources("0-3").SerializeToString()

    assert answer(service, "UpdatePodSandbox", asked + bytes([0x12, len(overhead)]) + overhead) == b""
    assert handlers.calls == [(Event.UPDATE_POD_SANDBOX, "a", "")]


def test_unknown_event_reaches_the_handler(service: PluginService, handlers: Recorder) -> None:
    """An unknown event number is passed to the handler."""
    answer(service, "StateChange", pb.StateChangeEvent(event=99).SerializeToString())

    assert handlers.calls == [(99, "", "")]


@pytest.mark.parametrize(
    ("name", "method"),
    [(PLUGIN_SERVICE, "Checkpoint"), ("nri.pkg.api.v1beta1.Plugin", "Configure"), ("", "")],
    ids=["method", "service", "nothing"],
)
def test_unknown_method_is_unimplemented_in_the_service(
    service: PluginService, name: str, method: str
) -> None:
    """An unknown method or service gets code 12, on which the runtime uses the older method."""
    with pytest.raises(Reject, match="has no method") as refused:
        service.answer(name, method, b"")

    assert refused.value.code == 12


@pytest.mark.parametrize("method", sorted({*METHODS} - {"Shutdown"}))
def test_payload_that_is_no_protobuf_is_refused(
    service: PluginService, handlers: Recorder, method: str
) -> None:
    """A payload that is not protobuf raises ProtocolError, and no handler is called."""
    with pytest.raises(ProtocolError, match="3 bytes are no"):
        answer(service, method, b"\x0a\x7fx")

    assert handlers.calls == []


@pytest.mark.parametrize("method", ["CreateContainer", "StartContainer"])
def test_name_that_is_not_utf8_is_refused(service: PluginService, method: str) -> None:
    """A name that is not UTF-8 raises ProtocolError."""
    wrong = pb.CreateContainerRequest(pod=pod("name")).SerializeToString().replace(b"name", b"n\xffme")

    with pytest.raises(ProtocolError, match="are no"):
        answer(service, method, wrong)


@given(st.sampled_from(METHODS), st.binary(max_size=200))
def test_any_payload_is_answered_or_refused(method: str, payload: bytes) -> None:
    """Any payload is answered or raises ProtocolError."""
    try:
        answered = answer(PluginService(Recorder(), WORKER_EVENTS), method, payload)
    except ProtocolError:
        return
    assert isinstance(answered, bytes)


def test_unknown_fields_are_ignored(service: PluginService, handlers: Recorder) -> None:
    """Fields that a newer runtime adds are ignored."""
    asked = pb.CreateContainerRequest(pod=pod("a"), container=container("c", "a")).SerializeToString()

    answer(service, "CreateContainer", asked + b"\xfa\x01\x03new")

    assert handlers.calls == [("create", "a", "c")]


def test_second_configure_resets_nothing(service: PluginService) -> None:
    """A second Configure does not undo the synchronization of the plugin."""
    answer(service, "Synchronize", b"")
    answer(service, "Configure", b"")

    assert service.stage is Stage.SYNCHRONIZED


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
