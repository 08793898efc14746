"""Reading ResourceClaims: results of our driver on this node, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.dra.claims import (
    BadClaim,
    ClaimGrant,
    ClaimPart,
    DeviceClaim,
    claimed_by,
    device_name,
    is_uid,
    read_claim,
)
from pinning.machine.cpuset import CPUSet
from tests.pinning.dra.claiming import DEVICE, NODE, claim, document, result, uid_of


def test_claim_has_a_part_for_each_result_of_ours() -> None:
    """Another driver's result, and one of another node, are skipped; the consumed amount counts."""
    found = read_claim(
        document(result("11", request="cpu/larger"), result(driver="mem.example"), result(pool="node-2")),
        NODE,
    )
    assert found == DeviceClaim(
        uid_of("x"), "test", "x", frozenset("a"), (ClaimPart("cpu", DEVICE, "s-1", 11),)
    )
    assert (found.count, found.full_name) == (11, "test/x")


@pytest.mark.parametrize(
    "given",
    [
        document(),
        {"metadata": {"uid": uid_of("x")}},
        document(config=None) | {"status": {"allocation": None}},
    ],
    ids=["no result", "no status", "not allocated"],
)
def test_claim_without_results_of_ours_has_no_parts(given: dict[str, Any]) -> None:
    """A claim without results of our driver has nothing to prepare."""
    found = read_claim(given, NODE)
    assert isinstance(found, DeviceClaim)
    assert found.parts == ()


@pytest.mark.parametrize(
    ("results", "node"),
    [
        (
            (result(driver="mem.example", pool="node-3"), result(pool="node-2"), result(pool="node-4")),
            "node-2",
        ),
        ((result(driver="mem.example", pool="node-3"),), ""),
        ((result(pool=None),), ""),
        ((result(pool="n" * 300),), "n" * 250 + "..."),
    ],
    ids=["of ours", "of another driver", "no pool", "long"],
)
def test_claim_of_another_node_names_it(results: tuple[dict[str, Any], ...], node: str) -> None:
    """A claim with CPUs of another node alone has no parts, and the name of that node."""
    found = read_claim(document(*results), NODE)
    assert isinstance(found, DeviceClaim)
    assert (found.elsewhere, found.parts) == (node, ())


def test_allocation_of_as_many_results_as_the_api_allows_is_read() -> None:
    """Each of them is a part; one more is refused, because no API server has it."""
    results = [result(request=f"r{number}") for number in range(33)]
    found = read_claim(document(*results[:32]), NODE)
    assert isinstance(found, DeviceClaim)
    assert [part.request for part in found.parts] == [f"r{number}" for number in range(32)]
    assert isinstance(read_claim(document(*results), NODE), BadClaim)


CONFIG = [{"source": "FromClaim", "opaque": {"driver": "cpu.corepin.io", "parameters": {}}}]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "the ResourceClaim is not an object: None"),
        ([], "the ResourceClaim is not an object: []"),
        (document(result(consumedCapacity=None)), "has no consumedCapacity of dra.cpu/cpu: switch on"),
        (document(result("0")), "0 of dra.cpu/cpu was consumed: 1 to"),
        (document(result("-2")), "-2 of dra.cpu/cpu was consumed"),
        (document(result("10G")), "10G of dra.cpu/cpu was consumed"),
        (document(result(None)), "None of dra.cpu/cpu was consumed"),
        (document(result(["4"])), "['4'] of dra.cpu/cpu was consumed"),
        (document(result({"a": 1})), "{'a': 1} of dra.cpu/cpu was consumed"),
        (document(result("many")), "many of dra.cpu/cpu was consumed"),
        (document(*[result()] * 200), "status.allocation.devices.results is not a list of at most 32"),
        (document(result(adminAccess=True)), "adminAccess is not served for CPUs"),
        (document(result(), reservedFor="all"), "status.reservedFor is not a list of at most 256"),
        (document(result(device="../etc")), "the name of a device is '../etc'"),
        (document(result(), uid="../x"), "metadata.uid is '../x'"),
        (document("cpu"), "an item of status.allocation.devices.results is not an object: 'cpu'"),  # type: ignore[arg-type]
        (
            document(allocation={"devices": {"results": [result()], "config": CONFIG}}),
            "driver cpu.corepin.io has no parameters: remove them",
        ),
    ],
)
def test_claim_that_cannot_be_served_says_why(given: object, text: str) -> None:
    """Value, expectation and remedy are in the text that the kubelet shows."""
    found = read_claim(given, NODE)
    assert isinstance(found, BadClaim)
    assert text in found.message


