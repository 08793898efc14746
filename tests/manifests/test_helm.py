"""The Helm chart: it renders the same objects as the kustomize overlays, and can be installed and upgraded."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.chart import CHART, ChartIncomplete, chart_files, combined, written
from scripts.chart_values import BASE, OVERLAYS
from tests.environments.server.catalog import HELM, KUBECTL, KUBERNETES
from tests.environments.server.start import require, start_servers
from tests.environments.waiting import until_equal
from tests.manifests.guide import blocks, section, shell
from tests.manifests.rendered import AGENT, ROOT, SYSTEM, Object, objects, parsed, renamed, text_of
from tests.manifests.rotated import bundles, issued, rotate
from tests.tables import table

pytestmark = pytest.mark.server  # uses helm and kubectl

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    """Run helm without a cluster."""
    (command,) = require(HELM)
    return subprocess.run(
        [str(command), *args], env={"HOME": "/nonexistent"}, capture_output=True, text=True, check=False
    )


def rendered(*args: str) -> list[Object]:
    """Return the objects of the chart."""
    done = helm("template", "corepin", str(CHART), *args)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [it for it in parsed(done.stdout) if it]


def of_overlay(name: str) -> tuple[str, ...]:
    """Return helm's flag for the values of an overlay."""
    return () if name == BASE else ("-f", str(CHART / f"values/{name}.yaml"))


def by_identity(some: list[Object]) -> dict[tuple[str, str | None, str], Object]:
    """Return objects by kind, namespace and name."""
    found = {(it["kind"], it["metadata"].get("namespace"), it["metadata"]["name"]): it for it in some}
    assert len(found) == len(some)
    return found


def leaves(values: Object, path: str = "") -> Iterator[str]:
    """Yield the name of every value that values.yaml offers, e.g. "webhook.replicas"."""
    for key, value in values.items():
        is_group = path == "" and isinstance(value, dict)
        yield from leaves(value, f"{key}.") if is_group else (f"{path}{key}",)


def test_generated_files_are_up_to_date() -> None:
    """The chart is what `make chart` writes from the manifests."""
    require(KUBECTL)
    generated = chart_files()
    assert written() == generated.keys()
    for path, text in generated.items():
        assert (CHART / path).read_text(encoding="utf-8") == text, f"{CHART / path}: run `make chart`"


def test_every_overlay_is_in_the_chart() -> None:
    """Every overlay has its file of values."""
    there = {path.parent.name for path in ROOT.glob("*/kustomization.yaml")}
    assert there - {"cmk-namespace"} == OVERLAYS


@table(
    "base, other, message",
    {
        "value": ({"spec": {"hostPID": True}}, {"spec": {"hostPID": False}}, "DaemonSet x spec hostPID"),
        "list": ({"args": ["a"]}, {"args": ["a", "b"]}, "DaemonSet x args: the overlays differ"),
        "order": ({"env": [{"name": "a"}, {"name": "b"}]}, {"env": [{"name": "b"}, {"name": "a"}, {"name": "c"}]}, "DaemonSet x env: the overlays have their items in another order"),
        "key": ({}, {"spec": {}}, "no value of the chart .* only these overlays have: observe"),
    },
)  # fmt: skip
def test_an_unknown_difference_of_an_overlay_is_an_error(base: Object, other: Object, message: str) -> None:
    """A change in an overlay for which the chart has no value is an error."""
    with pytest.raises(ChartIncomplete, match=message):
        combined({BASE: base, "observe": other}, "DaemonSet x")


@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_helm_renders_what_kustomize_renders(name: str) -> None:
    """Helm and kustomize render the same objects."""
    assert by_identity(rendered(*of_overlay(name))) == by_identity(objects(name))


@pytest.mark.parametrize(
    "names",
    [
        ("hardened", "cert-manager", "cmk", "monitoring", "node-watch", "nri", "vm-probe"),
        ("own-certificate", "observe", "monitoring"),
        ("nri", "priority-quota", "counted", "guard", "dashboard"),
    ],
    ids=" ".join,
)
def test_components_go_together_as_files_of_values_do(names: tuple[str, ...], tmp_path: Path) -> None:
    """Several components on one base equal their files of values, in the same order."""
    (tmp_path / "manifests").symlink_to(ROOT.absolute())
    (tmp_path / "mine").mkdir()
    components = [f"../manifests/components/{name}" for name in names]
    folder = {"resources": ["../manifests/base"], "components": components}
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(folder))
    flags = [flag for name in names for flag in of_overlay(name)]
    expected = parsed(text_of(tmp_path / "mine"))
    assert by_identity(rendered(*flags)) == by_identity(expected)


