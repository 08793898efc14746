"""The agent with counters of passes, runtime calls and machine reads, for `bench.pod_cost`.

`python -m bench.counted_agent COUNTS FLAGS...` writes the counts to the file COUNTS as JSON at each SIGUSR1.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent import grpc_calls
from agent.kernel.machine import NodeMachine
from agent.local import folder_events
from agent.reconcile.reconciler import Reconciler
from corepin.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable

counts: Counter[str] = Counter()
COUNTED: Final[tuple[tuple[type, str, str], ...]] = (
    (Reconciler, "run_pass", "passes"),
    (NodeMachine, "topology", "topology reads"),
    (NodeMachine, "universe", "universe reads"),
    (NodeMachine, "pod_root", "look-ups of the cgroup root"),
)


def counting(call: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
    """Return a function that counts and calls another one."""

    @wraps(call)
    def counted(*arguments: Any, **options: Any) -> Any:
        counts[name(*arguments)] += 1
        return call(*arguments, **options)

    return counted


def count_everything() -> None:
    """Install all counters."""
    folder_events.LOOK_SECONDS = 3600.0  # type: ignore[misc] # a watch of the API server looks at no manifests
    for owner, method, name in COUNTED:
        setattr(owner, method, counting(getattr(owner, method), lambda *_, name=name: name))
    asked = grpc_calls.Calls._asked  # noqa: SLF001 each call of the runtime passes here
    grpc_calls.Calls._asked = counting(asked, lambda _, method, *__: f"call {method}")  # type: ignore[method-assign] # noqa: SLF001


def run() -> None:
    """Run the agent with the flags after the file name."""
    file = Path(sys.argv[1])

    def write(*_: object) -> None:
        new = file.with_suffix(".new")
        new.write_text(json.dumps(counts))
        new.replace(file)

    signal.signal(signal.SIGUSR1, write)
    count_everything()
    sys.argv[1:] = ["agent", *sys.argv[2:]]
    sys.exit(main())


if __name__ == "__main__":
    run()
