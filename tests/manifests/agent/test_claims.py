"""The components `dra` and `claim-limits` on API servers: rights on ResourceSlices, and limits of claims."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agent.report.resource_slices import SLICES, SliceReport, slice_name
from pinning.contract import DRA_CAPACITY
from pinning.dra.groups import request_policy
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.environments.server.catalog import NEWEST
from tests.manifests.installed import HERE_NODE, PATIENCE_SECONDS, THERE_NODE, Caller, Installed
from tests.manifests.rendered import objects
from tests.pods import container

pytestmark = pytest.mark.server
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/demo/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/demo/resourceclaimtemplates"
PROTECTION = "resource.kubernetes.io/delete-protection"  # finalizer of Kubernetes' own controllers
NAMES = {"corepin-agent-claims", "corepin-claim-limits", "cpu.corepin.io"}


@pytest.fixture(scope="module")
def claims(installed: Installed) -> Iterator[Installed]:
    """Return an API server with both components, once their policies are in effect."""
    is_new = installed.api.version == NEWEST
    listed = [
        it
        for name in ("dra", "claim-limits")
        for it in objects(name)
        if it["metadata"]["name"] in NAMES and (is_new or it["kind"] != "DeviceClass")
    ]
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": listed})
    earlier = {**claim(request("65")), "metadata": {"name": "earlier", "finalizers": [PROTECTION]}}
    if is_new:
        assert installed.admin.send("POST", CLAIMS, earlier).status_code == 201
    installed.api.kubectl("apply", "-f", "-", input=document)
    if is_new:
        _until(lambda: "token's node" in write(installed.agent, nodeName=THERE_NODE).text)
        _until(lambda: "at most 64 CPUs" in ask(installed.admin, "65").text)
    yield installed
    installed.api.kubectl("delete", "-f", "-", input=document)
    if is_new:
        installed.admin.send("DELETE", f"{CLAIMS}/earlier")


@pytest.fixture
def slices(claims: Installed) -> Installed:
    """Return the API server; skip the test if it has no resource.k8s.io/v1."""
    if claims.api.version != NEWEST:
        pytest.skip("Kubernetes 1.30 has no resource.k8s.io/v1")
    return claims


def _until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline, "the policy does not act"


def document(devices: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a slice as an agent writes it."""
    pool = {"name": HERE_NODE, "generation": 1, "resourceSliceCount": 1}
    content = {"driver": "cpu.corepin.io", "nodeName": HERE_NODE, "pool": pool, "devices": devices or []}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "probe"},
        "spec": {**content, **spec},
    }


def write(caller: Caller, devices: list[dict[str, Any]] | None = None, **spec: Any) -> Any:
    """Create a slice as a dry run."""
    return caller.send("POST", f"{SLICES}?dryRun=All", document(devices, **spec))


def request(amount: str | None, device_class: str = "cpu.corepin.io", **more: Any) -> dict[str, Any]:
    """Return a claim with one request for an amount."""
    asked: dict[str, Any] = {"deviceClassName": device_class, **more}
    return asked if amount is None else {**asked, "capacity": {"requests": {DRA_CAPACITY: amount}}}


def ask(caller: Caller, *amounts: str | None, path: str = CLAIMS, requests: Any = None, **more: Any) -> Any:
    """Create a claim or a template as a dry run."""
    listed = requests or [
        {"name": f"r{at}", "exactly": request(amount, **more)} for at, amount in enumerate(amounts)
    ]
    spec: dict[str, Any] = {"devices": {"requests": listed}}
    body: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim" if path == CLAIMS else "ResourceClaimTemplate",
        "metadata": {"name": "probe", "namespace": "demo"},
        "spec": spec if path == CLAIMS else {"spec": spec},
    }
    return caller.send("POST", f"{path}?dryRun=All", body)


def claim(*exactly: dict[str, Any]) -> dict[str, Any]:
    """Return a claim with these requests."""
    requests = [{"name": f"r{at}", "exactly": asked} for at, asked in enumerate(exactly)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "spec": {"devices": {"requests": requests}},
    }


def reporting(installed: Installed, use: Callable[[SliceReport], Awaitable[None]]) -> None:
    """Run a coroutine with a SliceReport that has the rights of HERE_NODE's agent."""

    async def run() -> None:
        api = installed.agent_api()
        report = SliceReport(api, HERE_NODE, interval_seconds=0)
        try:
            async with asyncio.timeout(60):
                await use(report)
        finally:
            await report.reset() if installed.api.version == NEWEST else None
            await api.close()

    asyncio.run(run())


