"""Rate and connection limits of the node, shared fairly by pods and containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from agent.wrappers.bounds import (
    AT_ONCE,
    BURST,
    DEAF_MOST,
    DEAF_SECONDS,
    OPEN,
    RATE,
    REFUSALS,
    RESERVE,
    Connections,
    Origin,
    Refusals,
    Turns,
)
from agent.wrappers.protocol import Crowded, Denied

A, B = Origin("a", "a0"), Origin("b", "b0")


class Node:
    """Turns on a clock that advances only to the next waiting turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.begun: Counter[Origin] = Counter()
        self._turns: Turns[Origin] = Turns(lambda: self.now)

    def ask(self, origin: Origin, turns: int = 1) -> bool:
        """Ask for turns; return whether they started."""
        is_begun = self._turns.ask(origin, origin, turns)
        self.begun[origin] += is_begun
        return is_begun

    def due(self) -> list[Origin]:
        """Return the origins of all turns that start now, in order."""
        begun: list[Origin] = []
        while self._turns.wait() == 0.0:
            begun += self._turns.begin()
        self.begun.update(begun)
        return begun

    def until(self, end: float) -> Iterator[Origin]:
        """Yield origins as their turns start, until the time `end` or until none waits."""
        while True:
            yield from self.due()
            wait = self._turns.wait()
            if wait is None or self.now + wait > end:
                self.now = end
                return
            self.now += wait + 1e-9

    def drain(self, origin: Origin) -> None:
        """Use up the node's burst from one container."""
        for _ in range(BURST):
            self.ask(origin)
        self.due()


def containers(pod: str, count: int) -> list[Origin]:
    """Return containers of a pod."""
    return [Origin(pod, f"{pod}{number}") for number in range(count)]


@pytest.mark.parametrize("origins", [containers("a", 1), containers("a", 200)])
def test_a_burst_is_followed_by_the_rate_limit(origins: list[Origin]) -> None:
    """After a burst, of one container or of 200, turns start at the node's rate."""
    node = Node()
    for number in range(2 * BURST):
        node.ask(origins[number % len(origins)])
    node.due()

    assert node.begun.total() == BURST
    assert len(list(node.until(1.0))) == pytest.approx(RATE, abs=1)


def test_one_request_of_each_of_200_pods_fits_the_burst() -> None:
    """One request from each of 200 pods starts at once."""
    node = Node()
    for number in range(200):
        node.ask(Origin(str(number), "main"))
    node.due()

    assert node.begun.total() == 200


def test_idle_time_refills_the_burst() -> None:
    """The burst is available again after a pause."""
    node = Node()
    node.drain(A)
    node.now = BURST / RATE
    node.drain(A)

    assert node.begun[A] == 2 * BURST


@pytest.mark.parametrize("count", [1, 20, 200])
def test_containers_of_a_flooding_pod_share_the_rate_of_the_node(count: int) -> None:
    """Flooding containers of one pod together get the node's rate, in equal parts."""
    node, origins, seconds = Node(), containers("a", count), 40.0
    node.drain(A)
    before = node.begun.total()
    for origin in origins:
        for _ in range(int(seconds * RATE)):
            node.ask(origin)
    began = Counter(node.until(seconds))

    assert node.begun.total() - before == pytest.approx(seconds * RATE, abs=1)
    assert max(began.values()) - min(began[origin] for origin in origins) <= 1


def test_pods_share_equally_however_many_containers_each_has() -> None:
    """A pod with 200 containers gets as many turns as a pod with one."""
    node = Node()
    node.drain(A)
    node.now += 0.01
    for origin in [*containers("a", 200), *[B] * 200, *[Origin("c", "c0")] * 200]:
        node.ask(origin)
    pods = Counter(origin.pod for origin in list(node.until(4.0)))

    assert max(pods.values()) - min(pods.values()) <= RESERVE


