"""Fixtures and options of all tests."""

import asyncio
import inspect

import pytest
from hypothesis import Phase, is_hypothesis_test, settings

from tests.agent import virtual_time
from tests.apiserver.connections import close_cancelled_handshakes
from tests.signals import keep_from_children

pytest_plugins = ["tests.environments.server.fixture", "tests.environments.node.containerd_fixture"]

# A busy machine makes any example slow; explaining a failure, line by line, takes longer than finding it.
_PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("corepin", settings.default, deadline=None, phases=_PHASES)
settings.register_profile(  # profile of tests.mutations, for which one failing example is enough
    "same",
    settings.default,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("corepin")
close_cancelled_handshakes()
keep_from_children()

# Folders of the collected tests that need containers or a node, and of those that need an API server alone.
KINDS = ("machines", "servers")
FOLDERS = pytest.StashKey[dict[str, set[str]]]()
# The first test of these waits until a machine has booted, a cluster runs or the image is built.
# Time limits of an emulated machine count only the time in which the host runs it.
_SECONDS_WITH_SETUP = {"smt_cluster": 6000, "smt": 7200, "node": 1500}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests that start whole machines a longer timeout than the others.

    Code run by Hypothesis examples does not count for coverage: tracing would make thousands of examples more than
    twice as slow, and coverage of a line would depend on chance. Fixed tests must reach every line.
    """
    folders: dict[str, set[str]] = {kind: set() for kind in KINDS}
    config.stash[FOLDERS] = folders
    for item in items:
        if kind := _kind(item):
            folders[kind].add("/".join(item.nodeid.split("/")[:2]))
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("no_cover")
        limits = [limit for marker, limit in _SECONDS_WITH_SETUP.items() if item.get_closest_marker(marker)]
        if limits and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(max(limits)))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, if marked in virtual time; return None for other tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    run = virtual_time.run if pyfuncitem.get_closest_marker("virtual_time") else asyncio.run
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def _kind(item: pytest.Item) -> str:
    """Return the kind of queue in which `scripts/test` runs a test; "" for a test in no queue."""
    marked = {mark.name for mark in item.iter_markers()}
    if marked & {"smt", "smt_cluster"}:
        return ""
    if marked & {"runtime", "node"}:
        return "machines"
    return "servers" if "server" in marked else ""
