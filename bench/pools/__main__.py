"""Cost of pods with budgets compared with the same pods without: `python -m bench.pools`.

Each pod has a main container with a CPU, and two containers without claims. With a budget the two run in the pod's
pool, which is a second claim; without one they run in the shared set. So the first plan is also compared with that of
pods with two claims. CPU time is measured in turns, and each figure is the best of its repeats.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from time import process_time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from bench.allocate import machine
from bench.plan import done, fresh
from bench.sample import review
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import DEFAULT
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from pinning.planning.plan import plan
from pinning.pods.claims import read_pod
from pinning.pods.types import Pod
from webhook.config.mutations import BUILT_IN
from webhook.config.reload import Revision
from webhook.config.settings import NodeShape, Settings
from webhook.metrics import Metrics, ReviewMeter
from webhook.review import wire
from webhook.review.app import Decisions, ReviewEndpoint
from webhook.review.handler import Decider
from webhook.review.log import ReviewLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pinning.pods.types import ResourceList
    from webhook.review.response import Answer
    from webhook.review.wire import Request

PODS = 110
PASS_LIMIT, REVIEW_LIMIT = 1.2, 1.1
CONTAINERS: dict[str, ResourceList] = {"main": {"cpu": "1"}, "helper": {}, "log": {}}
OF_TWO_CLAIMS: dict[str, ResourceList] = {
    **CONTAINERS,
    "helper": {"cpu": "1"},
}  # the same number of claims as CONTAINERS with a budget
BUDGET: ResourceList = {"cpu": "2"}
ROUNDS = 40
SHAPE = NodeShape(name="node", cores=64, threads_per_core=2)  # lets the webhook count cores under `require`
RULES: dict[str, Callable[[Decisions, Request], Answer]] = {
    "mutate": lambda it, request: it.mutate(request),
    "validate": lambda it, request: it.validate(request),
}


def pod(
    number: int, *, has_budget: bool, containers: Mapping[str, ResourceList] = MappingProxyType(CONTAINERS)
) -> Pod:
    """Return a pod with these containers, by name with their limits."""
    document: Pod = {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "bench",
            "uid": f"uid-{number:04}",
            "creationTimestamp": f"2026-01-01T{number // 60:02}:{number % 60:02}:00Z",
            "annotations": {"cpu-manager.corepin.io/pod": "exclusive"},
        },
        "spec": {
            "containers": [
                {"name": name, "resources": {"limits": limits, "requests": limits}}
                for name, limits in containers.items()
            ],
            "resources": {"limits": BUDGET, "requests": BUDGET} if has_budget else None,
        },
    }
    return document


def cold(make: Callable[[int], Pod]) -> Observed:
    """Return a node on which every container runs on all CPUs."""
    topology = machine()
    pods = tuple(SeenPod.of(make(number)) for number in range(PODS))
    running = tuple(
        SeenContainer(f"{seen.uid}-{name}", Owner(seen.uid, name), State.RUNNING, topology.online)
        for seen in pods
        for name in CONTAINERS
    )
    return Observed(topology, topology.online, pods, running)


def passes(*, has_budget: bool) -> dict[str, Callable[[], object]]:
    """Return the plans to compare, by name."""
    start = cold(partial(pod, has_budget=has_budget))
    alike = start if has_budget else cold(partial(pod, has_budget=False, containers=OF_TWO_CLAIMS))
    first = plan(start, Ledger(), DEFAULT)
    settled = done(start, first)
    if plan(settled, first.ledger, DEFAULT).actions:
        raise RuntimeError("the node is not settled")
    uid = start.pods[7].uid
    ended = Observed(
        settled.topology,
        settled.universe,
        tuple(seen for seen in settled.pods if seen.uid != uid),
        tuple(seen for seen in settled.containers if seen.owner.pod_uid != uid),
    )
    return {
        "a plan in which nothing changes": lambda: plan(fresh(settled), first.ledger, DEFAULT),
        "a plan after a pod ended": lambda: plan(fresh(ended), first.ledger, DEFAULT),
        "the first plan": lambda: plan(fresh(start), Ledger(), DEFAULT),
        "the first plan of as many claims": lambda: plan(fresh(alike), Ledger(), DEFAULT),
        "read the pods of the API": lambda: [
            SeenPod.of(pod(at, has_budget=has_budget)) for at in range(PODS)
        ],
    }


def body(*, has_budget: bool, owns_cores: bool = False) -> bytes:
    """Return a review of a pod of usual size, with the default SMT policy or with `require`."""
    whole: dict[str, Any] = json.loads(review())
    reviewed = whole["request"]["object"]
    reviewed["metadata"]["annotations"]["cpu-manager.corepin.io/pod"] = "exclusive"
    if owns_cores:
        reviewed["metadata"]["annotations"]["smt-policy.corepin.io/pod"] = "require"
    for container, limits in zip(reviewed["spec"]["containers"], CONTAINERS.values(), strict=True):
        given = {**limits, "memory": "64Mi"} if limits else {}
        container["resources"] = {"limits": given, "requests": given}
    if has_budget:
        given = {**BUDGET, "memory": "1Gi"}
        reviewed["spec"]["resources"] = {"limits": given, "requests": given}
    return json.dumps(whole, separators=(",", ":")).encode()


def reviews(*, has_budget: bool) -> dict[str, Callable[[], object]]:
    """Return the reviews to compare, by name, from request body to answer."""
    text, text_of_cores = (body(has_budget=has_budget, owns_cores=it) for it in (False, True))
    decider = Decider(Settings(), BUILT_IN)
    counting = Decider(Settings(node_shapes=(SHAPE,)), BUILT_IN)
    document = msgspec.json.Decoder(Pod).decode(wire.decode(text).object)
    known = {
        f"{name} a pod like the last one": partial(endpoint(name, decider).review, text) for name in RULES
    }
    anew = {f"{name} a pod like no other": decided_anew(name, decider, text) for name in RULES}
    cores = {f"  {name} one with `require`": decided_anew(name, decider, text_of_cores) for name in RULES}
    counted = {f"  {name} and count its cores": decided_anew(name, counting, text_of_cores) for name in RULES}
    return {**known, **anew, "  of it: read the claims": lambda: read_pod(document), **cores, **counted}


def decided_anew(name: str, decider: Decider, text: bytes) -> Callable[[], object]:
    """Return a review with an empty cache, as for pods that differ."""
    reviewed = endpoint(name, decider)

    def act() -> object:
        for cache in (decider._mutated, decider._judged):  # noqa: SLF001 the caches that a review reads
            cache._kept.clear()  # noqa: SLF001
        return reviewed.review(text)

    return act


def endpoint(name: str, decider: Decider) -> ReviewEndpoint:
    """Return the endpoint of the webhook that decides by these rules."""
    revision: Revision[Decisions] = Revision(1, decider)
    meter = ReviewMeter(Metrics(), name)
    return ReviewEndpoint(name, RULES[name], lambda: revision, meter, ReviewLog(lambda _: None))


def best_of_both(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the best CPU time of both in milliseconds, measured in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    count = max(1, int(0.005 / max(_time(one, 1), 1e-6)))
    for _ in range(rounds):
        for act, found in zip((one, other), times, strict=True):
            found.append(_time(act, count))
    return min(times[0]) * 1e3, min(times[1]) * 1e3


def _time(act: Callable[[], object], count: int) -> float:
    start = process_time()
    for _ in range(count):
        act()
    return (process_time() - start) / count


def main() -> int:
    """Print the figures; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m bench.pools", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"repeats of each (default: {ROUNDS})")
    rounds = parser.parse_args().rounds
    limits = dict.fromkeys(
        ("a plan in which nothing changes", "the first plan of as many claims"), PASS_LIMIT
    )
    limits |= {name: REVIEW_LIMIT for name in reviews(has_budget=True) if not name.startswith(" ")}
    exceeded = False
    print(f"{PODS} pods with and without a budget, best CPU time of {rounds} rounds")
    print(f"{'':36}{'without':>12}{'with':>12}")
    plain, budgeted = (passes(has_budget=it) | reviews(has_budget=it) for it in (False, True))
    for name, act in plain.items():
        without, with_budgets = best_of_both(act, budgeted[name], rounds)
        ratio = with_budgets / without
        limit = limits.get(name)
        verdict = "" if limit is None else f"  limit {limit}: {'kept' if ratio <= limit else 'EXCEEDED'}"
        exceeded |= limit is not None and ratio > limit
        print(f"{name:36}{without:9.3f} ms{with_budgets:9.3f} ms{ratio:7.2f} x{verdict}", flush=True)
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
