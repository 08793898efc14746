"""Pinning all threads of a process."""

from __future__ import annotations

import os
import threading

import pytest

from agent.errors import Gone
from agent.kernel.affinity import Affinities
from agent.kernel.procfs import started
from agent.wrappers.isolate import MOST_THREADS, pin
from agent.wrappers.peer import Peer, held
from agent.wrappers.protocol import Denied
from agent.wrappers.registry import Process
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.wrappers.scene import Masks


def itself() -> Peer:
    """Return this process as a peer."""
    return held(Process(os.getpid(), started(os.getpid())))


def test_every_thread_is_pinned_and_read_back() -> None:
    """All threads of this process are pinned."""
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


def test_other_cpus_than_requested_are_refused() -> None:
    """If the kernel allows other CPUs than requested, the request is refused with both."""
    masks = Masks()
    masks.allowed = CPUSet([2])

    with pytest.raises(Denied, match="run on 2 and not on 1-2"):
        pin(itself(), CPUSet([1, 2]), masks.as_affinities)


def test_a_process_that_ended_is_not_pinned() -> None:
    """An exited process is not pinned, because its pid may be reused."""
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


def test_process_that_outruns_the_pinning_is_refused() -> None:
    """If a process starts threads faster than they are pinned, its request is refused."""
    gone = Affinities(
        lambda _: EMPTY, lambda *_: EMPTY, lambda _: True
    )  # each thread exits before its affinity is read

    with pytest.raises(Denied, match="starts threads faster than the agent moves them"):
        pin(itself(), CPUSet([1]), gone)


def test_process_with_many_threads_is_refused() -> None:
    """A process with too many threads is refused before its threads are listed, because each takes the agent time."""
    done, masks = threading.Event(), Masks()
    threads = [threading.Thread(target=done.wait) for _ in range(MOST_THREADS)]
    for thread in threads:
        thread.start()
    try:
        with pytest.raises(
            Denied, match=f"has [0-9]+ threads, and may have {MOST_THREADS}: send the request"
        ):
            pin(itself(), CPUSet([1]), masks.as_affinities)
        assert masks.put == {}
    finally:
        done.set()
        for thread in threads:
            thread.join()
