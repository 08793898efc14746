"""`python -I two_threads.py`: one thread stays where it was started, the other moves to CMK_CPUS_INFRA, as programs of CMK do."""

import os
import sys
import threading
import time


def helper() -> None:
    """Move, and stay there."""
    os.sched_setaffinity(0, {int(cpu) for cpu in os.environ["CMK_CPUS_INFRA"].split(",")})
    sys.stdout.write("moved\n")
    sys.stdout.flush()
    time.sleep(1e6)


threading.Thread(target=helper).start()
time.sleep(1e6)
