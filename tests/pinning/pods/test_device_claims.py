"""The ResourceClaims that a pod's containers name."""

from __future__ import annotations

from typing import Any

from pinning.contract import NoisePolicy, QuotaPolicy
from pinning.pods.claims import read_pod
from pinning.pods.device_claims import ClaimUse, NamedRequest, claim_names, claim_uses
from pinning.pods.resources import Role
from tests.pods import container, pod


def naming(*claims: dict[str, Any], annotations: dict[str, str] | None = None, **more: Any) -> Any:
    """Return a pod with a claim by name, one from a template, and a container that names some."""
    main: Any = container("main")
    main["resources"] = {"claims": list(claims)}
    listed = [
        {"name": "cpu-dra", "resourceClaimName": "vmi-1-cpu"},
        {"name": "made", "resourceClaimTemplateName": "t"},
        {"name": "later", "resourceClaimTemplateName": "t"},
    ]
    document: Any = pod(main, annotations=annotations, resourceClaims=listed, **more)
    document["status"] = {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "demo-made-x1"}]}
    return document


def test_claims_are_known_by_the_names_of_their_objects() -> None:
    """Claims are known by the names of their objects; one of a template has a name once it exists."""
    assert claim_names(naming()) == {"cpu-dra": "vmi-1-cpu", "made": "demo-made-x1"}
    assert claim_names(pod()) == {}


def test_container_names_claims_or_single_requests() -> None:
    """A claim that the pod does not have, or that is not made yet, is left out."""
    document = naming(
        {"name": "cpu-dra", "request": "cpu"}, {"name": "made"}, {"name": "later"}, {"name": "strange"}
    )
    requests = NamedRequest("vmi-1-cpu", "cpu"), NamedRequest("demo-made-x1")
    assert claim_uses(document, read_pod(document)) == (ClaimUse("main", Role.MAIN, requests),)


def test_container_without_claims_is_left_out() -> None:
    """The pod's claims are for containers that name them."""
    document = naming()
    assert claim_uses(document, read_pod(document)) == ()
    assert claim_uses(pod(), read_pod(pod())) == ()


def test_shared_cpus_and_quota_go_with_claims() -> None:
    """Shared CPUs and quota policy apply to claims too, except that virtual machines get no shared CPUs."""
    words = {"shared-cpus.corepin.io/pod": "true", "quota-policy.corepin.io/pod": "unset"}
    document = naming({"name": "made"}, annotations=words)
    [use] = claim_uses(document, read_pod(document))
    assert (use.shared_cpus, use.quota) == (True, QuotaPolicy.UNSET)
    guest = naming({"name": "made"}, annotations=words, runtimeClassName="kata")
    [use] = claim_uses(guest, read_pod(guest))
    assert not use.shared_cpus


def test_noise_policy_goes_with_claims_without_a_warning() -> None:
    """Noise, interrupt and quota policies apply to claims without a warning, since a claim may hold CPUs."""
    words = {
        "noise-policy.corepin.io/pod": "quiet",
        "irq-policy.corepin.io/pod": "devices",
        "quota-policy.corepin.io/pod": "keep",
    }
    document = naming({"name": "made"}, annotations=words)
    asked = read_pod(document)
    [use] = claim_uses(document, asked)
    assert (use.noise, use.irq, use.quota) == (NoisePolicy.QUIET, ("devices",), QuotaPolicy.KEEP)
    assert not asked.warnings
    assert len(read_pod(naming(annotations=words)).warnings) == 3


def test_claims_beyond_the_limit_are_not_read() -> None:
    """The API server allows many more than a pod can use."""
    document = naming(*[{"name": "made"}] * 100)
    document["spec"]["resourceClaims"] += [
        {"name": f"n{at}", "resourceClaimName": f"n{at}"} for at in range(100)
    ]
    [use] = claim_uses(document, read_pod(document))
    assert (len(use.requests), len(claim_names(document))) == (32, 31)


def test_claims_stay_beside_what_the_kubelet_has_allocated() -> None:
    """Claims are read although the kubelet reports allocated CPUs: KubeVirt repeats the claim's amount in limits."""
    document = naming({"name": "made"})
    amounts = {"cpu": "3"}
    document["spec"]["containers"][0]["resources"] |= {"limits": amounts, "requests": amounts}
    document["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": {"cpu": "2"}}]
    [use] = claim_uses(document, read_pod(document))
    assert use.requests == (NamedRequest("demo-made-x1"),)
