"""Devices of a container in words."""

from __future__ import annotations

import pytest

from drawing.policy_words import device_words
from published.pod_status import Container, Device


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (
            Container(devices=(Device("a.b/gpu", 2, (1,), near=True),)),
            ["beside 2 a.b/gpu on NUMA node 1"],
        ),
        (
            Container(devices=(Device("a.b/nic", 1, (0, 1), near=False),), more_devices=3),
            ["not beside a.b/nic on NUMA nodes 0, 1", "with devices of 3 more resources"],
        ),
        (
            Container(devices=(Device("a.b/nic", 1, ()),), devices_unknown="no answer"),
            ["with a.b/nic of an unknown NUMA node", "devices not known (no answer)"],
        ),
        (Container(), []),
    ],
)
def test_devices_have_number_place_and_relation(container: Container, words: list[str]) -> None:
    """Resources that are not listed are counted, and a reason replaces unknown devices."""
    assert list(device_words(container)) == words