@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_other_namespaces_reach_every_place(name: str, tmp_path: Path) -> None:
    """With other namespaces the chart renders the same as kustomize with these namespaces in names.yaml."""
    others = ("--set", "namespaces.system=one,namespaces.agent=two")
    expected = parsed(renamed(name, "one", "two", tmp_path))
    assert by_identity(rendered(*of_overlay(name), *others)) == by_identity(expected)


@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_lint_finds_nothing(name: str) -> None:
    """Helm lint reports no error and no warning."""
    done = helm("lint", "--strict", str(CHART), *of_overlay(name))
    assert done.returncode == 0, done.stdout + done.stderr


@table(
    "value, message",
    {
        "unknown": ("webhook.replica=3", "at '/webhook': additional properties 'replica' not allowed"),
        "unknown at the top": ("hardened=true", "additional properties 'hardened' not allowed"),
        "type": ("webhook.replicas=two", "at '/webhook/replicas': got string, want integer"),
        "too few": ("webhook.replicas=0", "at '/webhook/replicas': minimum: got 0, want 1"),
        "no boolean": ("monitoring.enabled=yes", "at '/monitoring/enabled': got string, want boolean"),
        "word": ("failurePolicy=fail", "at '/failurePolicy': value must be one of 'Ignore', 'Fail'"),
        "certificates": ("certificates=own", "'corepin-certs', 'cert-manager', 'own-certificate'"),
        "tag": ("image.repository=corepin:1", "at '/image/repository': 'corepin:1' does not match"),
        "digest": ("image.digest=abc", "at '/image/digest': 'abc' does not match"),
        "taken away": ("agent.resources=null", "at '/agent': missing property 'resources'"),
        "URL for a path": ("agent.runtimeSocket=unix:///run/x", "at '/agent/runtimeSocket'"),
        "taint": ("agent.taint=mine", "'', 'cmk', 'overcommit', 'cmk,overcommit'"),
        "in a list": ("agent.tolerations[0].efect=x", "additional properties 'efect' not allowed"),
        "name": ("namespaces.agent=Agent", "at '/namespaces/agent': 'Agent' does not match"),
        "one namespace for both": ("namespaces.agent=corepin-system", "give two names"),
        "its controllers": ("namespaces.agent=kube-system", 'namespaces.agent: "kube-system" is Kubernetes'),
        "everybody's": ("namespaces.system=default", 'namespaces.system: "default" is Kubernetes'),
        "a guard of nobody": ("guard.enabled=true", "set agent.nri to true"),
    },
)  # fmt: skip
def test_wrong_values_are_refused(value: str, message: str) -> None:
    """A wrong value is refused with its name and what is expected."""
    done = helm("template", "corepin", str(CHART), "--set", value)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stdout == ""


def test_every_value_is_used() -> None:
    """Every value is used in a template, and the schema has exactly the values."""
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    for name in leaves(VALUES):
        used = name.removeprefix("image") if name.startswith("image.") else f".Values.{name}"
        assert re.search(rf"{re.escape(used)}\b", templates), name
    known = SCHEMA["properties"]
    assert known.keys() == VALUES.keys() | {"global"}
    for group, values in VALUES.items():
        if isinstance(values, dict):
            assert known[group]["properties"].keys() == values.keys() == set(known[group]["required"])


def pods(*args: str) -> dict[str, Any]:
    """Return the specifications of the chart's pods, by the name of the workload."""
    return {
        it["metadata"]["name"]: it["spec"]["template"]["spec"]
        for it in rendered(*args)
        if it["kind"] in {"Deployment", "DaemonSet"}
    }


def test_image_of_ones_own() -> None:
    """Repository, tag and pull secrets are set in every pod, and a digest takes precedence over the tag."""
    repository, digest = "registry.example:5000/corepin", f"sha256:{'0' * 64}"
    own = ("--set", f"image.repository={repository},image.tag=v2,imagePullSecrets[0].name=registry")
    for image, flags in (
        (f"{repository}:v2", ()),
        (f"{repository}@{digest}", ("--set", f"image.digest={digest}")),
    ):
        for pod in pods(*own, *flags).values():
            assert pod["containers"][0]["image"] == image
            assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_choices_of_the_guide_render(tmp_path: Path) -> None:
    """Several values files can be combined, and a configuration file can be set as the agents' configuration."""
    (choices,) = [block for block in blocks("console", section("Helm")) if "helm install" in block]
    own = tmp_path / "my-agent.yaml"
    own.write_text("smtPolicy: require # 'as' \"it\" stands: {{ .Values }} <&> \\n é\n", encoding="utf-8")
    flags = shlex.split(choices.replace("\\\n", "").replace("my-agent.yaml", str(own)))[4:]
    there = by_identity(rendered(*flags))
    assert there[("ConfigMap", AGENT, "corepin-agent")]["data"]["config.yaml"] == own.read_text(
        encoding="utf-8"
    )
    (entry,) = there[("MutatingWebhookConfiguration", None, "zz-corepin")]["webhooks"]
    assert entry["failurePolicy"] == "Fail"
    assert ("PrometheusRule", SYSTEM, "corepin") in there


