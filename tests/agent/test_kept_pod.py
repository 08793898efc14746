"""The fields that the pod decoder keeps: everything that is read, and of limited size."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kept_pod import LONGEST_STATUS, LONGEST_VALUE, MOST_STRANGE, PodDecoder
from agent.report.extended_resources import RESOURCES as CORE_RESOURCES
from agent.report.extended_resources import node_resources
from pinning.contract import FAMILIES, STATUS_CPUS, UNTRUSTED, UNTRUSTED_WORKLOAD
from pinning.planning.ledger import Ledger
from pinning.planning.observed import SeenPod
from pinning.planning.requests import overcommit, requested, sidecars
from pinning.pods.crowd import MOST_CONTAINERS
from pinning.pods.identity import runtime_uid
from pinning.pods.resources import DEVICES, READ, members
from pinning.pods.types import Pod
from published.codec import AnotherVersion, decode
from published.pod_status import PodStatus
from tests.agent.fakes import FakeNode
from tests.agent.states import bound, state_of
from tests.pinning.world import Wish
from tests.pods import CORES, container, pod

ANNOTATION_BYTES = 2**18  # of all annotations of an object together: the API server's limit
AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", CORES, "corepin.io/isolated-cores", "example.com/gpu"]),
    st.sampled_from(["1", "2", "500m", "64M"]),
)
RESOURCES = st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS})
KEYS = [f"{family}/{scope}" for family in FAMILIES for scope in ("pod", "container.c0", "container.x", "y")]
NOTES = st.dictionaries(
    st.sampled_from(
        [
            *KEYS,
            "qos.gocrane.io/cpu-manager",
            "kubernetes.io/config.mirror",
            "kubernetes.io/config.hash",
            UNTRUSTED_WORKLOAD,
            "note",
        ]
    ),
    st.sampled_from(
        ["exclusive", "share", "none", "require", "isolate", "single", "bind", UNTRUSTED, "banana"]
    ),
    max_size=MOST_STRANGE,  # of more annotations that name no container only some are kept
)


def containers(first: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return a strategy for a few containers, with many fields that are not read."""
    fields = st.fixed_dictionaries(
        {"image": st.just("x"), "env": st.just([{"name": "A", "value": "b"}]), "resources": RESOURCES},
        optional={"restartPolicy": st.just("Always")},
    )
    return st.lists(fields, max_size=3).map(
        lambda some: [{"name": f"c{first + at}", **known} for at, known in enumerate(some)]
    )


PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p"), "namespace": st.just("n"), "uid": st.just("u"), "annotations": NOTES},
            optional={"labels": st.sampled_from([{"kubevirt.io": "virt-launcher"}, {"app": "x"}])},
        ),
        "spec": st.fixed_dictionaries(
            {"containers": containers(0), "initContainers": containers(10), "resources": RESOURCES},
            optional={"nodeSelector": st.sampled_from([{"cpumanager": "true"}, {"zone": "a"}])},
        ),
        "status": st.fixed_dictionaries(
            {
                "phase": st.sampled_from(["Pending", "Running", "Failed"]),
                "containerStatuses": st.lists(
                    st.fixed_dictionaries(
                        {
                            "name": st.sampled_from(["c0", "c1"]),
                            "image": st.just("x"),
                            "allocatedResources": AMOUNTS,
                        }
                    ),
                    max_size=2,
                ),
            }
        ),
    }
)


def kept(document: Any) -> Pod:
    """Return the decoded pod."""
    return PodDecoder().decode(msgspec.json.encode(document))


AMOUNTS_OF_ALL = sorted(READ)


def crowd_of(document: Any, length: int) -> Any:
    """Return the pod with its containers repeated to this number."""
    spec = dict(document["spec"])
    for kind in ("containers", "initContainers"):
        some = spec[kind] or [{"name": "x", "image": "x"}]
        spec[kind] = [{**some[at % len(some)], "name": f"{kind[0]}{at}"} for at in range(length)]
    return {**document, "spec": spec}


@given(PODS, st.sampled_from([0, 100, 101, 150]))
def test_requests_and_claims_of_a_decoded_pod_are_those_of_the_whole_pod(document: Any, length: int) -> None:
    """Requests, claims, refusals and load are the same, however many containers the pod has."""
    whole = crowd_of(document, length) if length else document
    part = kept(whole)
    for resource in AMOUNTS_OF_ALL:
        assert requested(members(part), resource) == requested(members(whole), resource)
    assert SeenPod.of(part) == SeenPod.of(whole)
    assert runtime_uid(part) == runtime_uid(whole)
    assert overcommit([part], Ledger(), 4) == overcommit([whole], Ledger(), 4)


