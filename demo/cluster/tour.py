"""The printed tour of the cluster: access, and commands to copy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pinning.contract import SMT_POLICY, SMTPolicy
from tests.environments.node.containerd import FOREVER, IMAGE

if TYPE_CHECKING:
    from pathlib import Path

WEB, LATE = "web", "late"
LAST_LINE: Final = "Ctrl-C here ends it and leaves nothing behind."


class Step(NamedTuple):
    """A command of the tour with its explanation."""

    command: str
    shows: str


def steps(folder: Path) -> tuple[Step, ...]:
    """Return the tour for the pods in a folder."""
    return (
        Step(f"kubectl apply -f {folder / WEB}.json", "a pod that wants one core for itself"),
        Step("kubectl corepin map", "every core of the node, and who owns it"),
        Step(f"kubectl corepin why {WEB}", "what it asked for, what it got, and how the kernel proves it"),
        Step(f"kubectl apply -f {folder / LATE}.json", "a pod that wants every core there is"),
        Step(f"kubectl corepin why {LATE}", "it waits, and this is what for"),
        Step(f"kubectl delete pod {WEB}", "a core comes free: ask why and map once more"),
    )


def write_pods(folder: Path, cores: int) -> None:
    """Write the pods of the tour: one claims a core, the other all allocatable ones."""
    for name, count in ((WEB, 1), (LATE, cores)):
        (folder / f"{name}.json").write_text(json.dumps(pod(name, count), indent=2) + "\n")


def pod(name: str, cores: int) -> dict[str, Any]:
    """Return a pod that claims whole cores, with one CPU of each."""
    amounts = {"cpu": str(cores), "memory": "16Mi"}
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(FOREVER),
        "resources": {"requests": amounts, "limits": amounts},
    }
    spec = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "dnsPolicy": "Default",  # avoids a DNS warning in the output of `why`
        "terminationGracePeriodSeconds": 1,
    }
    annotations = {f"{SMT_POLICY}/pod": SMTPolicy.ISOLATE}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def guide(folder: Path, kubeconfig: Path, programs: tuple[Path, ...], page: str) -> str:
    """Return the tour's text."""
    shown = steps(folder)
    width = max(len(step.command) for step in shown)
    lines = [f"{step.command:<{width}}  # {step.shows}" for step in shown]
    path = ":".join(map(str, programs))
    exported = f"export KUBECONFIG={kubeconfig} PATH={path}:$PATH"
    return "\n".join(
        (
            *("", f"The cluster is there, and its page at {page}", "In another terminal:", ""),
            *(f"  {exported}", ""),
            *(f"  {line}" for line in lines),
            *("", LAST_LINE),
        )
    )
