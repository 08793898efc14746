"""Children of tests can be interrupted, also when the run was started in a script's background."""

import subprocess
import sys

import pytest

CHILD = "import subprocess; subprocess.run(['grep', '-E', '^Sig(Blk|Ign)', '/proc/self/status'], check=True)"
BACKGROUND = "import signal\nfor number in (1, 2, 3, 15): signal.signal(number, signal.SIG_IGN)\n"
BLOCKED = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])\n"
RESTORED = "from tests.signals import keep_from_children\nkeep_from_children()\n"
TERMINAL_SIGNALS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14


def inherited(code: str) -> int:
    """Return the signals of terminals that a child of a program finds ignored or blocked."""
    done = subprocess.run(
        [sys.executable, "-c", code + CHILD], capture_output=True, text=True, check=True, timeout=60
    )
    found = 0
    for line in done.stdout.splitlines():
        found |= int(line.split()[1], 16)
    return found & TERMINAL_SIGNALS


@pytest.mark.parametrize("start", [BACKGROUND, BLOCKED])
def test_children_find_the_default_signals(start: str) -> None:
    """Children do not inherit signals that a background job or a parent ignores or blocks."""
    assert inherited(start)
    assert inherited(start + RESTORED) == 0


def test_this_run_passes_nothing_on() -> None:
    """The run that this test is part of has done so."""
    assert inherited("") == 0
