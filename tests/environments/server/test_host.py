"""Test hosts of simultaneous runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.environments.server.host import own_number

if TYPE_CHECKING:
    from pathlib import Path


def test_hosts_that_live_at_once_have_different_numbers(tmp_path: Path) -> None:
    """A number that another host has is passed over; it is free again when that host has gone."""
    with own_number(255, tmp_path) as first, own_number(255, tmp_path) as second:
        assert (first, second) == (255, 0)
    with own_number(255, tmp_path) as third:
        assert third == 255
