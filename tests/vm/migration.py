"""A live migration as libvirt does it, with a pause before the switchover."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.environments.vm.qmp import SECONDS
from tests.environments.waiting import until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.vm.machines import Machine

MIGRATION: Final = "migration.sock"
CHANNELS: Final = "multifd"  # a migration capability that adds threads at both ends
HALT: Final = "pause-before-switchover"
HALTED: Final = "pre-switchover"


@contextmanager
def halfway(source: Machine, target: Machine, *, to: str, at: str) -> Iterator[None]:
    """Migrate a guest until the pause before the switchover; finish the migration when the block ends.

    The socket has two paths, because source and target have different mounts.
    """
    with target.talk() as talker:
        talker.enable(CHANNELS)
        talker.ask("migrate-incoming", uri=f"unix:{at}")
    with source.talk() as talker:
        talker.enable(CHANNELS, HALT)
        talker.ask("migrate", uri=f"unix:{to}")
    until_equal("all memory is there", lambda: _progress(source), HALTED, SECONDS)
    yield
    with source.talk() as talker:
        talker.ask("migrate-continue", state=HALTED)
    until_equal("the guest went over", lambda: _progress(source), "completed", SECONDS)
    until_equal("it runs there", lambda: _is_running(target), wanted=True, seconds=SECONDS)


def _progress(machine: Machine) -> str:
    with machine.talk() as talker:
        return str(talker.ask("query-migrate").get("status"))


def _is_running(machine: Machine) -> bool:
    with machine.talk() as talker:
        return bool(talker.ask("query-status")["running"])
