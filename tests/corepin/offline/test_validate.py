"""`corepin validate`: verdicts as text and JSON, exit codes, and the same causes as the webhook's."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from corepin.cli import main
from kubeyaml.reader import read_yaml
from tests.corepin.documents import BAD_POD, CONFIG_MAP, CORES, DEPLOYMENT, POD, verdicts, written
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import Settings
from webhook.review import wire
from webhook.review.handler import Decider
from webhook.review.response import encode

if TYPE_CHECKING:
    from pathlib import Path


def test_valid_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pod is validated as if it were injected, with a warning for each mount; other objects are valid."""
    code, (pod, config_map) = verdicts(capsys, "-f", written(tmp_path, POD, CONFIG_MAP))

    assert code == 0
    assert pod["allowed"] is True
    assert (pod["kind"], pod["namespace"], pod["name"]) == ("Pod", "team", "fast")
    assert len(pod["warnings"]) == 2  # type: ignore[arg-type]
    assert config_map == {
        "kind": "ConfigMap",
        "namespace": "",
        "name": "c",
        "allowed": True,
        "causes": [],
        "warnings": [],
    }


def test_refused_pod_has_every_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each cause has reason, message and field; the exit code is 1 although another document is valid."""
    code, (_, pod) = verdicts(capsys, "-f", written(tmp_path, CONFIG_MAP, BAD_POD))

    causes: Any = pod["causes"]
    assert code == 1
    assert pod["allowed"] is False
    assert pod["name"] == "slow-..."
    assert {cause["field"] for cause in causes} == {
        "metadata.annotations[qos.gocrane.io/cpu-manager]",
        "metadata.annotations[smt-policy.corepin.io/pod]",
    }
    assert all(set(cause) == {"reason", "message", "field"} for cause in causes)


def test_text_is_one_block_for_each_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text has file, line, object and verdict, and below them causes and warnings."""
    source = written(tmp_path, BAD_POD, POD)

    assert main(["validate", "-f", source]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == [
        f"{source}:1: Pod slow-...: refused",
        f"{source}:9: Pod team/fast: valid",
    ]
    assert (
        "  metadata.annotations[qos.gocrane.io/cpu-manager]: corepin: 'exlusive' is not a policy: "
        "write one of none, exclusive, share"
    ) in lines
    assert any(line.startswith("  warning: spec.volumes: corepin: host directory") for line in lines)


def test_template_problems_are_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Problems of a workload's template are warnings with the full field path, and never refusals."""
    document = DEPLOYMENT.replace(": 1}", ": 0}")

    code, (deployment,) = verdicts(capsys, "-f", written(tmp_path, document))

    warnings: Any = deployment["warnings"]
    assert code == 0
    assert deployment["allowed"] is True
    assert any(
        warning.startswith(
            f"spec.template.spec.containers[0].resources.limits[{CORES}]: corepin: 0 is not a number"
        )
        for warning in warnings
    )


@pytest.mark.parametrize(("limits", "warned"), [("cpu: 2, nvidia.com/gpu: 1", 0), ("cpu: 2", 1)])
def test_a_template_that_names_a_device_may_require_cpus_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limits: str, warned: int
) -> None:
    """A device policy in a template has an effect only if the template's limits name a device."""
    document = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: trainer}}
spec:
  selector: {{matchLabels: {{app: trainer}}}}
  template:
    metadata:
      labels: {{app: trainer}}
      annotations: {{cpu-manager.corepin.io/pod: exclusive, device-policy.corepin.io/pod: require}}
    spec:
      containers: [{{name: main, image: x, resources: {{limits: {{{limits}, memory: 1Gi}}}}}}]
"""
    code, (deployment,) = verdicts(capsys, "-f", written(tmp_path, document))
    warnings: Any = deployment.get("warnings") or []
    assert code == 0
    assert sum("has no effect" in warning for warning in warnings) == warned


def test_what_the_api_server_refuses_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fractions of cores, and requests unlike limits, are refused here too; in a cluster the API server does it."""
    fraction = POD.replace(f"limits: {{{CORES}: 2}}", f"limits: {{{CORES}: 1.5}}")
    unequal = (
        POD.replace("limits: {", f"requests: {{{CORES}: 1}}, limits: {{")
        .replace("resources:\n      ", "resources: {")
        .replace(": 2}", ": 2}}")
    )

    code, found = verdicts(capsys, "-f", written(tmp_path, fraction, unequal))

    assert code == 1
    assert [[cause["field"] for cause in verdict["causes"]] for verdict in found] == [  # type: ignore[attr-defined]
        [f"spec.containers[0].resources.limits[{CORES}]"]
    ] * 2


def test_every_entry_of_a_list_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One verdict for each object of a list, in their order; an empty list has none and is valid."""
    bad = "- metadata: {name: a, annotations: {qos.gocrane.io/cpu-manager: x}}\n- metadata: {name: b}\n"

    code, found = verdicts(capsys, "-f", written(tmp_path, "apiVersion: v1\nkind: PodList\nitems:\n" + bad))

    assert code == 1
    assert [(verdict["kind"], verdict["name"], verdict["allowed"]) for verdict in found] == [
        ("Pod", "a", False),
        ("Pod", "b", True),
    ]
    assert verdicts(capsys, "-f", written(tmp_path, "apiVersion: v1\nkind: List\nitems: []\n")) == (0, [])


def test_causes_are_the_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Causes equal those of the validating webhook for the same object, word for word."""
    ((_, pod),) = read_yaml(BAD_POD)
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "kind": kind, "operation": "CREATE", "object": pod},
    }
    request = wire.decode(json.dumps(review).encode())
    served = json.loads(encode("u", Decider(Settings(), BUILT_IN).validate(request)))["response"]

    _, (found,) = verdicts(capsys, "-f", written(tmp_path, BAD_POD))

    assert found["causes"] == served["status"]["details"]["causes"]


def test_standard_input_and_files_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-f -` can be combined with files."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONFIG_MAP.encode())))

    code, found = verdicts(capsys, "-f", written(tmp_path, POD), "-f", "-")

    assert code == 0
    assert [verdict["kind"] for verdict in found] == ["Pod", "ConfigMap"]