@pytest.mark.parametrize("key", ["extended-resource-claim", "extended-resource-name"])
def test_claim_for_an_extended_resource_is_refused_with_a_remedy(key: str) -> None:
    """A claim for an extended resource is refused, since it does not name its containers."""
    given = document(result())
    given["metadata"]["annotations"] = {f"resource.kubernetes.io/{key}": "true"}
    found = read_claim(given, NODE)
    assert isinstance(found, BadClaim)
    assert "name a ResourceClaim of class cpu.corepin.io in the pod instead" in found.message
    given["metadata"]["annotations"] = {"team": "a"}
    assert isinstance(read_claim(given, NODE), DeviceClaim)


def test_parameters_of_other_drivers_are_theirs() -> None:
    """Parameters for other drivers in a claim are ignored."""
    config = [{"opaque": {"driver": "gpu.example"}}, {}]
    given = document(allocation={"devices": {"results": [result()], "config": config}})
    assert isinstance(read_claim(given, NODE), DeviceClaim)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(_JSON, st.sampled_from(["metadata", "status", "allocation", "devices", "results", "config", "result"]))
def test_any_document_is_read_or_refused(value: Any, at: str) -> None:
    """Any document is read or refused, without an exception."""
    whole = document(result(), result())
    devices = whole["status"]["allocation"]["devices"]
    match at:
        case "metadata" | "status":
            whole[at] = value
        case "allocation":
            whole["status"][at] = value
        case "devices":
            whole["status"]["allocation"][at] = value
        case "result":
            devices["results"][0] = value
        case _:
            devices[at] = value
    assert isinstance(read_claim(whole, NODE), DeviceClaim | BadClaim)


def test_cdi_device_names_claim_and_request() -> None:
    """CDI devices of other vendors name no claim."""
    uid = uid_of("x")
    assert claimed_by(f"corepin.io/cpu={device_name(uid, 'cpu')}") == (uid, "cpu")
    for other in ("nvidia.com/gpu=0", "corepin.io/cpu=claim-x-cpu", f"corepin.io/cpu=claim-{uid}-"):
        assert claimed_by(other) is None


def test_uid_is_one_of_the_api_server() -> None:
    """A uid that is not the API server's is refused, because it becomes a file name."""
    assert is_uid(uid_of("x"))
    assert not is_uid("../" + uid_of("x"))


def test_grant_knows_its_requests() -> None:
    """A container that names one request gets the CPUs of that one."""
    grant = ClaimGrant(claim("x", 2, 1), (CPUSet([1, 5]), CPUSet([2])))
    assert [str(grant.of(request)) for request in ("", "r0", "r1", "r2")] == ["1-2,5", "1,5", "2", ""]
    assert grant.flaw == ""
    assert "no CPUs" in ClaimGrant(claim("x", 2), ()).flaw
    assert "the same CPUs" in ClaimGrant(claim("x", 1, 1), (CPUSet([1]), CPUSet([1]))).flaw


def requested(name: str, amount: object, **more: Any) -> dict[str, Any]:
    """Return a request of a claim's spec."""
    return {"name": name, "exactly": {"capacity": {"requests": {"dra.cpu/cpu": amount}}}, **more}


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"devices": {"requests": [requested("cpu", "11")]}}, 11),
        ({"devices": {"requests": [requested("cpu", 11)]}}, 11),
        ({"devices": {"requests": [requested("cpu", "10500m")]}}, 11),
        ({"devices": {"requests": [requested("other", "11")]}}, None),
        ({"devices": {"requests": [requested("cpu", "many")]}}, None),
        ({"devices": {"requests": [requested("cpu", None)]}}, None),
        ({"devices": {"requests": [requested("cpu", "10G")]}}, None),
        ({"devices": {"requests": [{"name": "cpu", "exactly": {"capacity": []}}, 3]}}, None),
        ({"devices": {"requests": [{"name": "cpu", "exactly": []}]}}, None),
        ({"devices": {"requests": {}}}, None),
        ({"devices": []}, None),
        ([], None),
        (None, None),
    ],
)
def test_number_that_was_asked_for_is_read_where_it_can_be(spec: object, asked: int | None) -> None:
    """The requested number is only shown: a claim is served whatever its spec says."""
    found = read_claim({**document(result("12")), "spec": spec}, NODE)
    assert isinstance(found, DeviceClaim)
    assert (found.asked, found.count) == (asked, 12)


def test_alternative_of_a_request_has_its_own_number() -> None:
    """The result names request and alternative."""
    capacity = {"capacity": {"requests": {"dra.cpu/cpu": "3"}}}
    request = {"name": "cpu", "firstAvailable": [{"name": "big"}, {"name": "small", **capacity}, 3]}
    given = document(result("4", request="cpu/small"))
    found = read_claim({**given, "spec": {"devices": {"requests": [request]}}}, NODE)
    assert isinstance(found, DeviceClaim)
    assert found.asked == 3
