"""`corepin inject`: the mutating webhook's changes to documents of every shape; other content is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from corepin.cli import main
from kubeyaml.reader import read_yaml
from pinning.contract import GUARDED
from tests.corepin.documents import BAD_POD, CONFIG_MAP, CORES, DEPLOYMENT, POD, written
from webhook.rules.workloads import TEMPLATES, below

if TYPE_CHECKING:
    from pathlib import Path

INJECTED = "cmk.intel.com/resources-injected"
OFF = "sidecarLimits: off\n"


Inject = Callable[..., tuple[list[Any], str]]


@pytest.fixture
def inject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Inject:
    """Return the command, which prints documents and standard error."""

    def injected(*documents: str, flags: tuple[str, ...] = ()) -> tuple[list[Any], str]:
        source = ("-f", written(tmp_path, *documents)) if documents else ()
        assert main(["inject", *source, *flags]) == 0
        captured = capsys.readouterr()
        return [document for _, document in read_yaml(captured.out)], captured.err

    return injected


def cores_told(pod: Any) -> list[str]:
    """Return the values of CMK_NUM_CORES in a pod's containers."""
    entries = [entry for container in pod["spec"]["containers"] for entry in container.get("env", ())]
    return [entry["value"] for entry in entries if entry["name"] == "CMK_NUM_CORES"]


def test_pod_gets_the_contract_and_its_warnings(inject: Inject, tmp_path: Path) -> None:
    """The printed pod is complete; warnings about host directories go to standard error with file, line and pod."""
    (pod,), warnings = inject("# mine\n" + POD)

    assert pod["metadata"]["annotations"] == {INJECTED: "true", GUARDED: "true"}
    assert cores_told(pod) == ["2"]
    assert [line.partition(" /")[0] for line in warnings.splitlines()] == [
        f"{tmp_path}/documents.yaml:2: Pod team/fast: warning: spec.volumes: corepin: host directory"
    ] * 2


def test_pods_get_their_gate_and_templates_none(inject: Inject, tmp_path: Path) -> None:
    """A pod gets its gate, and a template does not, because its pods get theirs at creation."""
    config = tmp_path / "config.yaml"
    config.write_text("gate: true\ngateImage: registry.example/corepin:1\n")
    flags = ("--config", str(config))

    (pod, deployment), _ = inject(POD, DEPLOYMENT, flags=flags)

    assert [it["name"] for it in pod["spec"]["initContainers"]] == ["corepin-gate"]
    template = deployment["spec"]["template"]
    assert template["metadata"]["annotations"][INJECTED] == "true"
    assert "initContainers" not in template["spec"]
    assert main(["validate", "-f", written(tmp_path, POD, DEPLOYMENT), *flags]) == 0


def test_second_pass_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second `inject` on the output changes no byte and has no warning."""
    assert main(["inject", "-f", written(tmp_path, POD, DEPLOYMENT, CONFIG_MAP)]) == 0
    once = capsys.readouterr().out

    assert main(["inject", "-f", written(tmp_path, once)]) == 0

    again = capsys.readouterr()
    assert again.out == once
    assert again.err == ""


def test_keys_keep_their_order(inject: Inject) -> None:
    """Keys keep their order, and additions come last."""
    (pod, config_map), _ = inject(POD, CONFIG_MAP)

    assert list(pod) == ["apiVersion", "kind", "metadata", "spec"]
    assert list(pod["metadata"]) == ["namespace", "name", "annotations"]
    assert list(pod["spec"]["containers"][0])[:3] == ["name", "image", "resources"]
    assert list(config_map["data"]) == ["z", "a"]


@pytest.mark.parametrize(("group", "kind"), TEMPLATES)
def test_every_workload_is_completed_in_its_template(inject: Inject, group: str, kind: str) -> None:
    """The template gets all additions of its pods; the workload's other fields are unchanged."""
    path = TEMPLATES[group, kind]
    template: Any = {"spec": {"containers": [{"name": "a", "resources": {"limits": {CORES: 3}}}]}}
    for key in reversed(path):
        template = {key: template}
    document = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "w"}, **template}

    (completed,), warnings = inject(str(document).replace("'", '"'))

    assert cores_told(below(completed, path)) == ["3"]
    assert completed["metadata"] == {"name": "w"}
    assert f"{kind} w: warning: {'.'.join(path)}.spec.volumes: corepin: " in warnings


@pytest.mark.parametrize(
    "document",
    [
        CONFIG_MAP,
        "apiVersion: apps/v1\nkind: Deployment\nspec: {}\n",
        "apiVersion: apps/v1\nkind: Deployment\nspec: {template: null}\n",
        "apiVersion: example.com/v1\nkind: Pod\nspec: {containers: 7}\n",
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nspec: {}\n",
    ],
    ids=["other kind", "no template", "null template", "foreign Pod", "VMI"],
)
def test_other_documents_pass_through(inject: Inject, document: str) -> None:
    """Documents without a pod are printed as they are."""
    ((_, before),) = read_yaml(document)

    assert inject(document) == ([before], "")