@pytest.mark.parametrize("flooding", [1, 10, 50])
def test_a_quiet_pod_does_not_wait_behind_flooding_pods(flooding: int) -> None:
    """A pod that stays within its share is served at once while others flood."""
    node = Node()
    node.drain(A)
    pods = [Origin(f"flood{number}", "main") for number in range(flooding)]
    for _ in range(20):
        for _ in range(200 // flooding):
            for pod in pods:
                node.ask(pod)
        list(node.until(node.now + 1.1 * (flooding + 1) / RATE))
        assert node.ask(B)


def test_idle_container_waits_for_one_turn_of_each_other_in_its_pod() -> None:
    """An idle container waits for one turn of each other container in its pod, not for all queued requests."""
    node = Node()
    node.drain(A)
    for origin in [*containers("a", 5)[1:] * 100, A]:
        node.ask(origin)

    assert list(node.until(1.0)).index(A) == 4


@pytest.mark.parametrize("pods", [1, 100])
def test_no_pattern_has_more_turns_than_the_rate(pods: int) -> None:
    """Alternating containers, and pods that return with a full reserve, stay within the node's rate."""
    node, seconds = Node(), 60
    for tick in range(seconds * 10):
        for number in range(pods):
            for container in range(max(1, 100 // pods)):
                if (tick + number + container) % 7 == 0:
                    node.ask(Origin(str(number), str(container)))
        list(node.until((tick + 1) / 10))

    assert node.begun.total() <= seconds * RATE + 2 * BURST + 1


def test_a_report_costs_several_turns() -> None:
    """A request of ten turns waits for ten rounds, and others get their turns in between."""
    node = Node()
    node.drain(A)
    node.ask(A, 10)
    for _ in range(20):
        node.ask(Origin("a", "a1"))
    order = list(node.until(1.0))

    assert order.index(A) == 9
    assert len(order) == 21


def test_waiting_turns_start_in_small_batches() -> None:
    """Waiting turns start in small batches, so that the event loop can do other work."""
    turns: Turns[int] = Turns(lambda: 0.0)
    for number in range(100):
        turns.ask(A, number)

    assert turns.begin() == [RESERVE, RESERVE + 1, RESERVE + 2, RESERVE + 3]


def test_connection_limit_counts_for_each_container() -> None:
    """A connection above a container's limit is refused with the reason; another container's is accepted."""
    connections = Connections()
    for _ in range(AT_ONCE):
        connections.opened(A)
    with pytest.raises(Denied, match="too many wrappers ask at once"):
        connections.opened(A)
    connections.opened(Origin("a", "a1"))
    connections.closed(A)
    connections.opened(A)


def filled(origins: list[Origin]) -> Connections:
    """Return connections of these containers up to the node's limit, in equal parts."""
    connections = Connections()
    for number in range(OPEN):
        connections.opened(origins[number % len(origins)])
    return connections


@pytest.mark.parametrize("count", [8, 200, OPEN])
def test_a_full_node_refuses_the_pod_that_fills_it(count: int) -> None:
    """If one pod fills the node's connections it gets no more, and another pod gets its share."""
    connections = filled(containers("a", count))
    for origin in [*containers("a", count)[:-1], Origin("a", "newcomer")]:
        with pytest.raises((Crowded, Denied)):
            connections.opened(origin)
    for number in range(AT_ONCE):
        connections.opened(Origin("b", str(number % 2)))


def test_a_full_node_shares_a_pods_connections_by_container() -> None:
    """Inside a pod's share, each container can use its part though another container is at its limit."""
    connections = filled(containers("a", 8))
    for _ in range(AT_ONCE):
        connections.opened(B)
    with pytest.raises(Denied):
        connections.opened(B)
    connections.opened(Origin("b", "b1"))


def test_closed_connections_are_available_again() -> None:
    """After all connections are closed, as many can be opened again."""
    origins = containers("a", 8)
    connections = filled(origins)
    for number in range(OPEN):
        connections.closed(origins[number % len(origins)])
    for number in range(OPEN):
        connections.opened(origins[number % len(origins)])


def test_refusal_messages_are_rate_limited() -> None:
    """Refusal messages are rate limited per container: a burst, then one in a second."""
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    most = REFUSALS
    assert [refusals.may_explain(A) for _ in range(most + 2)] == [True] * most + [False] * 2
    assert refusals.may_explain(B)
    now[0] = 1.0
    refusals.forget()
    assert [refusals.may_explain(A) for _ in range(2)] == [True, False]


def test_a_refused_process_is_ignored_for_a_while() -> None:
    """Requests of a refused process are ignored for DEAF_SECONDS; other processes are served."""
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    refusals.refused(7)
    assert (refusals.ignores(7), refusals.ignores(8)) == (True, False)
    now[0] = DEAF_SECONDS
    assert not refusals.ignores(7)
    refusals.refused(7)
    now[0] *= 3
    refusals.forget()
    assert not refusals.ignores(7)


def test_number_of_ignored_processes_is_limited() -> None:
    """A refused process above the limit of remembered ones is not ignored."""
    refusals = Refusals(lambda: 0.0)
    for pid in range(DEAF_MOST + 1):
        refusals.refused(pid)

    assert refusals.ignores(DEAF_MOST - 1)
    assert not refusals.ignores(DEAF_MOST)
