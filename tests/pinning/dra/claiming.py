"""ResourceClaims for tests, and a node whose pods name them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pinning.dra.claims import ClaimGrant, ClaimPart, DeviceClaim, SeenClaims
from pinning.planning.invariants import problems
from tests.pinning.world import Wish, World, pod_document

if TYPE_CHECKING:
    from pinning.planning.observed import Observed
    from pinning.planning.plan import Plan

PLAIN = Wish()
NODE = "node-1"
DEVICE = "cpudevnuma000"


def uid_of(name: str) -> str:
    """Return a uid as the API server gives them; each name has its own."""
    return f"00000000-0000-4000-8000-{name.encode().hex()[:12]:0>12}"


def claim(
    name: str, *counts: int, pods: tuple[str, ...] = ("a",), device: str = DEVICE, namespace: str = "test"
) -> DeviceClaim:
    """Return an allocated claim with a request r0, r1... for each count."""
    parts = tuple(ClaimPart(f"r{at}", device, "", count) for at, count in enumerate(counts))
    return DeviceClaim(uid_of(name), namespace, name, frozenset(pods), parts)


def document(*results: dict[str, Any], uid: str | None = None, **status: Any) -> dict[str, Any]:
    """Return a ResourceClaim as the API server has it."""
    reserved = [{"resource": "pods", "name": "pod-a", "uid": "a"}]
    return {
        "metadata": {"uid": uid or uid_of("x"), "namespace": "test", "name": "x"},
        "spec": {"devices": {"requests": []}},
        "status": {"allocation": {"devices": {"results": list(results)}}, "reservedFor": reserved, **status},
    }


def result(count: object = "4", **more: Any) -> dict[str, Any]:
    """Return one result of an allocation."""
    return {
        "request": "cpu",
        "driver": "cpu.corepin.io",
        "pool": NODE,
        "device": DEVICE,
        "shareID": "s-1",
        "consumedCapacity": {"dra.cpu/cpu": count},
        **more,
    }


def with_claim(document: dict[str, Any], *containers: str) -> dict[str, Any]:
    """Let containers of a pod name the claim `x`."""
    document["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "x"}]
    for container in document["spec"]["containers"]:
        if container["name"] in containers:
            container.setdefault("resources", {})["claims"] = [{"name": "x"}]
    return document


@dataclass
class ClaimWorld(World):
    """A node whose agent is a driver of claims."""

    known: dict[str, DeviceClaim] = field(default_factory=dict)  # of the API server, by uid
    prepared: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    found: tuple[ClaimGrant, ...] = ()
    unread: bool = False  # the claims of pods are not read yet
    drives: bool = True

    def observe(self) -> Observed:
        """Return the agent's observation."""
        observed = super().observe()
        names = {(pod.namespace, name, pod.uid) for pod in observed.pods for name in pod.claim_names}
        seen = SeenClaims(
            dict(self.known),
            frozenset(() if self.unread else names),
            frozenset(self.prepared),
            frozenset(self.released),
            self.found,
        )
        return replace(observed, claims=seen if self.drives else None)

    def plan(self) -> Plan:
        """Plan, and check that the ledger keeps all invariants."""
        planned = super().plan()
        assert not problems(self.ledger, self.sets)
        return planned

    def claims(self, *claims: DeviceClaim, prepared: bool = True) -> None:
        """Allocate claims, and let the kubelet ask for them."""
        for it in claims:
            self.known[it.uid] = it
            if prepared:
                self.prepared.add(it.uid)

    def user(self, uid: str, *names: str, request: str = "", wish: Wish = PLAIN, **more: Any) -> None:
        """Create a pod whose first container names claims."""
        self.clock += 1
        pod = pod_document(uid, [wish], created=self.clock, **more)
        pod["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in names]
        resources = pod["spec"]["containers"][0]["resources"]
        resources["claims"] = [{"name": name, **({"request": request} if request else {})} for name in names]
        self.documents[uid] = pod

    def unprepare(self, uid: str) -> None:
        """Let the kubelet give a claim back."""
        self.prepared.discard(uid)
        self.released.add(uid)

    def held(self, name: str) -> str:
        """Return the CPUs that the ledger holds for a claim."""
        grant = self.ledger.claims.get(uid_of(name))
        return str(grant.footprint) if grant else ""
