"""Fixtures of all tests of commands."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.corepin.nodes import Serve, api_objects
from tests.corepin.plans import Planning

TOUCHED = (
    None,
    "httpx",
    "httpcore",
    "asyncio",
    "uvicorn",
)  # because commands configure the logging of their process


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a starting program does to logging: its handler writes to a stream that ends with the test."""
    loggers = [logging.getLogger(name) for name in TOUCHED]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Return a function that makes a server of objects, by their paths, the cluster of the commands."""
    with ExitStack() as stack:

        def served(objects: Mapping[str, Any]) -> None:
            config = stack.enter_context(api_objects(tmp_path, objects))
            monkeypatch.setenv("KUBECONFIG", str(config))

        yield served


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planning:
    """Return `corepin plan` with its files in the folder of the test."""
    return Planning(tmp_path, capsys)
