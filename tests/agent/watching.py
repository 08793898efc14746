"""`python -m tests.agent.watching URL CA_FILE TOKEN_FILE NODE`: the agent's pod watch in its own process.

After each change it prints the number of known pods and of seen versions, and its memory.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import NamedTuple

import agent.main  # noqa: F401 what the agent's process has loaded
from agent.config import USER_AGENT
from agent.pod_watch import PodWatch
from apiserver.access import Access
from apiserver.client import Api
from pinning.planning.observed import SeenPod


class Told(NamedTuple):
    """One line of output: pods, versions, and resident memory in kB at the peak and now."""

    pods: int
    versions: int
    most: int
    now: int


def memory() -> tuple[int, int]:
    """Return the peak and the current resident memory of this process in kB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]), int(lines["VmRSS"].split()[0])


class Watching:
    """Reads pods as the agent's observer does, and prints one line for each change."""

    def __init__(self, source: PodWatch) -> None:
        self._source = source
        self._seen: dict[str, tuple[object, SeenPod]] = {}
        self._versions = 0

    def tell(self) -> None:
        """Read the new pods and print one line."""
        before, self._seen = self._seen, {}
        for uid, pod in self._source.pods().items():
            known = before.get(uid)
            if known and known[0] is pod:
                self._seen[uid] = known
            else:
                self._seen[uid] = (pod, SeenPod.of(pod))
                self._versions += 1
        line = Told(len(self._seen), self._versions, *memory())
        sys.stdout.write(" ".join(map(str, line)) + "\n")
        sys.stdout.flush()


async def main(url: str, ca_file: str, token_file: str, node: str) -> None:
    """Watch until killed."""
    source = PodWatch(Api(Access(url, Path(ca_file), Path(token_file)), USER_AGENT), node)
    await source.watch(Watching(source).tell)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
