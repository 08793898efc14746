"""In a mount namespace of its own: an agent's work beside a state file that is mounted alone, as in its pod.

Arguments: a folder, the policy in the file, and the kind of change. Writes how the work ended.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from agent import main as agent_main
from agent.errors import Refused


async def work(state: Path, mounted: Path, change: str) -> None:
    """Change the kubelet's file while the agent works, and work on for longer than the agent may need to see it."""
    await asyncio.sleep(0.01)
    if change == "replaced":
        new = state.with_name("new")
        new.write_text(json.dumps({"policyName": "static"}))
        new.rename(state)
    elif change == "removed":
        state.unlink()
    assert mounted.exists()
    await asyncio.sleep(0.5)


def main(folder: Path, policy: str, change: str) -> str:
    """Return why the agent ended, or that it did not."""
    agent_main.LOOK_SECONDS = 0.01  # type: ignore[attr-defined]
    state, mounted = folder / "kubelet", folder / "cpu_manager_state"
    state.write_text(json.dumps({"policyName": policy}))
    mounted.touch()
    subprocess.run(["mount", "--bind", state, mounted], check=True)
    try:
        asyncio.run(agent_main._serve_until_outdated(work(state, mounted, change), mounted))
    except Refused as problem:
        return str(problem)
    return "worked on"


if __name__ == "__main__":
    sys.stdout.write(main(Path(sys.argv[1]), *sys.argv[2:]))
