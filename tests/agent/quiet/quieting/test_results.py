"""Rounds of the keeper after passes, outside the event loop: their times, and their results in states."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Refused
from agent.node_state import QUIET_PENDING, KeptInterrupts, NodeState, PodState, QuietPart, QuietResult
from agent.process import Agent
from agent.published_parts import MOST_REASON
from agent.quiet.level import LevelPublisher
from agent.quiet.quieting import NO_COMPONENT, OBSERVES, SWITCHED_OFF, Quieting, in_daemon_thread
from agent.report.pod_status import pod_status
from agent.serve.state_json import agent_state
from pinning.contract import QuietWord
from pinning.machine.cpuset import EMPTY, union
from pinning.planning.noise import Keep, quiet_cpus
from published.agent_state import Quiet
from published.codec import decode
from published.pod_status import PodStatus
from tests.agent.fakes import FakeNode
from tests.agent.quiet.fakes import cpus
from tests.agent.quiet.quieting.scene import (
    EMPTY_STATE,
    QUIET,
    STATE,
    WEB_WORDS,
    Keeper,
    Scene,
    quiet_of,
    rounds,
)
from tests.agent.reconcile.serving import Reports
from tests.agent.states import EXCLUSIVE, ISOLATE, bound, state_of
from tests.environments.waiting import background
from tests.pods import container

CRIO_WORDS = {**ISOLATE, "irq-load-balancing.crio.io": "disable"}
ANNOTATED = replace(
    state_of(bound("web", container("main", 1), annotations=CRIO_WORDS)), runtime="containerd 2.4.2"
)
FEWER = replace(STATE, topology=replace(STATE.topology, online=cpus("0-3,5-7")))


def with_main(state: NodeState, **facts: Any) -> PodState:
    """Return the state's pod with these facts of its container."""
    (pod,) = state.pods
    return replace(pod, containers=(replace(pod.containers[0], **facts),))


async def test_changed_quiet_cpus_start_a_round() -> None:
    """A change of the quiet CPUs starts a round in its own thread; until its result the state is pending."""
    async with rounds() as scene:
        assert quiet_of(scene.quieting.add(STATE)) == QUIET_PENDING
        said = await scene.see(STATE)
        assert (quiet_of(said), said.quiet) == ("", QuietResult(QUIET))
        assert (await scene.see(EMPTY_STATE)).quiet == QuietResult()
    assert scene.keeper.asked[:2] == ["1,5", ""]
    assert scene.keeper.threads == {"quiet"}


@pytest.mark.parametrize(
    ("runtime", "found"),
    [
        pytest.param("containerd 2.4.2", QUIET_PENDING, id="containerd"),
        pytest.param("cri-o 1.34.0", None, id="CRI-O follows its own"),
        pytest.param("", None, id="not known yet"),
    ],
)
def test_crios_annotation_counts_where_the_runtime_is_known_and_another(
    runtime: str, found: str | None
) -> None:
    """CRI-O's annotation counts only under a known runtime other than CRI-O, whose own hooks move interrupts."""
    assert quiet_of(Scene().quieting.add(replace(ANNOTATED, runtime=runtime))) == found


def test_crios_annotation_is_about_interrupts_alone() -> None:
    """CRI-O's annotation keeps only interrupts off the CPUs; `noise-policy: quiet` also workqueues and idle states."""
    for shown, fully in ((ANNOTATED, ""), (STATE, str(QUIET))):
        scene = Scene()
        scene.quieting.add(shown)
        asyncio.run(one_round(scene))
        assert (scene.keeper.asked, scene.keeper.fully) == ([str(QUIET)], [fully])


