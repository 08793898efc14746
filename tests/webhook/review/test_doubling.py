"""No review costs more than its size: whatever doubles in an object, its review takes twice the work and not four times.

Two measures: CPU time of the thread, and the characters of all texts that functions of ours hold when they end, which
sees what `split` or `join` are given. Each input is doubled alone, beside each other one, and with all others.
"""

from __future__ import annotations

import gc
import sys
import time
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pytest

from pinning.errors import Cause
from tests.webhook.sized import MACHINE_INPUTS, POD_INPUTS, machine, pod
from webhook.config.mutations import BUILT_IN
from webhook.config.reload import Generation
from webhook.config.settings import load_settings
from webhook.metrics import Metrics, ReviewMeter
from webhook.review.app import ReviewEndpoint
from webhook.review.handler import Decider
from webhook.review.log import ReviewLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

MOST_GROWTH: Final = 2.3  # for each doubling; what grows with the body alone stays at 2
ROUNDS: Final = 25  # of measuring, until the least times of both sizes tell that all is well
LEAST_ROUNDS: Final = 5  # of the smaller body: a time that is too long would hide a growth
ALONE_SECONDS: Final = 0.005  # what a review takes where doubling begins
BESIDE_SECONDS: Final = 0.0015
TEXTS_SHARE: Final = 1 / 4  # texts are counted in smaller objects, because counting takes its time
LARGEST_BODY: Final = 2**17  # where doubling begins at the latest
SETTINGS: Final = load_settings(
    b"sidecarLimits: claims\nnodeShapes: [{name: small, cores: 4, threadsPerCore: 2}]"
)
OURS: Final = (*(str(Path(__file__).parents[3] / part) for part in ("webhook", "pinning")), __file__)


METRICS: Final = Metrics()
JUDGES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "mutate": lambda decider, request: decider.mutate(request),
    "validate": lambda decider, request: decider.validate(request),
}


class Case(NamedTuple):
    """One kind and operation, and what can be doubled of it."""

    kind: tuple[str, str]
    operation: str
    inputs: tuple[str, ...]
    made: Callable[[Mapping[str, int], str], Any]
    asked: Mapping[str, Any]

    def body(self, size: Mapping[str, int]) -> bytes:
        """Return the review of an object of this size, on an update with an old one of the same size."""
        old: Any = None if self.operation == "CREATE" else self._object(size, "z")
        group, kind = self.kind
        asked: dict[str, Any] = {
            "uid": "u",
            "kind": {"group": group, "version": "v1", "kind": kind},
            "operation": self.operation,
            **self.asked,
        }
        asked |= {"object": self._object(size, "y"), "oldObject": old}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}
        return msgspec.json.encode(review)

    def _object(self, size: Mapping[str, int], mark: str) -> Any:
        made = self.made(size, mark)
        return {"spec": {"template": made}} if self.kind[1] in {"Deployment", "VirtualMachine"} else made