def test_agent_keeps_its_slice_and_removes_it(slices: Installed) -> None:
    """The agent writes its ResourceSlice once, updates it with the ledger, restores it, and a reset deletes it."""
    path = f"{SLICES}/{slice_name(HERE_NODE)}"

    def shown() -> Any:
        answer = slices.admin.send("GET", path)
        return answer.json()["spec"] if answer.is_success else {"devices": []}

    async def total(cpus: int) -> None:
        while sum(int(it["capacity"][DRA_CAPACITY]["value"]) for it in shown()["devices"]) != cpus:
            await asyncio.sleep(0.05)

    async def counted(report: SliceReport, writes: int) -> None:
        while report.writes < writes:  # the slice is visible before its writer has the response
            await asyncio.sleep(0.01)

    async def use(report: SliceReport) -> None:
        state = state_of()
        await report.publish(state)
        await total(6)
        await counted(report, 1)
        before = report.writes
        await report.publish(state)
        pod = bound("a", container("main", 2), annotations=EXCLUSIVE)
        await report.publish(state_of(pod))
        await total(4)
        await counted(report, before + 1)
        assert report.writes == before + 1
        assert slices.admin.send("DELETE", path).is_success
        await total(4)

    reporting(slices, use)
    assert slices.admin.send("GET", path).status_code == 404


def test_second_driver_takes_the_slice_away(slices: Installed) -> None:
    """The agent withdraws its slice while a second driver offers the same CPUs, and publishes it again afterwards."""
    path = f"{SLICES}/{slice_name(HERE_NODE)}"
    other = document(
        [
            {
                "name": "cpudevnuma000",
                "allowMultipleAllocations": True,
                "capacity": {DRA_CAPACITY: {"value": "8"}},
            }
        ],
        driver="dra.cpu",
    )

    async def until(code: int) -> None:
        while slices.admin.send("GET", path).status_code != code:
            await asyncio.sleep(0.05)

    async def use(report: SliceReport) -> None:
        await report.publish(state_of())
        await until(200)
        assert slices.admin.send("POST", SLICES, other).is_success
        await until(404)
        refused = slices.agent.send("DELETE", f"{SLICES}/probe")
        assert "only slices of driver cpu.corepin.io" in refused.text
        assert slices.admin.send("DELETE", f"{SLICES}/probe").is_success
        await until(200)

    reporting(slices, use)


def test_old_api_server_is_one_line_of_the_log(claims: Installed, caplog: pytest.LogCaptureFixture) -> None:
    """If the API server has no ResourceSlices, the agent logs one line and publishes no slice."""
    if claims.api.version == NEWEST:
        pytest.skip("it has resource.k8s.io/v1")

    async def use(report: SliceReport) -> None:
        for _ in range(3):
            await report.publish(state_of())
        await report.reset()

    reporting(claims, use)
    (line,) = [it for it in caplog.records if it.message == "no CPUs published for claims"]
    assert "claims need Kubernetes 1.36" in line.facts["reason"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, ""),
        ({"nodeName": THERE_NODE}, "token's node"),
        ({"driver": "gpu.example"}, "driver cpu.corepin.io"),
        ({"pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}, "pool of its node"),
        ({"nodeName": None, "allNodes": True}, "token's node"),
    ],
    ids=["as it is meant", "another node", "another driver", "another pool", "all nodes"],
)
def test_what_an_agent_may_create(slices: Installed, spec: dict[str, Any], why: str) -> None:
    """An agent may create slices of its own driver on its own node only."""
    answer = write(slices.agent, **spec)
    assert answer.is_success is not bool(why), answer.text
    assert why in answer.text