@pytest.mark.parametrize("resource", CORE_RESOURCES)
def test_cores_that_a_crowded_pod_claims_stay_published(resource: str) -> None:
    """The cores that a large pod claims are published, so that a restarting kubelet does not evict it."""
    owners = [bound(f"o{at}", container("main", {CORES: 1})) for at in range(3)]
    crowd = bound("crowd", container("main", {resource: 3}), *[container(f"c{at}") for at in range(200)])
    numbers = [node_resources(state_of(*owners, last), [*owners, last]) for last in (crowd, kept(crowd))]
    assert numbers[0] == numbers[1]
    assert numbers[0]
    assert numbers[0][resource] >= 3 + (3 if resource == CORES else 0)


@given(PODS)
def test_decoded_pod_is_seen_as_the_whole_pod(document: Any) -> None:
    """Claims, their errors, load and sidecars of the decoded pod are those of the whole pod."""
    part = kept(document)
    seen = SeenPod.of(document)
    assert SeenPod.of(part) == seen
    assert runtime_uid(part) == runtime_uid(document)
    assert overcommit([part], Ledger(), 4) == overcommit([document], Ledger(), 4)
    assert sidecars([part], [seen], ("1", "64M")) == sidecars([document], [seen], ("1", "64M"))


def test_fields_that_are_not_read_are_not_kept() -> None:
    """Environment, labels, foreign annotations and resource names of any size are dropped; limits for devices are counted."""
    many = {f"example.com/n{number}": "1" for number in range(50)}
    annotated = {"cpu-manager.corepin.io/pod": "exclusive"}
    plain = pod(container("main", {"cpu": "2", "example.com/gpu": "1"}), annotations=annotated)
    full = pod(
        container("main", {"cpu": "2", **many}, args=["x"] * 50, env=[{"name": "A", "value": "x" * 99}]),
        annotations={**annotated, "note": "x" * 99, **many},
        labels=many,
        nodeSelector=many,
        volumes=[{"name": name.partition("/")[2], "emptyDir": {}} for name in many],
    )
    full["metadata"]["managedFields"] = [{"fieldsV1": many}]  # type: ignore[index, typeddict-unknown-key]
    assert plain["metadata"] is not None
    plain["metadata"]["labels"] = {}
    plain["spec"]["nodeSelector"] = {}  # type: ignore[index]

    expected: Any = kept(plain)
    expected["spec"]["containers"][0]["resources"]["limits"][DEVICES] = 50
    assert kept(full) == expected


def test_our_annotations_are_kept_up_to_a_limit() -> None:
    """Annotations of containers are all kept, others up to a limit, and long values are truncated."""
    ghosts = {f"cpu-manager.corepin.io/container.ghost{number}": "x" * 1000 for number in range(1000)}
    ghosts |= {f"cpu-quota.crio.io/ghost{number}": "disable" for number in range(1000)}
    words = ("cpu-quota.crio.io", "irq-load-balancing.crio.io")
    crio = {key: "disable" for word in words for key in (word, f"{word}/main")}
    last = {"cpu-manager.corepin.io/container.main": "exclusive", **crio, STATUS_CPUS: "{" + "x" * 1000}
    notes = (kept(pod(container("main", 1), annotations=ghosts | last))["metadata"] or {})[
        "annotations"
    ] or {}

    assert last.items() <= notes.items()
    assert [len(value) for key, value in notes.items() if key not in last] == [LONGEST_VALUE] * MOST_STRANGE


def test_truncated_value_is_refused_as_the_whole_one_is() -> None:
    """A value with characters that no policy has does not become a valid policy by truncation."""
    asked = {"cpu-manager.corepin.io/pod": "exclusive", "noise-policy.corepin.io/pod": "quiet"}
    values = ("eth1-rx-1, eth1-rx-2, ethé", "eth1-rx-1, " * 8 + "é", "eth1-rx-1" * 20, "é")
    documents = [
        pod(container("main", limits="2"), annotations={**asked, "irq-policy.corepin.io/pod": value})
        for value in values
    ]
    causes = [[cause.field for cause in SeenPod.of(kept(document)).causes] for document in documents]
    assert causes == [["metadata.annotations[irq-policy.corepin.io/pod]"]] * len(values)


def kept_status(status: str) -> str:
    """Return the kept status of a pod."""
    document = pod(container("main", 1), annotations={STATUS_CPUS: status})
    return (kept(document)["metadata"] or {})["annotations"][STATUS_CPUS]  # type: ignore[index]


def test_status_of_an_earlier_agent_keeps_other_characters() -> None:
    """A status with other characters than ASCII is kept up to LONGEST_STATUS, so that an upgrade keeps its times."""
    status = '{"version":1,"containers":{"main":{"cpus":"1","refusal":{"message":"yés"}}}}'
    status += " " * (LONGEST_STATUS - len(status))
    assert kept_status(status) == status
    assert decode(PodStatus, kept_status(status)).containers["main"].cpus == "1"


