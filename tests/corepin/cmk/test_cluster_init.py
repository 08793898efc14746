"""Printed manifests of `corepin cmk cluster-init`: the effect of each CMK flag, and refused flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from corepin.cli import main
from corepin.cmk.overlay import AGENT_MARK, FILE, SYSTEM_MARK

Object = dict[str, Any]
HOSTS = "--host-list=node-1,node-2"


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[list[Object], str]:
    """Return the printed objects and the notes on standard error."""
    assert main(["cmk", "cluster-init", *(flags or (HOSTS,))]) == 0
    shown = capsys.readouterr()
    return list(yaml.safe_load_all(shown.out)), shown.err


def one(documents: list[Object], kind: str, name: str) -> Any:
    """Return the object of a kind and name."""
    (found,) = [it for it in documents if (it["kind"], it["metadata"]["name"]) == (kind, name)]
    return found


def agent(documents: list[Object]) -> Any:
    """Return the specification of the agents' pods."""
    return one(documents, "DaemonSet", "corepin-agent")["spec"]["template"]["spec"]


def taint(documents: list[Object]) -> Any:
    """Return the value of COREPIN_TAINT in the agents' container."""
    (found,) = [it for it in agent(documents)["containers"][0]["env"] if it["name"] == "COREPIN_TAINT"]
    return found.get("value")


def config(documents: list[Object], part: str, key: str = "config.yaml") -> Any:
    """Return a file of a ConfigMap."""
    return yaml.safe_load(one(documents, "ConfigMap", f"corepin-{part}")["data"][key])


def test_without_flags_it_is_the_overlay_for_labelled_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    """Without flags the whole overlay is printed, with CMK's numbers and the command that labels the nodes."""
    documents, told = printed(capsys)
    carried = [it for it in yaml.safe_load_all(FILE.read_text(encoding="utf-8")) if it]
    assert [it["kind"] for it in documents] == [it["kind"] for it in carried]
    assert agent(documents)["nodeSelector"] == {
        "kubernetes.io/os": "linux",
        "corepin.io/agent": "true",
    }
    assert config(documents, "agent")["pools"] == {
        "exclusive_cores": 4,
        "shared_cores": 1,
        "exclusive_mode": "packed",
        "shared_mode": "packed",
    }
    assert taint(documents) == "cmk"
    assert told == (
        "corepin cmk: the agents wait for a label: kubectl label node node-1 node-2 corepin.io/agent=true\n"
    )


def test_all_hosts_are_labelled_together(capsys: pytest.CaptureFixture[str]) -> None:
    """--all-hosts labels all nodes with one command, without a list of hosts."""
    _, told = printed(capsys, "--all-hosts")
    assert "kubectl label node -l kubernetes.io/os=linux corepin.io/agent=true" in told


def test_no_placeholder_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """The namespace replaces its placeholder everywhere, also a chosen one."""
    assert main(["cmk", "cluster-init", HOSTS, "--namespace=cmk-agents"]) == 0
    text = capsys.readouterr().out
    assert AGENT_MARK not in text
    assert SYSTEM_MARK not in text
    documents = list(yaml.safe_load_all(text))
    assert one(documents, "DaemonSet", "corepin-agent")["metadata"]["namespace"] == "cmk-agents"
    assert "startsWith('system:serviceaccount:cmk-agents:')" in text
    assert "namespace: corepin-agent\n" not in text


def test_the_namespace_of_corepin_is_printed_with_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    """Only `corepin-agent`, a name that corepin alone uses, is among the objects that `kubectl delete -f -` deletes."""
    documents, told = printed(capsys)
    labels = one(documents, "Namespace", "corepin-agent")["metadata"]["labels"]
    assert labels["corepin.io/created-by"] == "cluster-init"
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    assert "warning" not in told