async def test_reason_of_a_part_concerns_the_containers_that_ask_for_it() -> None:
    """With CRI-O's annotation only interrupts must be kept off; with `noise-policy: quiet` the other parts too."""
    failed = (QuietPart(QuietWord.WORKQUEUES, "no masks"),)
    async with rounds() as scene:
        scene.keeper.answers = [QuietResult(QUIET, parts=failed, fully=EMPTY)]
        assert quiet_of(await scene.see(ANNOTATED)) == ""
        scene.keeper.answers = [QuietResult(QUIET, parts=(QuietPart(QuietWord.WORKQUEUES),), fully=EMPTY)]
        assert quiet_of(await scene.see(STATE)) == QUIET_PENDING
        scene.keeper.answers = [QuietResult(QUIET, parts=failed)]
        assert quiet_of(await scene.see(FEWER)) == "workqueues: no masks"


async def test_without_quiet_cpus_there_is_no_round() -> None:
    """Without quiet CPUs no round runs, no thread starts and no file is read."""
    async with rounds() as scene:
        assert (await scene.see(EMPTY_STATE)).quiet == QuietResult()
    assert scene.keeper.asked == []


async def test_cpu_hotplug_starts_a_round() -> None:
    """CPU hotplug starts a round, because the kernel moves interrupts of offline CPUs to others."""
    async with rounds() as scene:
        await scene.see(STATE)
        scene.keeper.answers = [QuietResult(QUIET, "again")]
        assert quiet_of(await scene.see(FEWER)) == "again"
    assert scene.keeper.asked == ["1,5", "1,5"]


async def test_crashed_round_is_reported_and_others_follow() -> None:
    """A crashed round is reported, and later rounds run."""
    async with rounds() as scene:
        scene.keeper.answers = [RuntimeError("bug")]
        assert quiet_of(await scene.see(STATE)) == "see the agent's log"
        assert (await scene.see(EMPTY_STATE)).quiet == QuietResult()


@pytest.mark.parametrize(
    ("quieting", "state", "reason"),
    [
        pytest.param(lambda: Quieting(None, NO_COMPONENT), STATE, NO_COMPONENT, id="no component"),
        pytest.param(lambda: Scene(SWITCHED_OFF).quieting, STATE, SWITCHED_OFF, id="switched off"),
        pytest.param(lambda: Scene().quieting, replace(STATE, observes=True), OBSERVES, id="observes"),
    ],
)
def test_status_says_why_cpus_are_not_quiet(
    quieting: Callable[[], Quieting], state: NodeState, reason: str
) -> None:
    """The status has the reason why CPUs are not quiet; the node has no result if the operator has not enabled it."""
    given = quieting()
    said = given.add(state)
    assert quiet_of(said) == reason
    is_off = reason in {NO_COMPONENT, SWITCHED_OFF}
    assert (said.quiet is None) is is_off
    assert (given.add(EMPTY_STATE).quiet is None) is is_off
    status = decode(PodStatus, pod_status(said.pods[0], None) or "{}")
    assert status.containers["main"].not_quiet == reason


def test_without_the_component_rounds_and_restore_do_nothing() -> None:
    """Without the component, run and restore return at once."""
    asyncio.run(Quieting(None, NO_COMPONENT).run(lambda: None))
    assert Quieting(None, NO_COMPONENT).restore()


def test_pending_result_does_not_change_the_pod_status() -> None:
    """While the result is pending the status keeps its earlier text; after success it has no `notQuiet`."""

    def told(quiet: str | None, before: str | None) -> str | None:
        return pod_status(with_main(STATE, quiet=quiet), before)

    first = told(QUIET_PENDING, None)
    assert first
    assert told("", first) == first
    assert "notQuiet" not in first
    refused = told("no irqbalance", first)
    assert refused
    assert '"notQuiet":"no irqbalance"' in refused
    assert told(QUIET_PENDING, refused) == refused


NO_SPACE = "interrupts that could not be moved: "


