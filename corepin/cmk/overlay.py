"""The overlay `cmk` of manifests/, with what an operator chose by the flags of CMK's `cluster-init`. Pure but for one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kubeyaml.reader import read_yaml
from kubeyaml.writer import write_yaml
from pinning.contract import AGENT_NAMESPACE, AGENT_NODE_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE: Final = Path(__file__).with_name("overlay.yaml")
SYSTEM_MARK: Final = "corepin-system-namespace"
AGENT_MARK: Final = "corepin-agent-namespace"
SYSTEM_NAMESPACE: Final = "corepin-system"
INSTALL_VOLUME: Final = "cmk-install-dir"
WORKLOADS: Final = frozenset({"Deployment", "DaemonSet"})
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the flags of `cluster-init` say; the defaults are CMK's."""

    exclusive_cores: int = 4
    shared_cores: int = 1
    exclusive_mode: str = "packed"
    shared_mode: str = "packed"
    non_isolcpus: str = ""  # a CPU list
    reserved: str = ""  # a CPU list; empty: what the kubelet reserves, or the agent's default
    image: str = ""  # empty: as the overlay has it
    pull_policy: str = "IfNotPresent"
    pull_secret: str = ""
    install_dir: str = "/opt/bin"
    account: str = "cmk-serviceaccount"
    namespace: str = AGENT_NAMESPACE  # of the agents
    has_taint: bool = True


def overlay(choices: Choices) -> list[Object]:
    """Return the objects to apply, in their order; the agents run on nodes with the label AGENT_NODE_LABEL."""
    text = FILE.read_text(encoding="utf-8")
    named = text.replace(SYSTEM_MARK, SYSTEM_NAMESPACE).replace(AGENT_MARK, choices.namespace)
    documents = [content for _, content in read_yaml(named) if content]
    for it in documents:
        if it["kind"] in WORKLOADS:
            _set_images(it["spec"]["template"]["spec"], choices)
    _set_agent(_find(documents, "DaemonSet", "corepin-agent")["spec"]["template"]["spec"], choices)
    agent, webhook = (
        _find(documents, "ConfigMap", f"corepin-{part}")["data"] for part in ("agent", "webhook")
    )
    agent["config.yaml"] = _node_config(agent["config.yaml"], choices)
    webhook["mutations.yaml"] = _mutations(webhook["mutations.yaml"], choices)
    return documents


def _find(documents: list[Object], kind: str, name: str) -> Object:
    return next(it for it in documents if (it["kind"], it["metadata"]["name"]) == (kind, name))


def _set_images(pod: Object, choices: Choices) -> None:
    for container in pod["containers"]:
        container["image"] = choices.image or container["image"]
        container["imagePullPolicy"] = choices.pull_policy
    if choices.pull_secret:
        pod["imagePullSecrets"] = [{"name": choices.pull_secret}]


def _set_agent(pod: Object, choices: Choices) -> None:
    pod["nodeSelector"] = {**pod["nodeSelector"], AGENT_NODE_LABEL: "true"}
    (container,) = pod["containers"]
    for variable in container["env"]:
        if variable["name"] == "COREPIN_TAINT" and not choices.has_taint:
            del variable["value"]
    for volume in _install_volumes(pod):
        volume["hostPath"]["path"] = choices.install_dir


def _install_volumes(pod: Object) -> Iterator[Object]:
    yield from (volume for volume in pod["volumes"] if volume["name"] == INSTALL_VOLUME)


def _node_config(text: str, choices: Choices) -> str:
    ((_, config),) = read_yaml(text)
    pools: Object = {"exclusive_cores": choices.exclusive_cores, "shared_cores": choices.shared_cores}
    pools |= {"exclusive_non_isolcpus": choices.non_isolcpus} if choices.non_isolcpus else {}
    pools |= {"exclusive_mode": choices.exclusive_mode, "shared_mode": choices.shared_mode}
    reserved = {"reserved": choices.reserved} if choices.reserved else {}
    return write_yaml([{**config, **reserved, "pools": pools}])


def _mutations(text: str, choices: Choices) -> str:
    ((_, content),) = read_yaml(text)
    spec = content["mutations"]["perPod"]["spec"]
    spec["serviceAccountName"] = choices.account
    for volume in _install_volumes(spec):
        volume["hostPath"]["path"] = choices.install_dir
    return write_yaml([content])
