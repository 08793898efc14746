"""A limit that states no request is the request too, as on an API server, and documents keep their own amounts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from corepin.cli import main
from corepin.documents import Document, Item
from corepin.offline.defaults import with_requests
from corepin.offline.review import inject, judge
from pinning.contract import ISOLATED_CORES, NEAR_CPUS, NUMA_CPUS, WHOLE_CORES
from tests.corepin.documents import verdicts, written
from tests.pods import CORES, CPU_MANAGER, NUMA, SMT, container, pod
from tests.tables import table
from webhook.config.mutations import BUILT_IN, load_mutations
from webhook.config.settings import Settings, load_settings
from webhook.review.handler import Decider
from webhook.rules.workloads import TEMPLATES, below

if TYPE_CHECKING:
    from pathlib import Path

NODES = b"{nodeShapes: [{name: it, cores: 16, threadsPerCore: 2}], numaCPUs: true, nearCPUs: true}"
NEAR_GPU = f"{NEAR_CPUS}nvidia.com.gpu"
FOUR: dict[str, Any] = {"cpu": "4", "memory": "1Gi"}
GPU = {**FOUR, "nvidia.com/gpu": "1"}
ISOLATE = {SMT: "isolate"}
SINGLE = {CPU_MANAGER: "exclusive", NUMA: "single"}
BESIDE = {CPU_MANAGER: "exclusive", "device-policy.corepin.io/pod": "require"}
COUNTED: dict[str, Any] = {
    "isolated cores": (FOUR, ISOLATED_CORES, ISOLATE),
    "whole cores": (FOUR, WHOLE_CORES, {SMT: "require"}),
    "CPUs of one NUMA node": (FOUR, NUMA_CPUS, SINGLE),
    "CPUs near devices": (GPU, NEAR_GPU, BESIDE),
}


def decider(settings: bytes = NODES, mutations: bytes | None = None) -> Decider:
    """Return the webhook's rules with this configuration."""
    return Decider(load_settings(settings), load_mutations(mutations) if mutations else BUILT_IN)


def item(content: Any, path: tuple[str, ...] = (), kind: str = "Pod", group: str = "") -> Item:
    """Return a document with a pod at a path of keys."""
    for key in reversed(path):
        content = {key: content}
    version = f"{group}/v1" if group else "v1"
    content = {"apiVersion": version, "kind": kind, "metadata": {"name": "it"}, **content}
    return Item(Document("it.yaml", 1, content), "", content, version, kind, content["metadata"])


def resources_of(document: Any) -> list[Any]:
    """Return the resources of all containers of a pod, init containers first."""
    spec = document["spec"]
    return [it.get("resources") for it in (*spec.get("initContainers", ()), *spec["containers"])]


def placed(kind: str, amounts: dict[str, Any], requests: dict[str, Any] | None, words: Any) -> Any:
    """Return a pod whose main, init or sidecar container has these amounts."""
    more = {"restartPolicy": "Always"} if kind == "sidecar" else {}
    it, other = container("it", amounts, requests, **more), container("other", {"cpu": "1", "memory": "1Gi"})
    return pod(it, annotations=words) if kind == "main" else pod(other, init=[it], annotations=words)


@pytest.mark.parametrize("kind", ["main", "init", "sidecar"])
@pytest.mark.parametrize("number", ["-9", "0", "7", "9000"])
@table("amounts, resource, words", COUNTED)
def test_a_wrong_count_is_refused_with_and_without_its_request(
    amounts: dict[str, Any], resource: str, words: dict[str, str], number: str, kind: str
) -> None:
    """A limit alone gets the verdict and the causes of a pod that also states the request."""
    limits = {**amounts, resource: number}
    alone, both = (judge(decider(), item(placed(kind, limits, its, words))) for its in (None, limits))
    assert alone == both
    assert not alone.allowed
    [cause] = (it for it in alone.causes if f"[{resource}]" in it["field"])
    assert f"corepin: {number} differs from the " in cause["message"]


@table("amounts, resource, words", COUNTED)
def test_a_right_count_is_valid_with_and_without_its_request(
    amounts: dict[str, Any], resource: str, words: dict[str, str]
) -> None:
    """The count that corepin would write may stand as a limit alone, and nothing is written beside it."""
    added = inject(decider(), item(pod(container("it", amounts), annotations=words))).content
    limits = resources_of(added)[0]["limits"]
    assert resource in limits
    document = item(pod(container("it", limits), annotations=words))
    assert judge(decider(), document).allowed
    assert resources_of(inject(decider(), document).content) == [{"limits": limits}]