def test_entries_of_lists_are_completed(inject: Inject) -> None:
    """Entries of untyped, typed and nested lists are injected in place."""
    pods = "apiVersion: v1\nkind: PodList\nitems:\n- spec: {containers: [{name: a, resources: {limits: {%s: 1}}}]}\n"
    nested = (
        "apiVersion: v1\nkind: List\nitems:\n"
        + _entry(POD)
        + _entry("apiVersion: v1\nkind: List\nitems: []\n")
    )

    (typed, untyped), _ = inject(pods % CORES, nested)

    assert cores_told(typed["items"][0]) == ["1"]
    assert "kind" not in typed["items"][0]
    assert cores_told(untyped["items"][0]) == ["2"]
    assert untyped["items"][1] == {"apiVersion": "v1", "kind": "List", "items": []}


def _entry(document: str) -> str:
    first, *others = document.splitlines()
    return "\n".join([f"- {first}", *(f"  {line}" for line in others)]) + "\n"


def test_aliased_containers_are_completed_apart(inject: Inject) -> None:
    """Two containers written once with an anchor each get their own cores."""
    text = POD.replace("- name: app", "- &one\n    name: app") + "  - {<<: *one, name: b}\n"

    (pod,), _ = inject(text)

    assert cores_told(pod) == ["2", "2"]


def test_a_pod_that_would_be_refused_is_injected(inject: Inject) -> None:
    """A pod that the validating webhook would refuse is injected, without a verdict."""
    (pod,), _ = inject(BAD_POD)

    assert pod["metadata"]["annotations"]["qos.gocrane.io/cpu-manager"] == "exlusive"


def test_one_bad_document_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If one document is unreadable nothing is printed, since a pipe would apply half of the output."""
    assert (
        main(["inject", "-f", written(tmp_path, POD, POD.replace("name: fast", "annotations: {a: 1}"))]) == 2
    )

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_several_files_are_one_output(inject: Inject, tmp_path: Path) -> None:
    """`-f` may be repeated; the documents come in the order of the flags."""
    (tmp_path / "b").mkdir()
    first, second = written(tmp_path, CONFIG_MAP), written(tmp_path / "b", POD)

    documents, _ = inject(flags=("-f", first, "-f", second))

    assert [document["kind"] for document in documents] == ["ConfigMap", "Pod"]


def test_mutations_file_is_the_servers(inject: Inject, tmp_path: Path) -> None:
    """`--mutations` replaces the built-in additions."""
    mutations = tmp_path / "mutations.yaml"
    mutations.write_text("mutations: {perContainer: {env: [{name: CMK_PROC_FS, value: /host/proc}]}}")

    (pod,), warnings = inject(POD, flags=("--mutations", str(mutations)))

    assert pod["spec"]["containers"][0]["env"][0] == {"name": "CMK_PROC_FS", "value": "/host/proc"}
    assert "volumes" not in pod["spec"]
    assert warnings == ""


def test_configuration_is_the_servers(inject: Inject, tmp_path: Path) -> None:
    """`--config` reaches the rules: without isolated cores nothing is charged for idle siblings."""
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {annotations: {smt-policy.corepin.io/pod: isolate}}\n"
    pod += "spec: {containers: [{name: a, resources: {limits: {cpu: 2}}}]}\n"
    config = tmp_path / "config.yaml"
    config.write_text("isolatedCores: false\n")

    (charged,), _ = inject(pod)
    (free,), _ = inject(pod, flags=("--config", str(config)))

    assert charged["spec"]["containers"][0]["resources"]["limits"]["corepin.io/isolated-cores"] == "2"
    assert free["spec"]["containers"][0]["resources"]["limits"] == {"cpu": 2}


@pytest.mark.parametrize(
    ("flag", "content", "message"),
    [
        ("--config", "sidecarlimits: off\n", "sidecarlimits"),
        ("--mutations", "mutations: {perContainer: {name: x}}\n", "perContainer.name"),
        ("--config", None, "does not exist"),
    ],
    ids=["unknown key", "bad mutations", "absent"],
)
def test_bad_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, content: str | None, message: str
) -> None:
    """The file and the reason are named in one line, exit code 2."""
    path = tmp_path / "f.yaml"
    if content is not None:
        path.write_text(content)

    assert main(["inject", "-f", written(tmp_path, POD), flag, str(path)]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"corepin inject: {path}")
    assert message in error
    assert error.count("\n") == 1
