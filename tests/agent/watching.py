"""`python -m tests.agent.watching URL CA_FILE TOKEN_FILE NODE`: the agent's modules, its watch of pods, and little else.

After every change it prints how many pods are known, how many versions of them were seen, and its own memory.
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
    """One line: what is known, and the resident memory of the process in kB."""

    pods: int
    versions: int
    most: int
    now: int


def memory() -> tuple[int, int]:
    """Return the resident memory of this process in kB: the most there ever was, and what there is."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]), int(lines["VmRSS"].split()[0])


class Watching:
    """Reads the pods as the observer of the agent does, and tells of it."""

    def __init__(self, source: PodWatch) -> None:
        self._source = source
        self._seen: dict[str, tuple[object, SeenPod]] = {}
        self._versions = 0

    def tell(self) -> None:
        """Read what is new and print one line."""
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
