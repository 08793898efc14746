"""The third part of the demo: a real agent pins processes on this machine, and /proc shows their CPUs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from demo.agent import LocalAgent
from pinning.contract import CRANE_CPU_MANAGER
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from pathlib import Path

FAST, PLAIN, LATE = "demo-fast", "demo-plain", "demo-late"
PODS: Final = (FAST, PLAIN, LATE)  # the pods of examples/demo


def show_pinning(directory: Path, pods: dict[str, dict[str, Any]]) -> None:
    """Start the pods, show their CPUs, and change one while it runs."""
    print("3. Pinning: `corepin agent --runtime local` starts the pods of examples/demo on this machine.\n")
    if len(os.sched_getaffinity(0)) == 1:
        print("This machine has 1 CPU, which stays for everyone: there is none to give away. Left out.\n")
        return
    agent = LocalAgent(directory)
    with agent.running():
        _Show(agent, pods).run()
    print("\nThe manifests are gone; so are their processes and cgroups. The agent has ended.\n")


class _Show:
    """The printed lines, in order."""

    def __init__(self, agent: LocalAgent, pods: dict[str, dict[str, Any]]) -> None:
        self._agent = agent
        self._pods = pods

    def run(self) -> None:
        sets = self._agent.state()["sets"]
        everyone, free = CPUSet.parse(sets["universe"]), CPUSet.parse(sets["allocatable"])
        print(
            f"CPUs {everyone} are here, by {self._agent.state()['runtime']}. {sets['reserved']} stays reserved."
        )
        count = max(1, len(free) // 2)
        print(
            f"{FAST} asks for {count} exclusive, {PLAIN} for nothing, {LATE} for {len(free)} exclusive, which is too late."
        )
        self._begin(count, len(free))
        print("\n$ corepin map")
        sys.stdout.flush()
        self._agent.map()
        print(f"\n/proc says ({FAST} at its first instruction: {self._agent.first_words(FAST).split()[-1]}):")
        self._show()
        for policy in ("share", "none"):
            self._switch(policy)

    def _begin(self, count: int, every: int) -> None:
        """Start the pods one after the other, each once the previous one runs on its CPUs."""
        for name, cpus in ((PLAIN, None), (FAST, count), (LATE, every)):
            if cpus:
                _ask(self._pods[name], cpus)
            self._agent.put(self._pods[name])
            self._agent.until(f"{name} runs", lambda name=name: self._is_settled(name))  # type: ignore[misc]
        self._agent.until("fast wrote", lambda: bool(self._agent.first_words(FAST)))

    def _is_settled(self, name: str) -> bool:
        """Return whether /proc shows the agent's CPUs for a pod."""
        container, seen = self._agent.container(name), self._agent.seen(name)
        return bool(
            container
            and "applied" in container
            and seen
            and container["cpus"] == container["applied"]["cpus"] == seen.cpus
        )

    def _switch(self, policy: str) -> None:
        """Edit the manifest of the running pod, and wait until its CPUs have changed."""
        pod = self._pods[FAST]
        before = self._agent.seen(FAST)
        pod["metadata"]["annotations"][CRANE_CPU_MANAGER] = policy
        self._agent.put(pod)
        wanted = None if policy == "none" else policy
        seconds = self._agent.until(
            f"fast is {policy}",
            lambda: self._agent.container(FAST).get("policy") == wanted and all(map(self._is_settled, PODS)),
        )
        after = self._agent.seen(FAST)
        same = "the same process" if before and after and before.pid == after.pid else "ANOTHER PROCESS"
        print(f"\n{FAST} becomes `{policy}` by an edit of its manifest ({same}, {seconds * 1000:.0f} ms):")
        self._show()

    def _show(self) -> None:
        for name in PODS:
            seen, container = self._agent.seen(name), self._agent.container(name)
            if seen is None or not container:
                continue
            policy = container.get("policy") or "no CPUs of its own"
            print(
                f"  {name:<10} pid {seen.pid:<7} Cpus_allowed_list {seen.cpus:<8} {policy}{_refused(container)}"
            )


def _ask(pod: dict[str, Any], cpus: int) -> None:
    resources = pod["spec"]["containers"][0]["resources"]
    resources["requests"]["cpu"] = resources["limits"]["cpu"] = str(cpus)


def _refused(container: dict[str, Any]) -> str:
    refusal = container.get("refusal")
    return f"; REFUSED: {refusal['message'].partition(':')[0]}" if refusal else ""
