"""Pids of a process in its namespaces, read beside a name that it chooses itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import Refused
from agent.vm.process import opened
from tests.agent.vm.fake_host import FakeHost


def ids_of(host: FakeHost, pid: int) -> list[int]:
    """Return the pids of a process, outermost first."""
    with opened(host.roots.proc, pid) as process:
        return process.ids()


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028"])
@pytest.mark.parametrize("forged", ["NSpid:\t1", "NSpid: x", "NSpid:"], ids=["pid", "word", "nothing"])
def test_name_forges_no_pids(host: FakeHost, forged: str, end: str) -> None:
    """A process cannot forge pids by its name, because only newlines separate lines of its status."""
    host.process(304, name=f"a{end}{forged}", ids=(304, 7))
    assert ids_of(host, 304) == [304, 7]


def with_groups(host: FakeHost, count: int) -> None:
    """Add process 304 of a container, in this many groups."""
    host.process(304, ids=(304, 7))
    status: Path = host.roots.proc / "304/status"
    groups = "Groups:\t" + " ".join(str(4_000_000_000 + number) for number in range(count))
    status.write_text(status.read_text().replace("NSpid", f"{groups} \nNSpid"))


def test_groups_before_the_pids_are_read(host: FakeHost) -> None:
    """The pids of a process with a thousand groups, which precede the pids in the file, are read."""
    with_groups(host, 1000)
    assert ids_of(host, 304) == [304, 7]


def test_process_with_too_many_groups_has_no_known_pids(host: FakeHost) -> None:
    """The pids of a process with more groups than are read are unknown."""
    with_groups(host, 65_536)
    with pytest.raises(Refused, match="process 304 has too many groups"):
        ids_of(host, 304)


def test_kernel_without_pid_namespaces(host: FakeHost) -> None:
    """On a kernel without pid namespaces a process has one pid."""
    host.process(304)
    (host.roots.proc / "304/status").write_text("Name:\tqemu\n")
    assert ids_of(host, 304) == [304]
