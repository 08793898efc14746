"""Keep CPUs quiet: one round after each reconcile pass that changed the quiet CPUs, and periodic checks.

The rounds run in a thread of their own, so that neither a slow kernel file nor an irqbalance that does not answer
delays a pass. The thread is a daemon: an agent that stops does not wait for it, and the next agent resumes from the
saved records.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from agent.node_state import CRASHED, QUIET_PENDING, QuietResult
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.noise import quiet_cpus
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from agent.node_state import KeptInterrupts, NodeState, PodState
    from agent.quiet.keeper import QuietKeeper
    from agent.quiet.kept import Keeps
    from pinning.planning.ledger import Assignment

ROUND_SECONDS: Final = 10.0
# Pause after a round that hotplug of a CPU interrupted; doubled with each further round, up to ROUND_SECONDS.
UNSTEADY_SECONDS: Final = 1.0
REST: Final = 500.0  # seconds of rest per second of CPU time: the rounds take at most 0.2 % of one CPU
MOST_PROMPT: Final = 6  # consecutive rounds for which the rest is not extended, whatever CPU time they took
# Seconds of rest for each second of CPU time after a round for changed quiet CPUs: 10 % of one CPU. It is limited
# because users may change which CPUs are quiet at any rate.
CHANGE_REST: Final = 10.0
NO_COMPONENT: Final = "the node's interrupts are not mounted: install the component quiet"
LEFT: Final = (
    "an earlier agent moved interrupts or workqueues off quiet CPUs, or bounded their idle states, and the node's files are"
    " not mounted any more: install the component quiet again, or restart the node"
)
SWITCHED_OFF: Final = "the agents' configuration does not say quiet.interrupts: true"
OBSERVES: Final = "corepin only observes here"

Value = TypeVar("Value")

logger = logging.getLogger(__name__)


class Quieting:
    """The quiet CPUs of a node; without a keeper nothing is changed, and the reason is reported."""

    def __init__(
        self,
        keeper: QuietKeeper | None,
        reason: str = "",
        *,
        is_left: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._keeper = keeper
        self._sleep = sleep
        # Whether an earlier agent's changes cannot be undone, because there is no keeper.
        self._is_left = is_left
        if is_left:
            logger.warning("quiet CPUs not restored", extra={"facts": {"reason": LEFT}})
        self._reason = reason  # why the configuration keeps no CPU quiet
        # From the last state: CPUs free of interrupts, CPUs also free of workqueues and deep idle states, online CPUs,
        # and the interrupts that stay.
        self._wanted: tuple[CPUSet, CPUSet, CPUSet, Keeps] | None = None
        self._changed = asyncio.Event()
        self._result = QuietResult(reason=QUIET_PENDING)
        self._prompt = 0  # consecutive rounds that changed something or were interrupted by hotplug
        self._took = 0.0  # CPU time of the last round, in seconds

    def add(self, state: NodeState) -> NodeState:
        """Return the state with the last round's results; request another round if its quiet CPUs changed."""
        # Unknown runtimes count as CRI-O, whose own annotation may be in force.
        is_crio = not state.runtime or state.runtime.startswith("cri-o ")
        may_move = not (self._reason or state.observes)
        quiet = quiet_cpus(state.ledger.parts, is_crio=is_crio) if may_move else EMPTY
        # CRI-O's annotation covers interrupts only: workqueues and idle states of these CPUs are left to the agent.
        fully = quiet_cpus(state.ledger.parts, is_crio=True) if may_move else EMPTY
        keeps = frozenset(
            state.keeps[it.owner]
            for it in state.ledger.parts
            if it.owner in state.keeps and it.is_quiet(is_crio=is_crio)
        )
        wanted = quiet, fully, state.topology.online, keeps if quiet else frozenset()
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()
        results = {
            owner: (
                self._why_not(state, quiet, fully if it.is_quiet(is_crio=True) else None),
                self._result.kept.get(it.owner),
            )
            for it in state.ledger.parts
            if it.cpus and it.is_quiet(is_crio=is_crio)
            for owner in _running_on(it)
        }
        if not results:
            return replace(state, quiet=self._node_result())
        uids = {owner.pod_uid for owner in results}
        pods = tuple(_with_results(pod, results) if pod.uid in uids else pod for pod in state.pods)
        return replace(state, pods=pods, quiet=self._node_result())

    def _why_not(self, state: NodeState, quiet: CPUSet, fully: CPUSet | None) -> str:
        """Return why CPUs are not kept quiet; `fully` is None if only quiet interrupts are requested."""
        if self._reason or state.observes:
            return self._reason or OBSERVES
        result = self._result
        if fully is None:
            return result.reason or ("" if quiet <= result.cpus else QUIET_PENDING)
        is_done = quiet <= result.cpus and fully <= result.part_cpus
        return result.why_not or ("" if is_done else QUIET_PENDING)

    def _node_result(self) -> QuietResult | None:
        """Return the result of the last round; None if the feature is off, because such a node gets no condition."""
        return self._result if self._keeper and not self._reason else None

    async def run(self, changed: Callable[[], None]) -> None:
        """Run rounds until cancelled; call `changed` when the result changes."""
        if self._keeper is None:
            return
        wait: float | None = 0.0
        while True:
            await self._wait(wait)
            wait = await self._round(self._keeper, changed)
            rest = CHANGE_REST * self._took
            await self._sleep(rest)
            wait = wait and max(0.0, wait - rest)

    async def _wait(self, seconds: float | None) -> None:
        """Wait until the quiet CPUs change, at most these seconds; None: without limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

    async def _round(self, keeper: QuietKeeper, changed: Callable[[], None]) -> float | None:
        """Do one round; return the seconds until the next one is due, None if only a change needs one."""
        if self._wanted is None:
            return None  # no pass has determined the quiet CPUs yet
        quiet, fully, _, keeps = self._wanted
        self._took = 0.0
        if not quiet and keeper.is_idle:
            self._show(QuietResult(), changed)
            return None
        try:
            work = in_daemon_thread(lambda: _timed(lambda: keeper.round(quiet, fully, keeps)))
            result, self._took = await work
        except Exception:  # a bug in one round must not end the agent
            logger.exception("round of quiet CPUs crashed")
            result = QuietResult(quiet, CRASHED)
        if result is not None:
            self._show(result, changed)
        return self._rest(is_steady=result is not None, has_settled=keeper.has_settled)

    def _rest(self, *, is_steady: bool, has_settled: bool) -> float:
        """Return the seconds until the next round: longer after a costly one, unless that one changed something.

        A round that moves interrupts costs most, and irqbalance may undo moves until it applies its new list.
        """
        rest = max(ROUND_SECONDS, REST * self._took)
        if is_steady and has_settled:
            self._prompt = 0
            return rest
        self._prompt += 1
        if self._prompt > MOST_PROMPT:
            return rest
        return ROUND_SECONDS if is_steady else min(ROUND_SECONDS, UNSTEADY_SECONDS * 2 ** (self._prompt - 1))

    def _show(self, result: QuietResult, changed: Callable[[], None]) -> None:
        if result == self._result:
            return
        if result.why_not != self._result.why_not:
            facts = {"cpus": str(result.cpus), "reason": result.why_not}
            if result.why_not:
                logger.warning("CPUs not as quiet as asked for", extra={"facts": facts})
            else:
                logger.info("CPUs kept quiet", extra={"facts": facts})
        self._result = result
        changed()

    def restore(self) -> bool:
        """Undo all changes (uninstall); return whether nothing is left."""
        return self._keeper.restore() if self._keeper else not self._is_left


def _running_on(assignment: Assignment) -> Iterator[Owner]:
    """Yield the containers of an assignment: for a pool, all its users."""
    if assignment.claim.pool is None:
        yield assignment.owner
        return
    for user in assignment.claim.pool.users:
        yield Owner(assignment.owner.pod_uid, user.container)


def _with_results(pod: PodState, results: Mapping[Owner, tuple[str, KeptInterrupts | None]]) -> PodState:
    containers = (
        replace(it, quiet=results[owner][0], kept=results[owner][1])
        if (owner := Owner(pod.uid, it.name)) in results
        else it
        for it in pod.containers
    )
    return replace(pod, containers=tuple(containers))


def _timed(work: Callable[[], Value]) -> tuple[Value, float]:
    began = time.thread_time()
    value = work()
    return value, time.thread_time() - began


async def in_daemon_thread(work: Callable[[], Value]) -> Value:
    """Run work in a daemon thread, which does not keep the process from exiting, and return its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Value] = loop.create_future()

    def hand_over(set_it: Callable[[], None]) -> None:
        if not done.done():
            set_it()

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            deliver = partial(done.set_exception, error)
        else:
            deliver = partial(done.set_result, value)
        with suppress(RuntimeError):  # the loop is closed, so that no task waits for it
            loop.call_soon_threadsafe(hand_over, deliver)

    threading.Thread(target=run, name="quiet", daemon=True).start()
    return await done
