"""The existing installation, whose settings `cluster-init` keeps unless a flag changes them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.overlay import INSTALL_VOLUME, SYSTEM_NAMESPACE, Choices
from corepin.cmk.requests import find
from kubeyaml.reader import BadYAML, read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

TAINT: Final = "COREPIN_TAINT"


@dataclass(frozen=True, slots=True)
class Installed:
    """An installation as read from the API server."""

    choices: Choices  # a choice is None if it cannot be read from the objects
    keys: Mapping[str, str]  # keys and values of the agents' ConfigMap
    version: str  # resourceVersion of this ConfigMap


def read_installed(api: Any, namespace: str) -> Installed | None:
    """Return the installation; None if there is no ConfigMap of agents."""
    config = find(api, f"/api/v1/namespaces/{namespace}/configmaps/corepin-agent")
    if config is None:
        return None
    agents = find(api, f"/apis/apps/v1/namespaces/{namespace}/daemonsets/corepin-agent")
    webhook = find(api, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/corepin-webhook")
    choices = replace(_of_agents(agents), account=_account(webhook))
    return Installed(choices, config.get("data") or {}, config["metadata"]["resourceVersion"])


def chosen_over(flags: Choices, installed: Choices) -> Choices:
    """Return the flags; those not given have the installation's values."""
    said = {it.name: getattr(flags, it.name) for it in fields(Choices)}
    return replace(installed, **{name: value for name, value in said.items() if value is not None})


def _of_agents(daemon_set: Any) -> Choices:
    """Return the choices read from the agents' DaemonSet; None for those that manual changes have removed."""
    if daemon_set is None:
        return Choices()
    pod = daemon_set["spec"]["template"]["spec"]
    container = pod["containers"][0]
    paths = [it["hostPath"]["path"] for it in pod.get("volumes") or () if it["name"] == INSTALL_VOLUME]
    taints = [it.get("value", "") for it in container.get("env") or () if it["name"] == TAINT]
    secrets = [it["name"] for it in pod.get("imagePullSecrets") or ()]
    return Choices(
        image=container["image"],
        pull_policy=container.get("imagePullPolicy"),
        pull_secret=next(iter(secrets), None),
        install_dir=next(iter(paths), None),
        has_taint="cmk" in taints[0].split(",") if taints else None,
    )


def _account(webhook: Any) -> str | None:
    """Return the service account in the webhook's mutations file; None if it has none."""
    try:
        ((_, content),) = read_yaml(webhook["data"]["mutations.yaml"])
        account = content["mutations"]["perPod"]["spec"]["serviceAccountName"]
    except (KeyError, TypeError, ValueError, BadYAML):
        return None
    return account if isinstance(account, str) else None
