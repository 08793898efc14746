"""The configz of a real kubelet, as the agent reads it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from agent.configz import KubeletWord, read_configz
from agent.kubelet import KubeletPolicy
from agent.sysfs import read_topology
from pinning.cpuset import EMPTY
from tests.node.node import Node


def test_a_real_kubelets_configz_is_understood(node: Node) -> None:
    """Its policy is read, and that it reserves nothing; its certificate is its own here, so the test trusts any."""
    port = json.loads((node.kubelet.directory / "config.json").read_text())["port"]
    answer = httpx.get(f"https://127.0.0.1:{port}/configz", verify=False)  # noqa: S501 its own certificate

    assert read_configz(answer.content, read_topology(Path("/"))) == KubeletWord(KubeletPolicy.NONE, EMPTY)
    assert {"kubeReserved", "systemReserved"}.isdisjoint(answer.json()["kubeletconfig"])
