"""The agent's own protobuf messages for CRI, compared with the published ones."""

from __future__ import annotations

import pytest
from cri_api.v1 import api_pb2

from agent.cri import listing_pb2

NAMES = {
    "VersionRequest": ("VersionRequest",),
    "VersionResponse": ("VersionResponse",),
    "Filter": ("ContainerFilter", "PodSandboxFilter"),
    "StateValue": ("ContainerStateValue",),
    "ListRequest": ("ListContainersRequest", "ListPodSandboxRequest"),
    "StatusRequest": ("ContainerStatusRequest", "PodSandboxStatusRequest"),
    "GetEventsRequest": ("GetEventsRequest",),
    "UpdateContainerResourcesRequest": ("UpdateContainerResourcesRequest",),
    "UpdateContainerResourcesResponse": ("UpdateContainerResourcesResponse",),
    "SandboxMetadata": ("PodSandboxMetadata",),
    "PodSandbox": ("PodSandbox",),
    "ContainerMetadata": ("ContainerMetadata",),
    "Container": ("Container",),
    "LinuxResources": ("LinuxContainerResources",),
    "Resources": ("ContainerResources",),
    "ContainerStatus": ("ContainerStatus",),
    "ContainerStatusResponse": ("ContainerStatusResponse",),
    "EventSandbox": ("PodSandboxStatus",),
    "ContainerEvent": ("ContainerEventResponse",),
}
RENAMED = {
    ("ContainerStatusRequest", "id"): "container_id",
    ("PodSandboxStatusRequest", "id"): "pod_sandbox_id",
}


def test_every_message_is_compared() -> None:
    """Each of the agent's messages is compared with a published one."""
    assert NAMES.keys() == set(listing_pb2.DESCRIPTOR.message_types_by_name)


@pytest.mark.parametrize(
    ("ours", "published"), [(ours, name) for ours, names in NAMES.items() for name in names]
)
def test_fields_are_those_of_cri(ours: str, published: str) -> None:
    """Each field has CRI's name, number, type and label."""
    theirs = api_pb2.DESCRIPTOR.message_types_by_name[published].fields_by_name
    for name, field in listing_pb2.DESCRIPTOR.message_types_by_name[ours].fields_by_name.items():
        same = theirs[RENAMED.get((published, name), name)]
        assert (field.number, field.type, field.is_repeated) == (same.number, same.type, same.is_repeated), (
            name
        )


@pytest.mark.parametrize(
    ("ours", "published"), [("SandboxState", "PodSandboxState"), ("ContainerState", "ContainerState")]
)
def test_states_are_those_of_cri(ours: str, published: str) -> None:
    """Each state has CRI's name and number."""
    own, theirs = (
        listing_pb2.DESCRIPTOR.enum_types_by_name[ours],
        api_pb2.DESCRIPTOR.enum_types_by_name[published],
    )
    assert {value.name: value.number for value in own.values} == {
        value.name: value.number for value in theirs.values
    }
