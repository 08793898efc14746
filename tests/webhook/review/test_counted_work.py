"""The work of a review is counted, lines of Python and bytes of memory, and grows no faster than its input.

Both counts are the same beside a busy machine. test_doubling.py counts instructions, and each pair of inputs. Memory
is looked at where a function or a turn of a loop ends: what `split`, `join` or `sorted` make in between counts. Three
sizes are compared, so that what a review costs anyway hides nothing. Each input grows alone, beside more containers,
and with all others; other pairs are not counted here. What two inputs cost together is measured at the largest size
alone where it is the sum of what each costs.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from tests.pods import CPU_MANAGER
from tests.webhook.growing import (
    CASES,
    MACHINE,
    POD,
    RUNNING,
    Case,
    review,
    scaled,
    split_for_each_part,
)
from tests.webhook.sized import MACHINE_INPUTS, POD_INPUTS, machine, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

MOST_GROWTH: Final = 2.3  # for each doubling; what grows with the body alone stays at 2
STEPS: Final = 0.15  # of what a review costs: lists and dictionaries grow in steps
ITEMS: Final = 32  # smallest size measured: four times as many exceed the causes that are reported
CONTAINERS: Final = 25  # a hundred of each kind are all that may ask for CPUs
LARGE: Final[Mapping[str, int]] = {
    "ranged": 1024,
    "depth": 100,
    "features": 256,
    "containers": CONTAINERS,
    "init": CONTAINERS,
} | (dict.fromkeys(("names", "keys", "values", "mutate", "policies", "text"), 16384))


class Cost(NamedTuple):
    """The amount of work."""

    lines: int
    made: int  # bytes: at each look, the most that was there since the last one, above what was there then


def crowd(size: Mapping[str, int], mark: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod with more containers than may ask for CPUs."""
    limits = {"cpu": f"{ord(mark)}m"}
    members = [{"name": f"c{at}", "resources": {"limits": limits}} for at in range(size.get("containers", 1))]
    return {"metadata": {"annotations": dict(asked)}, "spec": {"containers": members}}


BYSTANDER: Final = partial(crowd, asked={})
REFUSED: Final = partial(crowd, asked={CPU_MANAGER: "exclusive"})
RESIZE: Final = {"subResource": "resize"}
CROWDS: Final = {
    "judged when created": (Case(POD, "CREATE", ("containers",), BYSTANDER, {}), 210),
    "judged when resized": (Case(POD, "UPDATE", ("containers",), BYSTANDER, RESIZE), 210),
    "too many when created": (Case(POD, "CREATE", ("containers",), BYSTANDER, {}), 1050),
    "too many that ask": (Case(POD, "CREATE", ("containers",), REFUSED, {}), 1050),
    "too many that ask when resized": (Case(POD, "UPDATE", ("containers",), REFUSED, RESIZE), 1050),
}


def pod_kept(size: Mapping[str, int], mark: str) -> dict[str, Any]:
    """Return one of two states of a pod with the same flaws, of which the new one lacks one."""
    return one_flaw_less(pod(size, "y", labels={}), mark)


def machine_kept(size: Mapping[str, int], mark: str) -> dict[str, Any]:
    """Return one of two states of a virtual machine, as those of a pod."""
    return one_flaw_less(machine(size, "y"), mark)


def one_flaw_less(made: dict[str, Any], mark: str) -> dict[str, Any]:
    """Return an object with one more flaw when it is the old one."""
    if mark == "z":
        made["metadata"]["annotations"]["smt-policy.corepin.io/once"] = "wrong"
    return made


KEPT: Final = {
    "pod as wrong as before": Case(POD, "UPDATE", POD_INPUTS, pod_kept, {}),
    "machine as wrong as before": Case(MACHINE, "UPDATE", MACHINE_INPUTS, machine_kept, {}),
    "running machine as wrong as before": Case(RUNNING, "UPDATE", MACHINE_INPUTS, machine_kept, {}),
}


@pytest.mark.parametrize("case", (CASES | KEPT).values(), ids=CASES | KEPT)
def test_twice_the_input_is_twice_what_is_counted(case: Case) -> None:
    """Lines and memory grow no faster than each input alone, beside more containers, and all together."""
    nothing, alone = count(case.body({})), dict[str, Cost]()
    for size in sizes(case):
        largest = count(case.body(scaled(size, 4)))
        if len(size) == 1:
            alone |= dict.fromkeys(size, largest)
        elif len(size) == 2 and adds_up(largest, [alone[name] for name in size], nothing):
            continue  # each of the two has been measured
        costs = [*(count(case.body(scaled(size, factor))) for factor in (1, 2)), largest]
        if not grows_with_its_size(
            costs
        ):  # a step, as where bodies begin to be counted, is there at one size
            costs = counted(case, scaled(size, 2))
        assert grows_with_its_size(costs), (size, costs)