@pytest.mark.parametrize("number", ["-9", "4", "7"])
@pytest.mark.parametrize(("group", "kind"), [("", "Pod"), *TEMPLATES])
@table("amounts, resource, words", COUNTED)
def test_no_request_is_written_that_differs_from_its_limit(
    amounts: dict[str, Any], resource: str, words: dict[str, str], group: str, kind: str, number: str
) -> None:
    """Beside a limit of the user's no request is written, which the API server would refuse if it differed."""
    path = TEMPLATES.get((group, kind), ())
    document = pod(container("it", {**amounts, resource: number}), annotations=words)
    completed = below(inject(decider(), item(document, path, kind, group)).content, path)
    [found] = resources_of(completed)
    assert found["limits"] == {**amounts, resource: number} | found.get("requests", {})
    assert resource not in found.get("requests", {})


def test_the_mutations_files_requests_stand_beside_no_limit() -> None:
    """A request in a mutations file is for containers that have none, and a limit is a request on the API server."""
    mutations = b"mutations: {perContainer: {resources: {requests: {cpu: 100m, memory: 8Mi}}}}"
    document = item(pod(container("it", {CORES: "1", "cpu": "4"}), container("bare")))
    limited, bare = resources_of(inject(decider(b"", mutations), document).content)
    assert limited == {"limits": {CORES: "1", "cpu": "4"}, "requests": {"memory": "8Mi"}}
    assert bare == {"requests": {"cpu": "100m", "memory": "8Mi"}}


@pytest.mark.parametrize("init", [[], [container("first", {ISOLATED_CORES: "0"})]], ids=["none", "one"])
def test_only_corepins_own_requests_are_written(init: list[Any]) -> None:
    """Containers keep the amounts that the user wrote, also behind the gate, which moves them by one place."""
    settings = b"{gate: true, gateImage: 'registry.example/corepin:1'}"
    listed: list[Any] = [
        container("plain", FOUR),
        container("none", {"cpu": "1"}, {}),
        {"name": "some", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "1Gi"}}},
        container("bare"),
    ]
    document: Any = pod(
        *listed, init=copy.deepcopy(init), annotations={"smt-policy.corepin.io/container.plain": "require"}
    )
    before = copy.deepcopy(document)

    completed: Any = inject(decider(settings), item(document)).content

    assert document == before
    gate, *others = completed["spec"]["initContainers"]
    assert gate["name"] == "corepin-gate"
    assert others == init
    assert resources_of(completed)[1:] == resources_of(before)
    assert list(completed["spec"]["containers"][2]["resources"]) == ["requests", "limits"]


def test_the_api_server_completes_an_injected_pod() -> None:
    """An injected pod, read as the API server stores it, is one that the webhook would not change."""
    limits = {**FOUR, ISOLATED_CORES: "7"}
    document = pod(container("it", limits), container("other", "1", {"memory": "1Gi"}), annotations=ISOLATE)
    stored: Any = with_requests(inject(decider(), item(document)).content)
    assert resources_of(stored) == [
        {"limits": limits, "requests": limits},
        {
            "limits": {"cpu": "1", ISOLATED_CORES: "1"},
            "requests": {"cpu": "1", "memory": "1Gi", ISOLATED_CORES: "1"},
        },
    ]
    assert inject(decider(), item(stored)).content == item(stored).content


@table(
    "amount, field, problem",
    {
        "true": ("true", "limits[cpu]", "expected an amount, found true or false"),
        "a list": ("[2]", "limits", "expected an amount, found a list"),
        "nothing": ("null", "limits[cpu]", "expected an amount, found nothing"),
    },
)
def test_a_limit_of_the_wrong_type_is_reported_where_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], amount: str, field: str, problem: str
) -> None:
    """An error names the limit, although its container's requests come first."""
    text = "{apiVersion: v1, kind: Pod, metadata: {name: it}, spec: {containers: [{name: a, resources: "
    text += f"{{requests: {{memory: 1Gi}}, limits: {{cpu: {amount}}}}}}}]}}}}\n"
    for verb in ("validate", "inject"):
        assert main([verb, "-f", written(tmp_path, text)]) == 2
        error = capsys.readouterr().err
        assert f"spec.containers[0].resources.{field}" in error
        assert problem in error


def test_an_amount_that_is_no_quantity_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that cannot be read is no request: only the limit is refused."""
    text = "{apiVersion: v1, kind: Pod, metadata: {name: it}, spec: {containers: [{name: a, resources: "
    code, [found] = verdicts(capsys, "-f", written(tmp_path, text + "{limits: {cpu: many}}}]}}\n"))
    causes: Any = found["causes"]
    assert code == 1
    assert [cause["field"] for cause in causes] == ["spec.containers[0].resources.limits[cpu]"]


@pytest.mark.parametrize("spec", [None, {}, {"containers": None}, {"containers": []}])
def test_a_pod_without_containers_has_no_requests(spec: Any) -> None:
    """Documents without containers are read as they are."""
    document = {"metadata": {"name": "it"}, "spec": spec}
    assert with_requests(document) == document
    assert inject(Decider(Settings(), BUILT_IN), item(document)).content["spec"] == spec