POD, DEPLOYMENT = ("", "Pod"), ("apps", "Deployment")
MACHINE, RUNNING = ("kubevirt.io", "VirtualMachine"), ("kubevirt.io", "VirtualMachineInstance")
PLAIN: Final = partial(pod, labels={})
KUBEVIRT: Final = {"userInfo": {"username": "system:serviceaccount:kubevirt:kubevirt-controller"}}
CASES: Final = {
    "launcher created": Case(POD, "CREATE", POD_INPUTS, pod, {}),
    "launcher updated": Case(POD, "UPDATE", POD_INPUTS, pod, {}),
    "pod created": Case(POD, "CREATE", POD_INPUTS, PLAIN, {}),
    "pod resized": Case(POD, "UPDATE", POD_INPUTS, PLAIN, {"subResource": "resize"}),
    "workload created": Case(DEPLOYMENT, "CREATE", POD_INPUTS, PLAIN, {}),
    "workload updated": Case(DEPLOYMENT, "UPDATE", POD_INPUTS, PLAIN, {}),
    "machine created": Case(MACHINE, "CREATE", MACHINE_INPUTS, machine, {}),
    "machine updated": Case(MACHINE, "UPDATE", MACHINE_INPUTS, machine, {}),
    "running machine created": Case(RUNNING, "CREATE", MACHINE_INPUTS, machine, {}),
    "running machine updated": Case(RUNNING, "UPDATE", MACHINE_INPUTS, machine, {}),
    "running machine hotplugged": Case(RUNNING, "UPDATE", MACHINE_INPUTS, machine, KUBEVIRT),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_twice_the_input_is_twice_the_work(case: Case) -> None:
    """Each input alone, every pair of them and all together double without costing more than twice as much."""
    alone = {name: begin(case, name, ALONE_SECONDS) for name in case.inputs}
    beside = {name: begin(case, name, BESIDE_SECONDS) for name in case.inputs}
    all_of_them = {name: max(size // 4, 1) for name, size in beside.items()}
    sizes: list[Mapping[str, int]] = [{name: size} for name, size in alone.items()]
    sizes += [{one: beside[one], other: beside[other]} for one, other in combinations(case.inputs, 2)]
    for size in (*sizes, all_of_them):
        assert any(times_growth(*pair) <= MOST_GROWTH for pair in doublings(case, size)), size
        assert any(
            texts_growth(*pair) <= MOST_GROWTH for pair in doublings(case, scaled(size, TEXTS_SHARE))
        ), size


def doublings(case: Case, size: Mapping[str, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield a body and one of twice the size, up to three times: a full cache is a step, a square grows at each."""
    for factor in (1, 2, 4):
        yield case.body(scaled(size, factor)), case.body(scaled(size, 2 * factor))


def test_what_is_quadratic_is_seen() -> None:
    """The measures tell work that grows with the square, also inside of a method of a text."""
    small, large = b"x;" * 1000, b"x;" * 2000
    assert times_growth(small, large, split_for_each_part) > 3
    assert texts_growth(small, large, split_for_each_part) > 3


def split_for_each_part(body: bytes) -> None:
    """Split a text again for each of its parts, as a rule once did for each container."""
    text = body.decode()
    for part in text.split(";"):
        is_last(text, part)


def is_last(text: str, part: str) -> bool:
    """Say whether a part is the last one."""
    return text.split(";")[-1] == part


def begin(case: Case, name: str, seconds: float) -> int:
    """Return how large an input is when its review takes that long, or when it is large enough."""
    size, before, body = 32, b"", case.body({name: 32})
    while len(before) < len(body) < LARGEST_BODY and cpu_seconds(body) < seconds:
        size, before, body = 2 * size, body, case.body({name: 2 * size})
    return size


def scaled(size: Mapping[str, int], factor: float) -> Mapping[str, int]:
    """Return how large inputs are when all of them grow or shrink."""
    return {name: max(int(count * factor), 1) for name, count in size.items()}


def review(body: bytes) -> None:
    """Do what both endpoints do with a body, remembering no answer."""
    decider = Decider(SETTINGS, BUILT_IN)
    for name, judge in JUDGES.items():
        meter, log = ReviewMeter(METRICS, name), ReviewLog(lambda _: None)
        reply = ReviewEndpoint(name, judge, lambda: Generation(1, decider), meter, log).review(body)
        assert reply.status == 200, reply.body
        assert name == "mutate" or len(reply.body) < 64_000


def times_growth(small: bytes, large: bytes, work: Callable[[bytes], None] = review) -> float:
    """Return how the CPU time grows for each doubling of the body, by the least times of up to ROUNDS."""
    least_small = min(cpu_seconds(small, work) for _ in range(LEAST_ROUNDS))
    least_large = float("inf")
    for _ in range(ROUNDS):
        least_small = min(least_small, cpu_seconds(small, work))
        least_large = min(least_large, cpu_seconds(large, work))
        growth = per_doubling(least_large / least_small, small, large)
        if growth <= MOST_GROWTH:
            break
    return growth


def texts_growth(small: bytes, large: bytes, work: Callable[[bytes], None] = review) -> float:
    """Return how the number of characters grows that functions of ours hold when they end."""
    return per_doubling(characters(large, work) / characters(small, work), small, large)


def per_doubling(growth: float, small: bytes, large: bytes) -> float:
    """Return a growth as it would be had the body doubled: two inputs that multiply make it four times as large."""
    return growth / max(len(large) / len(small) / 2, 1)


def cpu_seconds(body: bytes, work: Callable[[bytes], None] = review) -> float:
    """Return the CPU time that a body takes this thread, without the collector, which comes when it likes."""
    gc.disable()
    began = time.thread_time()
    work(body)
    taken = time.thread_time() - began
    gc.enable()
    return taken


def characters(body: bytes, work: Callable[[bytes], None]) -> int:
    """Return how many characters the texts have that functions of ours hold at each of their ends and yields."""
    found = 0

    def count(frame: FrameType, event: str, result: Any) -> None:
        nonlocal found
        if event == "return" and frame.f_code.co_filename.startswith(OURS):
            found += sum(length(value) for value in (*frame.f_locals.values(), result))

    sys.setprofile(count)
    try:
        work(body)
    finally:
        sys.setprofile(None)
    return found


def length(value: object) -> int:
    """Return the characters of a text, or of what a cause tells."""
    if isinstance(value, Cause):
        return len(value.field) + len(value.message)
    return len(value) if isinstance(value, str) else 0
