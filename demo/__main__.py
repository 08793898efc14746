"""Run the demo: `make demo`, or `.venv/bin/python -m demo`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from demo.pinning import PODS, show_pinning
from demo.show import shown
from demo.webhook import DemoFailed, corepin, webhook

if TYPE_CHECKING:
    from demo.webhook import Answer, Client

ROOT: Final = Path("examples")
MACHINE: Final = Path(__file__).with_name("two-sockets.json")
EXAMPLES: Final = (
    "cmk/exclusive-cores.yaml",
    "crane/sidecar.yaml",
    "smt/isolate.yaml",
    "smt/one-numa-node.yaml",
    "launcher/injected-proxy.yaml",
    "vmi/dedicated.yaml",
    "crane/refused-word.yaml",
    "cmk/refused-claimed-twice.yaml",
    "vmi/refused-unequal-cpus.yaml",
    "cmk/job-warned.yaml",
)


def main() -> int:
    """Show admission, the plan, and a real agent; return 1 with an error message if a result is unexpected."""
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="corepin-demo-") as directory:
            admitted, to_run = _admission(Path(directory))
            _planning(Path(directory), admitted)
            show_pinning(Path(directory), to_run)
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    print(f"Done in {time.monotonic() - started:.1f} s. The same without a cluster, for your own files:")
    print("  .venv/bin/corepin inject -f pod.yaml     what would be added")
    print("  .venv/bin/corepin validate -f pod.yaml   what would be refused, and why")
    print("  .venv/bin/corepin plan -f pod.yaml --topology machine.json   which CPUs it would get")
    print("  .venv/bin/corepin doctor                 what on this machine stands in the way")
    return 0


def _admission(directory: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Send the examples to a webhook and print its answers; return the pods to plan, and the pods to run by name."""
    with webhook(directory) as client:
        print(
            f"1. Admission: AdmissionReviews to `corepin webhook` at {client.http.base_url}, whose CA is a second old."
        )
        print("   + what it adds    x why it refuses    ! what it warns about\n")
        answers = [_create(client, number, ROOT / name) for number, name in enumerate(EXAMPLES, start=1)]
        to_run = {name: _admit(client, ROOT / f"{name.replace('-', '/')}.yaml").stored for name in PODS}
    print(f"The webhook answered {client.reviews} reviews, drained and ended.\n")
    planned = [answer.stored for answer in answers if answer.allowed and answer.stored["kind"] == "Pod"]
    return planned, to_run


def _create(client: Client, number: int, path: Path) -> Answer:
    """Send one example and show the answer."""
    answer = _admit(client, path)
    print(shown(number, path, answer), end="\n\n")
    return answer


def _admit(client: Client, path: Path) -> Answer:
    """Send one example; raise DemoFailed if its promised answer differs."""
    answer = client.create(yaml.safe_load(path.read_text(encoding="utf-8")))
    if f"# expect: {answer.verdict}" not in path.read_text(encoding="utf-8"):
        raise DemoFailed(f"{path} was {answer.verdict}, which it does not expect")
    return answer


def _planning(directory: Path, pods: list[dict[str, Any]]) -> None:
    """Print the CPUs that the admitted pods would get, in the order of their admission."""
    print(
        "2. Planning: the admitted pods on a machine with 2 sockets of 8 cores, 2 threads each (`corepin plan`).\n"
    )
    sys.stdout.flush()
    stored = directory / "admitted.yaml"
    stored.write_text(yaml.safe_dump_all(pods, sort_keys=False), encoding="utf-8")
    corepin("plan", "-f", str(stored), "--topology", str(MACHINE))
    print()


if __name__ == "__main__":
    sys.exit(main())