def test_groups_of_nodes_are_keys_of_the_agents_config_map() -> None:
    """Each group of `agent.groups` is a key of the ConfigMap with its text unchanged; an invalid name is refused."""
    there = by_identity(
        rendered(
            "--set-string", "agent.groups.big=reserved: 0-3 # {{ }}", "--set-string", "agent.groups.a_B\\.c=x"
        )
    )
    data = there[("ConfigMap", AGENT, "corepin-agent")]["data"]
    assert data.keys() == {"config.yaml", "config.big.yaml", "config.a_B.c.yaml"}
    assert data["config.big.yaml"] == "reserved: 0-3 # {{ }}"
    assert helm("template", "corepin", str(CHART), "--set-string", "agent.groups.-a=x").returncode != 0


def test_places_for_pods() -> None:
    """`agent.nodeSelector` and `agent.tolerations` change the agent's pods, and no other component's."""
    tolerations = ("--set-json", 'agent.tolerations=[{"key":"a"}]')
    chosen = pods("--set", "agent.nodeSelector.pool=fast", *tolerations)
    assert chosen["corepin-agent"]["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "fast"}
    assert chosen["corepin-agent"]["tolerations"] == [{"key": "a"}]
    for other in ("corepin-webhook", "corepin-certs"):
        assert chosen[other]["nodeSelector"] == {"kubernetes.io/os": "linux"}
        assert chosen[other]["tolerations"] == VALUES[other.removeprefix("corepin-")]["tolerations"]


def test_another_runtime() -> None:
    """The runtime socket's value reaches the agent, and its directory is mounted at the same path."""
    pod = pods("--set", "agent.runtimeSocket=/run/crio/crio.sock")["corepin-agent"]
    (container,) = pod["containers"]
    assert {"name": "COREPIN_RUNTIME_ENDPOINT", "value": "/run/crio/crio.sock"} in container["env"]
    assert "/run/crio" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert "/run/crio" in [volume.get("hostPath", {}).get("path") for volume in pod["volumes"]]


def test_versions_agree() -> None:
    """Chart, image and program have one version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = Path("pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{chart["version"]}"\n' in project
    assert chart["appVersion"] == chart["version"]


OURS = (
    "all,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets,"
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)


@pytest.mark.parametrize("version", list(KUBERNETES))
def test_helm_installs_upgrades_and_removes(version: str, tmp_path: Path) -> None:
    """The guide's commands install, upgrade and remove the chart; certificates survive upgrades, and nothing is left."""
    install, upgrade, reset, uninstall = blocks("sh", section("Helm"))
    find_ours = ("get", OURS, "-A", "-l", "app.kubernetes.io/name=corepin", "-o", "name")
    with start_servers(version) as api:
        here = shell(api, tmp_path)
        here.run(install)
        there = api.kubectl(*find_ours).stdout.splitlines()
        assert len(there) == len(objects(BASE)) - 2  # without the two Namespaces
        token = api.kubectl("-n", SYSTEM, "create", "token", "corepin-certs").stdout.strip()
        until_equal("a rotation, once its rights hold", lambda: rotate(api, token).returncode, 0)
        published, data = bundles(api), issued(api)
        assert "" not in published
        assert data

        here.run(upgrade)
        here.run(f"{upgrade.strip()} --server-side=false")  # client-side merge, as before Helm 4
        replicas = ("-n", SYSTEM, "get", "deployment", "corepin-webhook", "-o", "jsonpath={.spec.replicas}")
        assert api.kubectl(*replicas).stdout == "3"
        assert bundles(api) == published
        assert issued(api) == data

        here.run(reset)
        here.run(uninstall)
        assert api.kubectl(*find_ours).stdout == ""
        ending = "jsonpath={.items[*].status.phase}"
        named = ("get", "namespaces", "-l", "app.kubernetes.io/name=corepin")
        assert api.kubectl(*named, "-o", ending).stdout == "Terminating Terminating"
