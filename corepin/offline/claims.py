"""Simulation of ResourceClaims on a planned node: the scheduler chooses a device, the agent assigns the CPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from corepin.errors import CommandFailed
from pinning.dra.claims import ClaimPart, DeviceClaim, SeenClaims
from pinning.dra.first_fit import first_fit
from pinning.dra.groups import slice_devices
from pinning.errors import BadQuantity
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.claim_grants import offer_of
from pinning.planning.node_sets import node_sets
from pinning.planning.plan import plan
from pinning.pods.quantity import parse_quantity, rounded_up
from pinning.pods.resources import MOST_CPUS
from pinning.truncate import VALUE, truncate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pinning.dra.first_fit import Allocated
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed
    from pinning.planning.refusal import Refusal

MOST_CLAIMS: Final = 1024  # limited, because the node is planned once more for each claim
OBSERVING: Final = (
    "corepin only observes this node and offers claims no devices: set observe to false in its configuration"
)


class PlannedClaim(NamedTuple):
    """A claim of one request, with its CPUs or the reason why it has none."""

    name: str
    asked: int
    device: str = ""
    cpus: CPUSet = EMPTY
    refused: str = ""

    def as_json(self, topology: Topology) -> dict[str, Any]:
        """Return the claim as a member of a JSON line."""
        if self.refused:
            return {"asked": self.asked, "refused": self.refused}
        nodes = _nodes(topology, self.cpus)
        return {"asked": self.asked, "device": self.device, "cpus": str(self.cpus), "numaNodes": nodes}

    def as_text(self, topology: Topology) -> str:
        """Return the claim as a line of text."""
        count, nodes = len(self.cpus), ", ".join(map(str, _nodes(topology, self.cpus)))
        more = "" if count == self.asked else f"; {self.asked} asked, and the scheduler counts whole cores"
        plural = "s" * (count > 1)
        return f"{self.name}: {count} CPU{plural} {self.cpus} of {self.device} on NUMA node {nodes}{more}"


def read_claims(flags: Sequence[str]) -> tuple[int, ...]:
    """Return the number of CPUs of each claim in the flags `--claim`; raise CommandFailed for an invalid one."""
    if len(flags) > MOST_CLAIMS:
        raise CommandFailed(f"--claim is given {len(flags)} times: give it at most {MOST_CLAIMS} times")
    return tuple(map(_amount, flags))


def _amount(flag: str) -> int:
    try:
        amount, count = parse_quantity(flag), rounded_up(flag)
    except BadQuantity:
        amount, count = parse_quantity(0), 0
    if amount <= 0 or count > MOST_CPUS:
        raise CommandFailed(
            f"--claim {truncate(flag, VALUE)!r}: is not a number of CPUs from 1 to {MOST_CPUS}: write for example --claim 12"
        )
    return count


def _nodes(topology: Topology, cpus: CPUSet) -> list[int]:
    return [number for number, its in topology.numa_nodes.items() if its & cpus]


class ClaimsOnNode(NamedTuple):
    """The claims planned so far on a node, with the ledger and the refusals after the last one."""

    claims: tuple[PlannedClaim, ...]
    ledger: Ledger
    refusals: tuple[Refusal, ...]


def plan_claims(
    seen: Observed, now: ClaimsOnNode, config: NodeConfig, amounts: Sequence[int]
) -> Iterator[ClaimsOnNode]:
    """Plan a claim for each number of CPUs in `amounts`, one after the other; yield the node after each."""
    read = frozenset((pod.namespace, name, pod.uid) for pod in seen.pods for name in pod.claim_names)
    sets = node_sets(seen.topology, seen.universe, config)
    known: dict[str, DeviceClaim] = {}
    for number, asked in enumerate(amounts, start=1):
        name = f"claim-{number}"
        found = OBSERVING if config.observe else _allocated(sets, now.ledger, asked)
        if isinstance(found, str):
            now = now._replace(claims=(*now.claims, PlannedClaim(name, asked, refused=found)))
            yield now
            continue
        part = ClaimPart("cpu", found.device, "", found.cpus)
        known[name] = DeviceClaim(name, "default", name, frozenset(), (part,), asked)
        planned = plan(replace(seen, claims=SeenClaims(known, read, frozenset(known))), now.ledger, config)
        grant, why = planned.ledger.claims.get(name), planned.waiting_claims.get(name, "")
        claim = PlannedClaim(name, asked, found.device, grant.footprint if grant else EMPTY, why)
        now = ClaimsOnNode((*now.claims, claim), planned.ledger, planned.refusals)
        yield now


def _allocated(sets: NodeSets, ledger: Ledger, asked: int) -> Allocated | str:
    """Return the scheduler's allocation of a claim, or why it has none."""
    consumed: Counter[str] = Counter()
    for grant in ledger.claims.values():
        for part in grant.claim.parts:
            consumed[part.device] += part.count
    return first_fit(slice_devices(offer_of(sets, ledger)), consumed, asked)
