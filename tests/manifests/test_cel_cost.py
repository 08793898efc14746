"""CPU cost of policies and match conditions on an API server, compared to objects that they do not match.

The baseline is a PodTemplate with the same content, which no policy and no webhook of corepin matches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.manifests.installed import PODS, Installed

pytestmark = pytest.mark.server

TEMPLATES = PODS.replace("pods", "podtemplates")
DEPLOYMENTS = "/apis/apps/v1/namespaces/demo/deployments"
TIMES_THE_BASELINE = 4  # 5 to 7 if CEL iterates over all entries
ATTEMPTS = 3  # because background work of the API server is measured too


def names(count: int) -> dict[str, Any]:
    """Return limits and requests with `count` resource names each."""
    some = {f"r{number:x}/x": "1" for number in range(count)}
    return {"resources": {"limits": some, "requests": some}}


def containers(count: int, **more: Any) -> list[dict[str, Any]]:
    """Return `count` containers."""
    return [{"name": f"c{number}", "image": "x", **more} for number in range(count)]


MAIN = [{"name": "main", "image": "x"}]


CROWDS: dict[str, dict[str, Any]] = {
    "resource names": {"spec": {"containers": containers(1, **names(30_000))}},
    "init containers": {"spec": {"containers": MAIN, "initContainers": containers(40_000)}},
}


def cpu_seconds(installed: Installed) -> float:
    """Return the CPU time that the API server has used."""
    flag = f"--secure-port={installed.api.url.rpartition(':')[2]}".encode()
    (process,) = [
        file.parent for file in Path("/proc").glob("[0-9]*/cmdline") if flag in _read(file).split(b"\0")
    ]
    user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # the process ended before the read
        return b""


def cost(installed: Installed, path: str, document: dict[str, Any]) -> float:
    """Return the API server's CPU time for a dry-run creation of an object."""
    before = cpu_seconds(installed)
    answer = installed.admin.send("POST", f"{path}?dryRun=All", {"metadata": {"name": "hostile"}, **document})
    assert answer.is_success, answer.text
    return cpu_seconds(installed) - before


def is_within(measured: Callable[[], float], alone: Callable[[], float]) -> bool:
    """Return whether one of ATTEMPTS measurements is below TIMES_THE_BASELINE."""
    return any(measured() < TIMES_THE_BASELINE * alone() for _ in range(ATTEMPTS))


@pytest.mark.parametrize("crowd", CROWDS)
def test_no_pod_costs_much_more_than_its_size(crowd: str, installed: Installed) -> None:
    """The policies' cost for a pod is in proportion to reading and validating it."""
    assert is_within(
        lambda: cost(installed, PODS, CROWDS[crowd]),
        lambda: cost(installed, TEMPLATES, {"template": CROWDS[crowd]}),
    )


def test_no_template_costs_much_more_than_its_size(installed: Installed) -> None:
    """The policies' cost for a workload is in proportion to its template."""
    labels = {"app": "x"}
    template = {**CROWDS["init containers"], "metadata": {"labels": labels}}
    workload = {"spec": {"selector": {"matchLabels": labels}, "template": template}}
    assert is_within(
        lambda: cost(installed, DEPLOYMENTS, workload),
        lambda: cost(installed, TEMPLATES, {"template": template}),
    )


def cost_of_change(installed: Installed, path: str) -> float:
    """Return the API server's CPU time for a dry run that adds an annotation."""
    before = cpu_seconds(installed)
    answer = installed.admin.patch(f"{path}?dryRun=All", {"metadata": {"annotations": {"mine": "1"}}})
    assert answer.is_success, answer.text
    return cpu_seconds(installed) - before


def test_no_update_costs_much_more_than_its_size(installed: Installed) -> None:
    """The policies' cost for an update of a large pod is in proportion to both versions."""
    spec = {"containers": MAIN, "initContainers": containers(400, **names(100))}
    for path, content in ((PODS, {"spec": spec}), (TEMPLATES, {"template": {"spec": spec}})):
        created = installed.admin.send("POST", path, {"metadata": {"name": "crowd"}, **content})
        assert created.is_success, created.text
    assert is_within(
        lambda: cost_of_change(installed, f"{PODS}/crowd"),
        lambda: cost_of_change(installed, f"{TEMPLATES}/crowd"),
    )
    for path in (PODS, TEMPLATES):
        installed.admin.send("DELETE", f"{path}/crowd", {"gracePeriodSeconds": 0})