@pytest.mark.parametrize(
    "metadata", [{"finalizers": ["x.example/y"]}, {"labels": {"a": "b"}}, {"annotations": {"a": "b"}}]
)
def test_a_slice_holds_nothing_that_others_act_on(slices: Installed, metadata: dict[str, Any]) -> None:
    """An agent may add no finalizers, labels or annotations to its slice; it may keep and drop those of others."""
    why = "a slice may get no labels, annotations or finalizers"
    made = document()
    made["metadata"] |= metadata
    answer = slices.agent.send("POST", f"{SLICES}?dryRun=All", made)
    assert (answer.status_code, why in answer.text) == (403, True)
    path = f"{SLICES}/probe"
    assert slices.admin.send("POST", SLICES, document()).is_success
    try:
        there = slices.admin.send("GET", path).json()
        there["metadata"] |= metadata
        answer = slices.agent.send("PUT", path, there)
        assert (answer.status_code, why in answer.text) == (403, True)
        assert slices.admin.send("PUT", path, there).is_success
        there = slices.admin.send("GET", path).json()
        there["spec"]["pool"]["generation"] = 2
        assert slices.agent.send("PUT", f"{path}?dryRun=All", there).is_success
        plain = document()
        plain["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"]
        answer = slices.agent.send("PUT", path, plain)
        assert answer.is_success, answer.text
    finally:
        slices.admin.send("DELETE", path)


def test_other_accounts_write_no_slices(slices: Installed) -> None:
    """A token without a node, and accounts without the right, may write no slices."""
    for caller in (slices.unbound_agent, slices.other_agent, slices.webhook, slices.anybody):
        assert write(caller).status_code == 403
    assert slices.agent.send("GET", CLAIMS).status_code == 403


def test_slices_of_every_size_are_accepted(slices: Installed) -> None:
    """Slices of every size, from one core to 512 CPUs, are accepted."""
    for step in (1, 2, 4, 8):
        values = range(step, 513, step)
        for start in range(0, len(values), 128):
            devices = [
                {
                    "name": f"d{value}",
                    "allowMultipleAllocations": True,
                    "capacity": {
                        DRA_CAPACITY: {"value": str(value), "requestPolicy": request_policy(value, step)}
                    },
                }
                for value in values[start : start + 128]
            ]
            answer = write(slices.agent, devices)
            assert answer.is_success, answer.text
            assert answer.json()["spec"]["devices"] == devices


@pytest.mark.parametrize("path", [CLAIMS, TEMPLATES])
@pytest.mark.parametrize(
    ("amounts", "more", "why"),
    [
        (("64",), {}, ""),
        (("1500m", "62"), {"device_class": "dra.cpu"}, ""),
        (("65",), {}, "at most 64 CPUs"),
        (("33", "32"), {}, "at most 64 CPUs"),
        (("33",), {"count": 2}, "at most 64 CPUs"),
        ((None,), {}, "needs capacity.requests"),
        (("0",), {}, "needs capacity.requests"),
        (("-2",), {}, "needs capacity.requests"),
        (("1",), {"allocationMode": "All"}, "needs capacity.requests"),
        ((None,), {"device_class": "gpu.example"}, ""),
        (("10G",), {}, "at most 64 CPUs"),
    ],
)
def test_what_a_claim_may_ask_for(
    slices: Installed, path: str, amounts: tuple[str | None, ...], more: dict[str, Any], why: str
) -> None:
    """A claim may request 1 to 64 CPUs in total; claims of other device classes are not limited."""
    answer = ask(slices.admin, *amounts, path=path, **more)
    assert answer.is_success is not bool(why), answer.text
    assert why in answer.text


def test_claims_that_are_older_than_the_limit_can_end(slices: Installed) -> None:
    """The finalizer of a claim above the limit can be removed; its requests are immutable."""
    path = f"{CLAIMS}/earlier"
    there = slices.admin.send("GET", path).json()
    there["metadata"]["finalizers"] = []
    assert slices.admin.send("PUT", path, there).status_code == 200
    there = slices.admin.send("GET", path).json()
    there["spec"] = claim(request("66"))["spec"]
    answer = slices.admin.send("PUT", path, there)
    assert (answer.status_code, "field is immutable" in answer.text) == (422, True)


def test_alternatives_count_by_the_largest(slices: Installed) -> None:
    """The largest alternative of a request counts, because the scheduler takes any alternative that fits."""
    for largest, why in (("64", ""), ("65", "at most 64 CPUs")):
        alternatives = [{"name": f"a{n}", **request(n)} for n in ("2", largest)]
        answer = ask(slices.admin, requests=[{"name": "r", "firstAvailable": alternatives}])
        assert answer.is_success is not bool(why), answer.text
        assert why in answer.text