@pytest.mark.parametrize(
    ("before", "after", "is_written"),
    [
        pytest.param(
            f"{NO_SPACE}/proc/irq/25/smp_affinity_list: No space left",
            f"{NO_SPACE}/proc/irq/31/smp_affinity_list: No space left; /proc/irq/7/smp_affinity_list: No space left",
            False,
            id="other interrupts",
        ),
        pytest.param(
            NO_SPACE + "; ".join(f"/proc/irq/{at}/smp_affinity_list: No space left" for at in range(30)),
            NO_SPACE + "; ".join(f"/proc/irq/{at}/smp_affinity_list: No space left" for at in range(9, 40)),
            False,
            id="a list that is cut",
        ),
        pytest.param(
            f"{NO_SPACE}/proc/irq/25/smp_affinity_list: No space left; and 3 more",
            f"{NO_SPACE}/proc/irq/26/smp_affinity_list: No space left",
            False,
            id="fewer",
        ),
        pytest.param(
            f"{NO_SPACE}/proc/irq/25/smp_affinity_list: No space left",
            f"{NO_SPACE}/proc/irq/25/smp_affinity_list: Input/output error",
            True,
            id="another error",
        ),
        pytest.param("workqueues: not mounted", "workqueues: read-only", True, id="another cause"),
        pytest.param("workqueues: not mounted", "", True, id="quiet again"),
    ],
)
def test_reason_with_other_details_alone_is_not_written(before: str, after: str, is_written: bool) -> None:
    """A reason that differs only in details does not change the status, which would cost a PATCH for each pod."""

    def told(quiet: str, last: str | None) -> str | None:
        return pod_status(with_main(STATE, quiet=quiet), last)

    first = told(before, None)
    assert (told(after, first) != first) is is_written
    kept = KeptInterrupts(QUIET, frozenset(), (), "irqbalance may move 3 of them: its list has no room")
    first = pod_status(with_main(STATE, quiet="", kept=kept), None)
    fewer = kept._replace(note="irqbalance may move 2 of them: its list has no room")
    assert pod_status(with_main(STATE, quiet="", kept=fewer), first) == first


IRQ = bound("web", container("main", 1), annotations={**WEB_WORDS, "irq-policy.corepin.io/pod": "eth1"})


async def test_kept_interrupts_reach_the_keeper_and_come_back_to_their_container() -> None:
    """The status lists interrupts that are not kept, the socket the kept ones; a pending result changes no status."""
    kept = KeptInterrupts(QUIET, frozenset({"25"}), ("25 (eth1)",), "no interrupt has a name like eth7")
    state = state_of(IRQ)
    (held,) = state.ledger.parts
    async with rounds() as scene:
        scene.keeper.answers = [QuietResult(QUIET, kept={held.owner: kept})]
        said = await scene.see(state)
        told = agent_state(said).pods[0].containers["main"]
        assert (told.quiet, told.kept, told.not_kept) == (True, ("25 (eth1)",), kept.note)
        status = pod_status(said.pods[0], None) or "{}"
        written = decode(PodStatus, status).containers["main"]
        assert (written.not_kept, written.kept, written.quiet) == (kept.note, (), False)
        assert pod_status(with_main(said, quiet=QUIET_PENDING, kept=None), status) == status
    assert scene.keeper.keeps[0] == frozenset({Keep(held.owner, held.cpus, ("eth1",))})


async def test_policies_of_containers_that_are_not_quiet_reach_no_keeper() -> None:
    """If the operator has switched off the moving of interrupts, no policy reaches the keeper."""
    loud = bound("web", container("main", 1), annotations={**ISOLATE, "irq-policy.corepin.io/pod": "eth1"})
    async with rounds() as scene:
        scene.quieting.add(state_of(loud))
        await scene.see(STATE)
    assert set(scene.keeper.keeps) == {frozenset()}
    assert Scene(SWITCHED_OFF).quieting.add(state_of(IRQ)).pods[0].containers[0].kept is None


def test_quiet_cpus_are_in_the_agents_state() -> None:
    """The container has its result, and the node its CPUs, managed interrupts and conflicts."""
    result = QuietResult(QUIET, "", ("30 (nvme0q1)",), ("25 (eth0)",))
    told = agent_state(replace(STATE, pods=(with_main(STATE, quiet=""),), quiet=result))
    assert told.pods[0].containers["main"].quiet
    assert told.quiet
    assert told.quiet == Quiet(cpus="1,5", managed=("30 (nvme0q1)",), conflicts=("25 (eth0)",))


