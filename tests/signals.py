"""Signals as children of tests must find them, however the run itself was started.

A shell starts `make test &` with SIGINT and SIGQUIT ignored, and `nohup` adds SIGHUP. Ignored and blocked signals
are inherited through exec, and then no test can end its child with Ctrl-C. A handler, even one that does nothing,
is not inherited.
"""

import signal
from types import FrameType

_FROM_TERMINALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def keep_from_children() -> None:
    """Unblock all signals, and keep ignoring those ignored at the start, by a handler: children get the default."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in _FROM_TERMINALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing."""