@pytest.mark.parametrize("place", ["cmk-agents", "telco", "kubernetes-agents"])
def test_another_namespace_is_not_printed(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A chosen namespace is not printed; warnings say how to create it and what applies to every pod in it."""
    documents, told = printed(capsys, HOSTS, f"--namespace={place}")
    everything, _ = printed(capsys)
    assert [it["metadata"]["name"] for it in documents if it["kind"] == "Namespace"] == ["corepin-system"]
    assert len(documents) == len(everything) - 1
    assert f"warning: the Namespace {place} is not printed" in told
    assert f"kubectl create namespace {place}; kubectl label namespace {place} pod-security" in told
    assert f"nothing else than corepin in {place}: the webhook would skip all pods there" in told


def test_numbers_and_modes_reach_the_agents(capsys: pytest.CaptureFixture[str]) -> None:
    """Core counts and pool modes are set in the agents' configuration; its other keys keep their values."""
    documents, told = printed(
        capsys,
        *(HOSTS, "--num-exclusive-cores=6", "--num-shared-cores=0", "--exclusive-mode=spread"),
        *("--shared-mode=spread", "--excl-non-isolcpus=0,3-5", "--no-taint"),
    )
    assert config(documents, "agent") == {
        "smtPolicy": "prefer",
        "numaPolicy": "packed",
        "quota": "auto",
        "countedClaims": ["isolate"],
        "pools": {
            "exclusive_cores": 6,
            "shared_cores": 0,
            "exclusive_non_isolcpus": "0,3-5",
            "exclusive_mode": "spread",
            "shared_mode": "spread",
        },
    }
    assert taint(documents) is None
    assert "CMK read core numbers, corepin CPU numbers" in told


def test_a_group_is_printed_with_its_label(capsys: pytest.CaptureFixture[str]) -> None:
    """A group's core counts get their own ConfigMap key; without a group they apply to all nodes, with a warning."""
    documents, told = printed(capsys, HOSTS, "--num-exclusive-cores=6", "--cpu-group=big")
    assert config(documents, "agent")["pools"]["exclusive_cores"] == 4
    assert config(documents, "agent", "config.big.yaml")["pools"]["exclusive_cores"] == 6
    assert told.endswith("kubectl label node node-1 node-2 corepin.io/agent=true corepin.io/cpu-group=big\n")
    _, told = printed(capsys, HOSTS, "--num-exclusive-cores=6")
    assert "warning: these numbers are for all nodes without a group; add --apply or --cpu-group" in told


def test_reserved_cpus_reach_the_agents(capsys: pytest.CaptureFixture[str]) -> None:
    """--reserved-cpus sets `reserved` in the agents' configuration; without the flag the key is absent."""
    documents, _ = printed(capsys, "--all-hosts", "--reserved-cpus=0,8")
    assert config(documents, "agent")["reserved"] == "0,8"
    documents, _ = printed(capsys, "--all-hosts")
    assert "reserved" not in config(documents, "agent")


def test_images_reach_every_pod(capsys: pytest.CaptureFixture[str]) -> None:
    """Image, pull policy and pull secret are set in every pod."""
    documents, _ = printed(
        capsys,
        *(HOSTS, "--cmk-img=registry.example/corepin:1", "--cmk-img-pol=Always", "--pull-secret=registry"),
    )
    pods = [it["spec"]["template"]["spec"] for it in documents if it["kind"] in {"Deployment", "DaemonSet"}]
    assert len(pods) == 3
    for pod in pods:
        (container,) = pod["containers"]
        assert (container["image"], container["imagePullPolicy"]) == ("registry.example/corepin:1", "Always")
        assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_directory_and_account_reach_the_injection(capsys: pytest.CaptureFixture[str]) -> None:
    """The injection mounts the chosen directory where containers expect it, and sets the chosen account."""
    documents, _ = printed(capsys, HOSTS, "--install-dir=/usr/local/cmk/", "--saname=mine")
    mutations = config(documents, "webhook", "mutations.yaml")["mutations"]
    volumes = {it["name"]: it["hostPath"]["path"] for it in mutations["perPod"]["spec"]["volumes"]}
    mounts = {it["name"]: it["mountPath"] for it in mutations["perContainer"]["volumeMounts"]}
    assert mutations["perPod"]["spec"]["serviceAccountName"] == "mine"
    assert volumes["cmk-install-dir"] == "/usr/local/cmk"
    assert mounts["cmk-install-dir"] == "/opt/bin"
    assert {
        it["hostPath"]["path"] for it in agent(documents)["volumes"] if it["name"] == "cmk-install-dir"
    } <= {"/usr/local/cmk"}


def test_obsolete_flags_are_accepted_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """CMK's obsolete flags are accepted with a warning, so that existing scripts work."""
    before, _ = printed(capsys)
    flags = ("--cmk-cmd-list=init,reconcile", "--cafile=/ca.crt", "--insecure=False", "--conf-dir=/etc/cmk")
    documents, told = printed(capsys, HOSTS, *flags)
    assert documents == before
    for flag in flags:
        assert f"{flag.partition('=')[0]} has no effect: " in told


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--host-list=,", "--host-list: ',' names no node: write for example node-1,node-2"),
        ("--host-list=Node 1", "--host-list: 'Node 1' is not a valid Kubernetes name"),
        ("--num-exclusive-cores=0", "0 leaves no core that could be exclusive: write 1 or more"),
        (
            "--cpu-group=../a",
            "--cpu-group: '../a' is not a valid group name: write up to 63 letters, digits, -, _",
        ),
        ("--num-shared-cores=-1", "--num-shared-cores: '-1' is not a number of cores: write for example 4"),
        ("--exclusive-mode=fast", "--exclusive-mode: 'fast' is unknown: write packed"),
        ("--cmk-img=cmk:v1.5.2", "'cmk:v1.5.2' is an image of Intel CMK: name yours of corepin"),
        ("--cmk-img=registry.example/cmk", "is an image of Intel CMK"),
        ("--cmk-img=a b", "--cmk-img: 'a b' is not an image"),
        (
            "--cmk-img-pol=Sometimes",
            "--cmk-img-pol: 'Sometimes' is unknown: write IfNotPresent, Always, Never",
        ),
        ("--install-dir=bin", "--install-dir: 'bin' is not a host directory: write for example /opt/bin"),
        ("--install-dir=/", "is not a host directory"),
        ("--install-dir=/opt/../etc", "is not a host directory"),
        ("--namespace=default", "--namespace: 'default' is where pods run that name no namespace: "),
        ("--namespace=cmk-namespace", "'cmk-namespace' is where CMK's samples run the pods of its users: "),
        ("--namespace=corepin-system", "'corepin-system' is the webhook's: "),
        (
            "--namespace=kube-system",
            "leave the flag out for corepin-agent, or name a namespace that has nothing else",
        ),
        ("--namespace=kube-of-a-tenant", "'kube-of-a-tenant' is part of Kubernetes"),
        (
            "--namespace=a.b",
            "'a.b' is not a valid namespace name: write up to 63 lower-case letters, digits and -",
        ),
        (f"--namespace={'a' * 64}", "is not a valid namespace name"),
        ("--namespace=", "'' is not a valid namespace name"),
        ("--saname=Mine", "--saname: 'Mine' is not a valid Kubernetes name"),
        ("--excl-non-isolcpus=5-3", "--excl-non-isolcpus: "),
        ("--reserved-cpus=5-3", "--reserved-cpus: "),
    ],
)
def test_what_cannot_be_meant_is_refused(flag: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong flag is refused with flag, value and remedy; no object is printed that could be applied by mistake."""
    hosts = () if flag.startswith("--host-list") else (HOSTS,)
    assert main(["cmk", "cluster-init", *hosts, flag]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    "action", ["isolate", "install", "webhook", "reconfigure", "reconfigure_setup", "reaffinitize"]
)
def test_commands_that_went_elsewhere_say_where(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A CMK command that corepin has elsewhere is refused with a pointer, whatever its flags."""
    assert main(["cmk", action, "--pool=exclusive", "sleep", "--", "inf"]) == 2
    assert f"corepin cmk: {action}: " in capsys.readouterr().err


@pytest.mark.server
def test_packaged_manifests_are_the_overlay() -> None:
    """The packaged manifests are what `make chart` writes of manifests/cmk."""
    from scripts.cmk_overlay import overlay_text

    assert Path(FILE).read_text(encoding="utf-8") == overlay_text(), "run `make chart`"
