"""Fixtures of all tests of commands."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

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
