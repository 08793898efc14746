"""Log lines about a configuration that begins to serve."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from webhook.config.node_shapes import CoreShape, kinds
from webhook.config.reload import File
from webhook.server.loader import DeciderLoader

TWO, ONE = CoreShape(threads=2, cores=8), CoreShape(threads=1, cores=4)


@pytest.mark.parametrize(
    ("config", "watched", "said"),
    [
        pytest.param(b"", {"a": TWO, "b": TWO}, "whole cores are counted", id="all nodes agree"),
        pytest.param(b"", {}, "no node is known", id="none is known"),
        pytest.param(b"", {"a": TWO, "b": ONE}, "the cores of nodes have 1 and 2 threads", id="they differ"),
        pytest.param(
            b"nodeShapes: [{name: x, cores: 4}]",
            {"a": TWO},
            "the cores of nodes have 1 and 2 threads",
            id="one that may come differs",
        ),
        pytest.param(b"wholeCores: false", {"a": TWO}, "wholeCores is false", id="switched off"),
    ],
)
def test_whether_whole_cores_are_counted_is_logged(
    config: bytes, watched: dict[str, CoreShape], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says whether whole cores are counted for the scheduler, and if not, why."""
    file = File(Path("config.yaml"))
    with caplog.at_level(logging.INFO, "webhook.server.loader"):
        DeciderLoader(file, file)((config, None, msgspec.json.encode(kinds(watched))))
    *_, record = caplog.records
    assert said in f"{record.getMessage()} {vars(record)['facts']}"
