"""`python -m tests.vm.look PID`: read a machine's threads as the agent does, with the caller's capabilities."""

from __future__ import annotations

import json
import os
import sys

from agent.kernel.procfs import started
from agent.vm.shared_reads import Roots, SharedReads
from agent.vm.threads import read_threads
from pinning.guests.threads import VMM


def looked(pid: int) -> dict[str, object]:
    """Pin each identified vCPU thread to CPU 0; return the ids and the source of the identification."""
    found = read_threads(SharedReads(Roots()), VMM(pid, started(pid), "qemu"))
    for tid in found.vcpus:
        os.sched_setaffinity(tid, {0})
    return {"toldBy": found.identified_by, "reason": found.reason, "vcpus": found.vcpus}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(looked(int(sys.argv[1]))))
