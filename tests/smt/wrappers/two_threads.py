"""`python -I two_threads.py`: one thread stays where it was started, the other moves to CMK_CPUS_INFRA, as programs of CMK do."""

import os
import sys
import threading
import time


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def helper() -> None:
    """Move to the CPUs of CMK_CPUS_INFRA and stay there."""
    os.sched_setaffinity(0, {int(cpu) for cpu in os.environ["CMK_CPUS_INFRA"].split(",")})
    say("moved")
    time.sleep(1e6)


say(f"began on {','.join(map(str, sorted(os.sched_getaffinity(0))))}")
threading.Thread(target=helper).start()
time.sleep(1e6)
