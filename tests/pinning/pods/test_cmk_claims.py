"""CMK's resources read into claims: whole cores, whatever stands beside them."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import CPUPolicy, SMTPolicy
from pinning.pods.claims import Claim, Origin, read_pod
from pinning.pods.resources import Role
from tests.pods import CORES, CPU_MANAGER, OTHER_CORES, SMT, container, fields, pod

MAIN = "cpu-manager.corepin.io/container.main"


@pytest.mark.parametrize(
    ("limits", "requests", "count", "resource"),
    [
        pytest.param({CORES: "2"}, {CORES: "2"}, 2, CORES, id="both"),
        pytest.param({CORES: "3"}, None, 3, CORES, id="limits only"),
        pytest.param({CORES: "2000m"}, {CORES: 2}, 2, CORES, id="other spelling"),
        pytest.param({OTHER_CORES: "1"}, {OTHER_CORES: "1"}, 1, OTHER_CORES, id="outside isolcpus"),
    ],
)
def test_a_cmk_resource_claims_whole_cores(limits: Any, requests: Any, count: int, resource: str) -> None:
    """The count of a CMK claim is physical cores, and CPU limits play no part."""
    pod_claims = read_pod(pod(container("main", limits, requests)))
    assert pod_claims.claims == (
        Claim("main", Role.MAIN, Origin.CMK, CPUPolicy.EXCLUSIVE, count, resource=resource),
    )
    assert (pod_claims.causes, pod_claims.warnings) == ((), ())


@pytest.mark.parametrize(
    ("limits", "requests", "field"),
    [
        pytest.param({CORES: "0"}, None, f"limits[{CORES}]", id="zero"),
        pytest.param({CORES: "-1"}, None, f"limits[{CORES}]", id="negative"),
        pytest.param({CORES: "1500m"}, None, f"limits[{CORES}]", id="fraction"),
        pytest.param({CORES: "two"}, None, f"limits[{CORES}]", id="no quantity"),
        pytest.param({CORES: "1"}, {CORES: "2"}, f"limits[{CORES}]", id="limit below request"),
        pytest.param({CORES: "2"}, {CORES: "0"}, f"requests[{CORES}]", id="request zero"),
    ],
)
def test_a_count_of_cores_that_is_none_is_refused(limits: Any, requests: Any, field: str) -> None:
    """A CMK resource is a whole number of 1 or more, and a limit is the request."""
    (cause,) = read_pod(pod(container("main", limits, requests))).causes
    assert cause.field == f"spec.containers[0].resources.{field}"


def test_beside_the_first_cmk_resource_the_second_does_not_count() -> None:
    """CMK's order decides (R6), and a warning says what is ignored."""
    pod_claims = read_pod(pod(container("main", {CORES: "1", OTHER_CORES: "2"})))
    assert [(claim.resource, claim.count) for claim in pod_claims.claims] == [(CORES, 1)]
    assert fields(pod_claims.warnings) == [f"spec.containers[0].resources.requests[{OTHER_CORES}]"]


@pytest.mark.parametrize(
    ("annotations", "cpu", "refused"),
    [
        pytest.param({CPU_MANAGER: "exclusive"}, "2", True, id="pod-wide and eligible"),
        pytest.param({MAIN: "exclusive"}, "500m", True, id="named"),
        pytest.param({MAIN: "share"}, "2", True, id="named share"),
        pytest.param({MAIN: "none"}, "2", False, id="none"),
    ],
)
def test_a_container_claims_once(annotations: dict[str, str], cpu: str, refused: bool) -> None:
    """A CMK resource and a CPU policy for the same container contradict each other."""
    pod_claims = read_pod(pod(container("main", {CORES: "1", "cpu": cpu}), annotations=annotations))
    assert bool(pod_claims.causes) is refused
    assert [claim.origin for claim in pod_claims.claims] == [Origin.CMK]


def test_a_pod_wide_policy_beside_a_cmk_container_is_for_the_others() -> None:
    """A CMK container that is not eligible is no contradiction, and no neighbour in the shared set."""
    document = pod(
        container("main", {CORES: "1"}), container("other", "2"), annotations={CPU_MANAGER: "exclusive"}
    )
    pod_claims = read_pod(document)
    assert [claim.origin for claim in pod_claims.claims] == [Origin.CMK, Origin.ANNOTATION]
    assert (pod_claims.causes, pod_claims.warnings) == ((), ())


def test_an_smt_policy_of_a_cmk_claim_acts() -> None:
    """`isolate` on a CMK claim idles siblings inside its own cores."""
    (claim,) = read_pod(pod(container("main", {CORES: "2"}), annotations={SMT: "isolate"})).claims
    assert (claim.origin, claim.smt, claim.must_fit) == (Origin.CMK, SMTPolicy.ISOLATE, True)
