"""Test hosts of simultaneous runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.environments.server.host import host_apart, own_number

INTERFACES = Path("/sys/class/net")


def test_hosts_that_live_at_once_have_different_numbers(tmp_path: Path) -> None:
    """A number that another host has is skipped, and is free again once that host is deleted."""
    with own_number(255, tmp_path) as first, own_number(255, tmp_path) as second:
        assert (first, second) == (255, 0)
    with own_number(255, tmp_path) as third:
        assert third == 255


@pytest.mark.server
def test_host_that_has_ended_leaves_no_interface() -> None:
    """After a test host ends, this machine's interface to it is removed, even if the kernel is slow."""
    for _ in range(5):
        with host_apart() as host:
            assert (INTERFACES / host.interface).exists()
        assert not (INTERFACES / host.interface).exists()
