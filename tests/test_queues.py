"""The queues of `make test`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import FOLDERS

if TYPE_CHECKING:
    import pytest

SCRIPT = Path("scripts/test").read_text()
AUTOGROUP = Path("/proc/self/autogroup")
MARKED = [path for path in Path("tests").rglob("*.py") if re.search(r"mark\.smt\b", path.read_text())]


def folders(queue: str) -> set[str]:
    """Return the folders of a queue."""
    (listed,) = re.findall(rf"^{queue}=\((.*?)\)", SCRIPT, re.MULTILINE)
    return set(listed.split())


def test_emulated_machines_are_in_the_one_queue_that_starts_them() -> None:
    """Tests of emulated machines are in the one queue that starts them; the other queues skip them."""
    assert MARKED
    assert [str(path) for path in MARKED if "/".join(path.parts[:2]) not in folders("emulated")] == []


def test_queues_have_the_folders_of_all_their_tests(request: pytest.FixtureRequest) -> None:
    """Each collected test is in a folder of its queue; if all are collected no folder is in two queues."""
    collected = request.config.stash[FOLDERS]
    machines, servers = ("nodes", "clusters", "runtimes", "vms"), ("shared", "apart")
    for kind, queues in (("machines", machines), ("servers", servers)):
        named = [folders(queue) for queue in queues]
        assert collected[kind] - set().union(*named) == set()
        assert sum(map(len, named)) == len(set().union(*named)), "a folder is in two queues"


def test_what_gives_way_is_nicer_in_its_session_and_as_a_session() -> None:
    """A command that gives way has a higher niceness, and its session too where the kernel groups by sessions."""
    (yielding,) = re.findall(r"^yielding=.*$", SCRIPT, re.MULTILINE)
    shown = f"nice; if [ -e {AUTOGROUP} ]; then cat {AUTOGROUP}; fi"
    command = f"{yielding}; setsid --wait \"${{yielding[@]}}\" sh -c '{shown}'"
    said = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout.split()
    assert said[0] == str(min(os.nice(0) + 5, 19))
    if AUTOGROUP.exists() and os.geteuid() == 0:  # others may have to wait until they may write it again
        assert said[-1] == "5"


def test_what_counts_coverage_runs_only_what_decides() -> None:
    """Only the queue with the tests of pure code measures coverage; the other tests without servers run beside it."""
    counting = re.findall(r"^.*\s--cov\s.*$", SCRIPT, re.MULTILINE)
    others = re.findall(r"^start plain .*$", SCRIPT, re.MULTILINE)
    assert [("${decides[@]}" in line, "$serverless" in line) for line in counting] == [(True, True)]
    assert [("${decides[@]/#/--ignore=}" in line, "$serverless" in line) for line in others] == [(True, True)]


def test_a_stopped_run_shows_how_far_each_queue_came() -> None:
    """A run that is stopped prints what each unfinished queue had printed."""
    functions = SCRIPT[SCRIPT.index("outputs=") : SCRIPT.index("failed=0")]
    # The queue prints at the end as pytest does, when it is interrupted; then it has begun for certain.
    queue = "trap 'echo 3 failed; exit 2' INT; echo ...F; kill -TERM $1; sleep 60 & wait"
    script = f"{functions}\nbeside guest bash -c {shlex.quote(queue)} queue $$\njoin guest"
    stopped = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True)
    assert stopped.returncode == 143
    assert stopped.stdout.split("\n") == ["...F", "3 failed", ""]
    assert "the queue guest was not finished" in stopped.stderr
