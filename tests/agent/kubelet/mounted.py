"""The agent's end in a mount namespace where the kubelet's state file is mounted alone, as in its pod.

Arguments: a folder, the policy in the file, and the kind of change. Prints the reason of the end.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from agent import main as agent_main
from agent.errors import Refused
from agent.reconcile.agenda import Agenda

LOOK_SECONDS = 0.01


async def work(agenda: Agenda, state: Path, mounted: Path, change: str) -> None:
    """Run the agenda and change the kubelet's file while the agent runs, and run on until the agent can have noticed."""
    looking = asyncio.create_task(agenda.run())
    await asyncio.sleep(LOOK_SECONDS)
    if change == "replaced":
        new = state.with_name("new")
        new.write_text(json.dumps({"policyName": "static"}))
        new.rename(state)
    elif change == "removed":
        state.unlink()
    assert mounted.exists()
    for _ in range(
        50
    ):  # turns of the loop, because a process without a CPU looks at nothing while time passes
        await asyncio.sleep(LOOK_SECONDS)
    looking.cancel()


def main(folder: Path, policy: str, change: str) -> str:
    """Return why the agent ended, or that it did not."""
    agent_main.LOOK_SECONDS = LOOK_SECONDS  # type: ignore[attr-defined]
    state, mounted = folder / "kubelet", folder / "cpu_manager_state"
    state.write_text(json.dumps({"policyName": policy}))
    mounted.touch()
    subprocess.run(["mount", "--bind", state, mounted], check=True)
    try:
        agenda = Agenda()
        asyncio.run(agent_main._serve_until_outdated(work(agenda, state, mounted, change), agenda, mounted))
    except Refused as problem:
        return str(problem)
    return "worked on"


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1]), *sys.argv[2:]))
