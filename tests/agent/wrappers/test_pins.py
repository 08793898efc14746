"""Putting all threads of a process on its CPUs."""

from __future__ import annotations

import os
import threading

import pytest

from agent.errors import Gone
from agent.kernel.affinity import Affinities
from agent.kernel.procfs import started
from agent.wrappers.isolate import pin
from agent.wrappers.peer import Peer, held
from agent.wrappers.protocol import Denied
from agent.wrappers.registry import Process
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.wrappers.scene import Masks


def itself() -> Peer:
    """Return this process, held."""
    return held(Process(os.getpid(), started(os.getpid())))


def test_every_thread_is_pinned_and_read_back() -> None:
    """Those of this process, however many it has."""
    done, masks = threading.Event(), Masks()
    threads = [threading.Thread(target=done.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        pin(itself(), CPUSet([1, 5]), masks.as_affinities)
        assert {thread.native_id for thread in threads} | {os.getpid()} <= masks.put.keys()
        assert set(masks.put.values()) == {CPUSet([1, 5])}
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_what_the_kernel_makes_of_it_counts() -> None:
    """Other CPUs than asked for are a refusal that tells them."""
    masks = Masks()
    masks.allowed = CPUSet([2])

    with pytest.raises(Denied, match="run on 2 and not on 1-2"):
        pin(itself(), CPUSet([1, 2]), masks.as_affinities)


def test_a_process_that_ended_is_not_pinned() -> None:
    """Its number may be another's."""
    masks, child = Masks(), os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    peer = Peer(Process(child, started(child)), os.pidfd_open(child))
    try:
        with pytest.raises(Gone):
            pin(peer, CPUSet([1]), masks.as_affinities)
    finally:
        peer.close()
        os.waitpid(child, 0)
    assert masks.put == {}


def test_process_that_starts_threads_faster_than_they_are_moved_is_refused() -> None:
    """It is not told that it has its CPUs while some of its threads may run elsewhere."""
    gone = Affinities(lambda _: EMPTY, lambda *_: EMPTY, lambda _: True)  # each exits before it is looked at

    with pytest.raises(Denied, match="starts threads faster than the agent moves them"):
        pin(itself(), CPUSet([1]), gone)
