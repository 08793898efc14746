"""The agent of `bench.nri`: real passes and the real plugin on a simulated node.

Runtime and cgroups are in memory, the checkpoint is a file. The machine has 256 CPUs; half of the containers
have exclusive CPUs, and each pass moves the other half, because one claim is added or removed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.kernel.sysfs import read_topology
from agent.nri.container_watch import NriContainerWatch
from agent.nri.plugin import Plugin
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.machines import materialise
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from agent.nri.wire import nri_pb2 as pb

MACHINE: Final = "epyc-9754"  # 128 cores with two threads each
CONTAINERS: Final = 250
OWNERS: Final = 120
EXCLUSIVE: Final = Wish("1", policy="exclusive")
SHARED: Final = Wish("500m")
QUIET_SECONDS: Final = 0.05


class TimedPlugin(Plugin):
    """Records the time of each creation."""

    def __init__(self) -> None:
        super().__init__(lambda _: False)
        self.seconds: list[float] = []

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        """Call the plugin, and record the time."""
        began = time.perf_counter()
        try:
            return super().create_container(pod, container)
        finally:
            self.seconds.append(time.perf_counter() - began)


def node_with(folder: Path, socket: Path, plugin: Plugin) -> FakeNode:
    """Return a node on which all containers run, and whose agent serves a socket."""
    node = FakeNode(folder / "state", read_topology(materialise(MACHINE, folder / "machine")))
    node.container_watch = NriContainerWatch(socket, plugin, FakeWatch(node))
    for number in range(CONTAINERS):
        node.add(f"pod-{number}", EXCLUSIVE if number < OWNERS else SHARED)
        node.start(f"pod-{number}")
    node.new_agent()
    return node


async def work(node: FakeNode, *, passes: bool) -> int:
    """Run passes, if requested, until stdin has input; return their number."""
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    done = 0
    await node.run_pass()
    while not ended.done():
        if passes:
            node.add("edited", EXCLUSIVE if done % 2 else SHARED)
            await node.run_pass()
            done += 1
        await asyncio.sleep(0 if passes else QUIET_SECONDS)
    return done


def main() -> None:
    """Serve, and print the handler's times at the end."""
    socket, folder, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    plugin = TimedPlugin()
    node = node_with(folder, socket, plugin)
    done = node.runner.run(work(node, passes=how == "passes"))
    print(json.dumps({"passes": done, "handler": plugin.seconds}))
    node.close()


if __name__ == "__main__":
    main()