@pytest.mark.parametrize(("case", "begin"), CROWDS.values(), ids=CROWDS)
def test_cost_is_linear_in_the_number_of_containers(case: Case, begin: int) -> None:
    """The cost of thousands of containers is linear in their number, read or refused."""
    costs = counted(case, {"containers": begin})
    assert grows_with_its_size(costs), costs


@pytest.mark.parametrize(
    ("product", "adds"),
    [
        pytest.param(0, True, id="sum"),
        pytest.param(1, False, id="product"),
        pytest.param(-1, True, id="less than the sum"),
    ],
)
def test_cost_of_two_inputs_together_is_detected(product: int, adds: bool) -> None:
    """A product of two inputs is more than what each of them costs alone, in lines or in memory."""
    nothing, one, other, both = 500, 500 + 40 * 100, 500 + 7 * 64, 500 + 40 * 100 + 7 * 64
    for more in ((100 * 64 * product, 0), (0, 100 * 64 * product)):
        together = Cost(both + more[0], both + more[1])
        assert adds_up(together, [Cost(one, one), Cost(other, other)], Cost(nothing, nothing)) is adds


def test_quadratic_work_inside_text_methods_is_counted() -> None:
    """The counts reveal quadratic work inside a method of a text."""
    bodies = [b"x;" * 500 * factor for factor in (1, 2, 4)]
    assert not grows_with_its_size([count(body, split_for_each_part) for body in bodies])


def sizes(case: Case) -> Iterator[Mapping[str, int]]:
    """Yield how large the inputs are that grow together."""
    begin = {name: LARGE.get(name, ITEMS) for name in case.inputs}
    for name, size in begin.items():
        yield {name: size}
        if "containers" in begin and name != "containers":
            yield {"containers": CONTAINERS, name: size}
    yield {name: max(size // 4, 1) for name, size in begin.items()}


def counted(case: Case, size: Mapping[str, int]) -> list[Cost]:
    """Return the costs of a review at a size, and after one and two doublings."""
    return [count(case.body(scaled(size, factor))) for factor in (1, 2, 4)]


def grows_with_its_size(costs: list[Cost]) -> bool:
    """Return whether the second doubling adds at most the allowed multiple of what the first one added."""
    for first, second, third in zip(*costs, strict=True):
        if third - second > MOST_GROWTH * (second - first) + STEPS * second:
            return False
    return True


def adds_up(both: Cost, alone: Sequence[Cost], nothing: Cost) -> bool:
    """Say whether two inputs together cost what each costs alone, but for the steps of half the size."""
    for together, one, other, none in zip(both, *alone, nothing, strict=True):
        if together - one - other + none > STEPS * together / 2:
            return False
    return True


def count(body: bytes, work: Callable[[bytes], None] = review) -> Cost:
    """Return the executed lines and requested memory for a body, each in a run of its own."""
    work(body)  # which builds once what is kept
    outer = sys.gettrace()  # of what measures the coverage
    gc.disable()
    try:
        return Cost(_lines(body, work), _made(body, work))
    finally:
        sys.settrace(outer)
        gc.enable()


def _lines(body: bytes, work: Callable[[bytes], None]) -> int:
    lines = 0

    def step(_frame: FrameType, _event: str, _value: Any) -> Any:
        nonlocal lines
        lines += 1
        return step

    sys.settrace(step)
    work(body)
    sys.settrace(None)
    return lines


def _made(body: bytes, work: Callable[[bytes], None]) -> int:
    made = last = before = 0
    memory, forget = tracemalloc.get_traced_memory, tracemalloc.reset_peak

    def step(frame: FrameType, event: str, _value: Any) -> Any:
        nonlocal made, last, before
        at = frame.f_lasti  # a small number, which takes no memory to look at
        if event == "return" or at <= before:  # the end of a function or of a turn: looking takes its time
            now, peak = memory()
            if peak > last:
                made += peak - last
            forget()
            last = now
        before = at
        return step

    tracemalloc.start()
    sys.settrace(step)
    try:
        work(body)
    finally:
        sys.settrace(None)
        tracemalloc.stop()
    return made
