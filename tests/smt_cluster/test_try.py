"""`make try SMT=1`: the cluster in the emulated machine is reachable from the host, and removed with it."""

from __future__ import annotations

import re

import pytest

from tests.demo_cluster.session import session, take_the_tour


@pytest.mark.smt_cluster
@pytest.mark.server
@pytest.mark.runtime
@pytest.mark.timeout(5400)
def test_tour_works_in_the_emulated_machine() -> None:
    """The tour works on four cores of two threads, and Ctrl-C ends the machine."""
    with session("--smt") as tried:
        assert "4 cores, 8 CPUs" in tried.type("kubectl corepin map")
        take_the_tour(tried)
        assert re.search(r"3 idle \(", tried.type("kubectl corepin map"))

        assert tried.interrupt() == 0
        assert tried.traces() == []