def test_containers_of_a_quiet_pool_have_the_result() -> None:
    """A container in a quiet pool has the result of the pool's CPUs; an empty pool has none."""
    annotations = {**EXCLUSIVE, "noise-policy.corepin.io/pod": "quiet"}
    for cpus_of_main, said in (("1", ""), ("2", None)):
        document: Any = bound(
            "p", container("main", cpus_of_main), container("helper"), annotations=annotations
        )
        document["spec"]["resources"] = {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}
        state = state_of(document)
        scene = Scene()
        scene.quieting.add(state)
        asyncio.run(one_round(scene))
        assert scene.keeper.asked[-1] == str(union(it.cpus for it in state.ledger.parts))
        shown = scene.quieting.add(state).pods[0].containers
        assert {it.name: it.quiet for it in shown} == {"main": "", "helper": said}


async def one_round(scene: Scene) -> None:
    """Do one round."""
    async with background(scene.quieting.run(scene.news.set)):
        await asyncio.wait_for(scene.news.wait(), 60)


class Sink:
    """A publisher that records the last state."""

    last: NodeState | None = None

    def submit(self, state: NodeState) -> None:
        """Record a state."""
        self.last = state


def test_published_states_have_the_quiet_result() -> None:
    """Published states have the result of the last round of quiet CPUs."""
    sink = Sink()
    LevelPublisher(sink, dict, Quieting(None, NO_COMPONENT)).submit(STATE)  # type: ignore[arg-type]
    assert sink.last
    assert quiet_of(sink.last) == NO_COMPONENT


