"""Fixtures and options of all tests."""

import pytest
from hypothesis import Phase, is_hypothesis_test, settings

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
# An emulated machine has limits of its own, of the time in which the host lets it run.
_SECONDS_WITH_SETUP = {"smt_cluster": 6000, "smt": 7200, "node": 1500}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the tests that start whole machines longer than the others until they are taken for hung.

    What Hypothesis draws is not counted for coverage, which would make thousands of examples more than twice as slow,
    and a line covered or not by chance: the tests that say what a line is for have to reach it.
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


def _kind(item: pytest.Item) -> str:
    """Return the kind of queue in which `scripts/test` runs a test, "" for those of others."""
    marked = {mark.name for mark in item.iter_markers()}
    if marked & {"smt", "smt_cluster"}:
        return ""
    if marked & {"runtime", "node"}:
        return "machines"
    return "servers" if "server" in marked else ""