def test_status_of_another_author_does_not_become_valid_by_truncation() -> None:
    """A longer status with other characters than ASCII is truncated and stays invalid."""
    text = kept_status("{}" + " " * (LONGEST_STATUS - 2) + "é")
    assert len(text) < LONGEST_VALUE
    with pytest.raises(AnotherVersion):
        decode(PodStatus, text)


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param(
            {"annotations": {"cpu-manager.corepin.io/pod": "exclusive", STATUS_CPUS: "{}"}},
            id="by annotation",
        ),
        pytest.param(
            {"labels": {"kubevirt.io": "virt-launcher"}, "nodeSelector": {"cpumanager": "true"}},
            id="as a launcher",
        ),
        *[pytest.param({"first": {name: "1"}}, id=f"by {name}") for name in CORE_RESOURCES],
    ],
)
def test_pod_of_very_many_containers_is_refused(
    asking: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A pod of very many containers has no claims and one refusal, and keeps its status annotation."""
    resources = asking.pop("first", {"cpu": "1"})
    crowd = [
        container("first", resources, resources),
        *[container(f"c{at}", 1) for at in range(MOST_CONTAINERS)],
    ]
    part = kept(pod(*crowd, **asking))
    seen = SeenPod.of(part)

    assert (seen.claims, seen.start_order) == ((), ())
    message = f"at most {MOST_CONTAINERS} may be in a pod that asks for CPUs of its own: use several pods"
    assert [cause.message for cause in seen.causes] == [message]
    assert ((part["metadata"] or {}).get("annotations") or {}).get(STATUS_CPUS) == asking.get(
        "annotations", {}
    ).get(STATUS_CPUS)
    assert caplog.messages == ["pod has too many containers to be read"]


def test_plain_pod_of_very_many_containers_is_not_refused() -> None:
    """A plain pod above the limit of containers runs in the shared set without a refusal."""
    [most, more] = [
        pod(*[container(f"c{at}", 1) for at in range(MOST_CONTAINERS + extra)]) for extra in range(2)
    ]
    assert len(SeenPod.of(kept(most)).start_order) == MOST_CONTAINERS
    seen = SeenPod.of(kept(more))
    assert (seen.claims, seen.causes, seen.start_order) == ((), (), ())


def full_annotations(containers: Iterable[Any], start: str = "") -> dict[str, str]:
    """Return one annotation of each family for each container, whose values fill the API server's limit."""
    keys = [f"{family}/container.{container['name']}" for container in containers for family in FAMILIES]
    room = (ANNOTATION_BYTES - sum(map(len, keys))) // len(keys) - len(start.encode())
    return dict.fromkeys(keys, start + "x" * room)


def largest() -> Iterator[Any]:
    """Yield pods with the largest kept size that a user can cause."""
    resources = {"cpu": "1", "memory": "1Mi", CORES: "1"}
    full = [container(f"{number:0>60}", resources, resources) for number in range(MOST_CONTAINERS)]
    notes = full_annotations(full)
    yield pod(*full, annotations=notes)
    yield pod(*full[: MOST_CONTAINERS // 2], init=full[MOST_CONTAINERS // 2 :], annotations=notes)
    yield pod(*full, *[container(f"x{number}", resources) for number in range(4000)], annotations=notes)
    short = [container(f"{number:0>3}", resources, resources) for number in range(MOST_CONTAINERS)]
    for start in ("", "\N{GRINNING FACE}"):  # Python stores a string in the width of its widest character
        yield pod(*short, annotations=full_annotations(short, start))
        yield pod(*full, annotations={STATUS_CPUS: start + "x" * (ANNOTATION_BYTES - len(STATUS_CPUS) - 4)})
    yield pod(*full, annotations={STATUS_CPUS: "\N{GRINNING FACE}" + "x" * (LONGEST_STATUS - 1)})


@pytest.mark.parametrize("document", list(largest()))
def test_no_pod_takes_more_than_its_share(document: Any) -> None:
    """A decoded pod takes less than 900 kB, so that 160 of the largest fit the agent's limit."""
    body = msgspec.json.encode(document)
    decoder = PodDecoder()
    tracemalloc.start()
    try:
        part = decoder.decode(body)
        seen = SeenPod.of(part)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen.name == "demo"
    assert taken < 900_000


def test_pods_of_the_fake_node_have_the_fields_that_the_watch_keeps(node: FakeNode) -> None:
    """Pods of the fake node have only the fields that the agent's watch keeps.

    A test that reads another field would prove what no agent does. An edit in place is an edit of the API.
    """
    node.add("a", Wish("2", policy="exclusive"))
    document = node.documents["a"]
    document["spec"]["hostname"] = "not kept"
    shown = node.pods.pods()["a"]
    assert (shown, "hostname" in shown["spec"]) == (PodDecoder().decode(json.dumps(document).encode()), False)
    assert node.pods.pods()["a"] is shown
    document["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "3"
    assert node.pods.pods()["a"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "3"