def test_daemon_thread_returns_results_and_errors() -> None:
    """A cancelled caller does not wait, and ignores a late result."""

    async def both() -> None:
        assert await in_daemon_thread(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await in_daemon_thread(lambda: 1 // 0)

    asyncio.run(both())
    begun, go_on = threading.Event(), threading.Event()
    ended = threading.Event()

    def slow() -> None:
        begun.set()
        go_on.wait(60)
        ended.set()

    async def stopped(*, waits: bool) -> None:
        async with background(in_daemon_thread(slow)):
            await asyncio.to_thread(begun.wait)
        if waits:
            go_on.set()
            await asyncio.to_thread(ended.wait)
            await asyncio.sleep(0)

    asyncio.run(stopped(waits=True))
    for event in (begun, go_on, ended):
        event.clear()
    asyncio.run(stopped(waits=False))
    go_on.set()
    assert ended.wait(60)


def test_long_reason_is_cut_in_the_status_of_each_container() -> None:
    """A long reason is truncated in pod statuses and complete on the socket."""
    reason = "interrupts that could not be moved: " + "; ".join(f"{it}: No space left" for it in range(99))
    (pod,) = STATE.pods
    containers = tuple(replace(pod.containers[0], name=f"c{it}", quiet=reason) for it in range(200))
    status = pod_status(replace(pod, containers=containers), None)
    assert status is not None
    assert len(status) < 2**17
    shown = decode(PodStatus, status).containers["c0"].not_quiet
    assert (len(shown), shown[:36], shown[-3:]) == (MOST_REASON, reason[:36], "...")
    assert agent_state(replace(STATE, quiet=QuietResult(QUIET, reason))).quiet == Quiet(str(QUIET), reason)


def test_quiet_cpus_of_a_state() -> None:
    """The quiet CPUs of a state include idle siblings."""
    assert quiet_cpus(STATE.ledger) == QUIET
    assert quiet_cpus(EMPTY_STATE.ledger) == EMPTY


@pytest.mark.parametrize("is_restored", [True, False])
def test_reset_restores_interrupts(tmp_path: Path, is_restored: bool) -> None:
    """A reset restores interrupts; if some cannot be restored, it fails after all other steps."""
    keeper, reports = Keeper(), Reports()
    keeper.restored = is_restored
    node = FakeNode(tmp_path)
    parts = replace(node.parts(reports), quieting=Quieting(keeper))  # type: ignore[arg-type]
    with nullcontext() if is_restored else pytest.raises(Refused, match="not every change for quiet CPUs"):
        node.runner.run(Agent(parts).reset())
    assert reports.resets == 1
    node.close()


class Waits(Quieting):
    """Rounds that follow each other at once; `waits` has the seconds between them."""

    def __init__(self, keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(keeper, sleep=self._rests)  # type: ignore[arg-type]
        self.waits: list[float | None] = []
        self.rest = 0.0
        monkeypatch.setattr("agent.quiet.quieting.time.thread_time", lambda: keeper.spent)

    async def _rests(self, seconds: float) -> None:
        self.rest = seconds

    async def _wait(self, seconds: float | None) -> None:
        self.waits.append(None if seconds is None else seconds + self.rest)
        await asyncio.sleep(0)

    async def rounds(self, count: int, state: NodeState = STATE) -> list[float | None]:
        """Return the seconds before each of the next rounds."""
        self.add(state)
        self.waits.clear()
        async with background(self.run(lambda: None)):
            async with asyncio.timeout(60):
                while len(self.waits) <= count:
                    await asyncio.sleep(0)
        return self.waits[1 : count + 1]


@pytest.mark.parametrize(
    ("cost", "has_settled", "answer", "waits"),
    [
        pytest.param(0.001, True, QuietResult(QUIET), [10.0] * 8, id="cheap"),
        pytest.param(0.1, True, QuietResult(QUIET), [50.0] * 8, id="costly"),
        pytest.param(0.1, False, QuietResult(QUIET), [10.0] * 6 + [50.0] * 2, id="moved"),
        pytest.param(0.1, True, None, [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 50.0, 50.0], id="unsteady"),
    ],
)
def test_rounds_take_a_limited_share_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
    cost: float,
    has_settled: bool,
    answer: QuietResult | None,
    waits: list[float],
) -> None:
    """The cost delays the next round, except six times in a row after a round that had work to do."""
    keeper = Keeper()
    keeper.cost, keeper.has_settled, keeper.answers = cost, has_settled, [answer] * 20
    assert asyncio.run(Waits(keeper, monkeypatch).rounds(8)) == pytest.approx(waits)


def test_settled_round_ends_the_prompt_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a settled round the prompt rounds end; a later move starts them again."""
    keeper = Keeper()
    keeper.cost = 0.1
    quieting = Waits(keeper, monkeypatch)
    for has_settled, wait in ((False, [10.0] * 5), (True, [50.0] * 2), (False, [10.0] * 5)):
        keeper.has_settled = has_settled
        assert asyncio.run(quieting.rounds(len(wait))) == pytest.approx(wait)


async def test_changes_take_a_limited_share_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequent changes of noise policies cause rounds at a limited share of a CPU."""
    keeper = Keeper()
    keeper.cost = 0.3
    rests: list[float] = []
    resting, go_on = asyncio.Event(), asyncio.Event()

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        resting.set()
        await go_on.wait()

    monkeypatch.setattr("agent.quiet.quieting.time.thread_time", lambda: keeper.spent)
    scene = Scene()
    scene.keeper, scene.quieting = keeper, Quieting(keeper, sleep=rest)  # type: ignore[arg-type]
    keeper.is_idle = False
    async with rounds(scene):
        scene.quieting.add(STATE)
        await resting.wait()
        for _ in range(5):
            for state in (EMPTY_STATE, STATE, EMPTY_STATE):
                scene.quieting.add(state)
                await asyncio.sleep(0)
        assert keeper.asked == ["1,5"]
        resting.clear()
        go_on.set()
        await resting.wait()
    assert keeper.asked[:2] == ["1,5", ""]
    assert rests[:2] == pytest.approx([3.0, 3.0])


def test_observing_agent_and_idle_node_have_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without quiet CPUs, or while observing, no round is due until a change."""
    for state in (replace(STATE, observes=True), EMPTY_STATE):
        keeper = Keeper()
        assert asyncio.run(Waits(keeper, monkeypatch).rounds(2, state)) == [None, None]
        assert keeper.asked == []
