"""The objects of the overlay manifests/cmk with the choices of `cluster-init`. Pure except for reading one file."""

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
    """Flags of `cluster-init` for the whole installation; None if not given."""

    image: str | None = None  # name of the image; empty: the one in the overlay
    pull_policy: str | None = None
    pull_secret: str | None = None
    install_dir: str | None = None
    account: str | None = None
    has_taint: bool | None = None


CMK: Final = Choices("", "IfNotPresent", "", "/opt/bin", "cmk-serviceaccount", has_taint=True)


def overlay(choices: Choices, namespace: str = AGENT_NAMESPACE) -> list[Object]:
    """Return the objects in apply order; the agents run on nodes with the label AGENT_NODE_LABEL.

    Every choice must be set; the agents' configuration is the default one of the overlay.
    """
    text = FILE.read_text(encoding="utf-8")
    named = text.replace(SYSTEM_MARK, SYSTEM_NAMESPACE).replace(AGENT_MARK, namespace)
    documents = [content for _, content in read_yaml(named) if content]
    for it in documents:
        if it["kind"] in WORKLOADS:
            _set_images(it["spec"]["template"]["spec"], choices)
    _set_agent(_find(documents, "DaemonSet", "corepin-agent")["spec"]["template"]["spec"], choices)
    webhook = _find(documents, "ConfigMap", "corepin-webhook")["data"]
    webhook["mutations.yaml"] = _mutations(webhook["mutations.yaml"], choices)
    return documents


def agents_config(documents: list[Object]) -> Object:
    """Return the agents' ConfigMap among the objects."""
    return _find(documents, "ConfigMap", "corepin-agent")


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


def _mutations(text: str, choices: Choices) -> str:
    ((_, content),) = read_yaml(text)
    spec = content["mutations"]["perPod"]["spec"]
    spec["serviceAccountName"] = choices.account
    for volume in _install_volumes(spec):
        volume["hostPath"]["path"] = choices.install_dir
    return write_yaml([content])
