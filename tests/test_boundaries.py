"""Who imports whom: packages, the rooms in them and their files; and how large each of these may be."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.layout import MODULES, PACKAGES, arrows, between_rooms, circle, imported, named, room

OUTSIDE = frozenset({"tests", "bench", "demo", "scripts"})  # nothing that ships may import these
BELOW = frozenset({"apiserver", "kubeyaml", "logs", "pinning"})
ARROWS = {
    "apiserver": frozenset(),
    "kubeyaml": frozenset(),
    "logs": frozenset(),
    "pinning": frozenset(),
    "certs": frozenset(),
    "webhook": BELOW,
    "agent": BELOW,
    "dashboard": BELOW | {"corepin"},  # of the command the drawing of a machine alone
    "corepin": PACKAGES,
}
PODS = ("pinning.contract", "pinning.errors", "pinning.pods")
# What each room may import besides itself: rooms or single modules. A room is a folder, or a module beside folders.
ROOMS = {
    "apiserver": (),
    "kubeyaml": (),
    "logs": (),
    "certs": (),
    "pinning.brief": (),
    "pinning.contract": (),
    "pinning.errors": (),
    "pinning.json_text": ("pinning.errors",),
    "pinning.lazy": (),
    "pinning.task_parts": ("pinning.machine.cpuset",),
    "pinning.vm_threads": (),
    "pinning.machine": ("pinning.errors", "pinning.json_text"),
    "pinning.pods": (
        *("pinning.brief", "pinning.contract", "pinning.errors", "pinning.lazy", "pinning.machine.cpuset"),
    ),
    "pinning.allocation": ("pinning.contract", "pinning.errors", "pinning.machine"),
    "pinning.planning": (
        *(*PODS, "pinning.allocation", "pinning.json_text", "pinning.machine", "pinning.vm_threads"),
    ),
    "pinning.kubevirt": (*PODS, "pinning.brief"),
    "pinning.cmk": ("pinning.contract", "pinning.errors", "pinning.machine", "pinning.planning"),
    "agent.clock": (),
    "agent.cmk_command": ("agent.wrappers.protocol",),
    "agent.errors": (),
    "agent.checkpoint": ("agent.errors", "pinning"),
    "agent.grpc_calls": ("agent.errors", "agent.http2"),
    "agent.http2": (),
    "agent.config": ("pinning",),
    "agent.vm_targets": ("agent.interfaces", "agent.vm_interfaces", "pinning"),
    "agent.interfaces": ("agent.node_state", "agent.vm_interfaces", "pinning"),
    "agent.vm_interfaces": ("pinning",),
    "agent.kept_pod": ("pinning",),
    "agent.own_pods": ("agent.node_state", "pinning"),
    "agent.node_state": ("agent.kubelet.policy", "pinning"),
    "agent.metrics": ("agent.node_state", "pinning"),
    "agent.pod_watch": ("agent.errors", "agent.kept_pod", "apiserver", "pinning"),
    "agent.kernel": ("agent.errors", "agent.interfaces", "pinning"),
    "agent.cri": (
        "agent.errors",
        "agent.grpc_calls",
        "agent.interfaces",
        "agent.kernel.cgroup_names",
        "agent.node_state",
        "apiserver.backoff",
        "pinning",
    ),
    "agent.nri.wire": (),
    "agent.nri.plugin": ("agent.nri.wire", "pinning"),
    "agent.nri.guard": ("agent.nri.wire", "pinning"),
    "agent.nri.guard_process": ("agent.nri.guard", "agent.nri.wire"),
    "agent.nri.container_watch": (
        *("agent.interfaces", "agent.node_state", "agent.nri.plugin", "agent.nri.wire", "pinning"),
    ),
    "agent.kubelet": ("agent.config", "agent.errors", "agent.grpc_calls", "apiserver", "pinning"),
    "agent.observed_cpus": ("agent.interfaces", "pinning"),
    "agent.local": (
        *("agent.errors", "agent.interfaces", "agent.kernel"),
        *("apiserver.backoff", "kubeyaml", "pinning"),
    ),
    "agent.serve": ("agent.node_state", "pinning"),
    "agent.vm": (
        *("agent.errors", "agent.interfaces", "agent.vm_interfaces", "pinning"),
        *("agent.kernel.affinity", "agent.kernel.cgroupfs", "agent.kernel.mover", "agent.kernel.procfs"),
    ),
    "agent.wrappers": (
        *("agent.errors", "agent.interfaces", "agent.node_state", "agent.kernel.affinity"),
        *("agent.kernel.cgroupfs", "agent.kernel.mover", "agent.kernel.process_exit"),
        *("agent.kernel.procfs", "pinning"),
    ),
    "agent.doctor": ("agent.cri", "agent.errors", "agent.kernel", "agent.kubelet", "pinning"),
    "agent.reconcile": (
        *("agent.clock", "agent.errors", "agent.interfaces", "agent.metrics", "agent.node_state"),
        *("agent.checkpoint", "agent.kubelet.policy", "agent.vm_interfaces", "agent.vm_targets"),
        *("agent.own_pods", "apiserver.backoff", "pinning"),
    ),
    "agent.report": (
        *("agent.clock", "agent.config", "agent.interfaces", "agent.metrics", "agent.node_state"),
        *("agent.errors", "agent.kept_pod", "agent.kubelet.policy", "apiserver", "pinning"),
    ),
    "agent.process": (
        *("agent.checkpoint", "agent.clock", "agent.interfaces", "agent.metrics", "agent.node_state"),
        *("agent.reconcile", "agent.report.publisher", "agent.serve"),
    ),
    "agent.access": ("agent.config", "agent.errors", "apiserver"),
    "agent.group_start": ("apiserver", "pinning"),
    "agent.group_wait": (
        *("agent.access", "agent.config", "agent.group_start", "agent.report", "agent.serve"),
        *("apiserver", "pinning"),
    ),
    "agent.main": ("agent", "apiserver", "pinning"),
    "webhook.metrics": (),
    "webhook.config": ("apiserver", "kubeyaml", "webhook.metrics", "pinning"),
    "webhook.rules": ("webhook.config", "pinning"),
    "webhook.review": ("webhook.config", "webhook.metrics", "webhook.rules", "pinning"),
    "webhook.server": ("webhook.config", "webhook.metrics", "webhook.review", "pinning"),
    "corepin.errors": (),
    "corepin.flags": ("corepin.errors",),
    "corepin.host_flags": ("corepin.errors", "corepin.flags", "pinning.contract"),
    "corepin.rule_files": ("corepin.flags", "webhook.config"),
    "corepin.terminal": ("logs.printable",),
    "corepin.json_text": ("kubeyaml",),
    "corepin.documents": (
        *("corepin.drawing.spans", "corepin.errors", "corepin.json_text", "corepin.terminal", "kubeyaml"),
    ),
    "corepin.node_file": ("corepin.documents", "corepin.errors", "pinning"),
    "corepin.cli": (
        "corepin.documents",
        "corepin.errors",
        "corepin.terminal",
    ),  # it finds the verbs by their names
    "corepin.drawing": ("corepin.terminal", "pinning.contract", "pinning.machine"),
    "corepin.run": (
        *("corepin.documents", "corepin.errors", "corepin.flags", "corepin.node_file"),
        *("corepin.host_flags", "corepin.rule_files", "corepin.terminal"),
        *(
            "agent.config",
            "agent.errors",
            "agent.group_start",
            "agent.main",
            "apiserver.errors",
            "certs",
            "logs",
            "pinning",
        ),
        *("agent.kubelet.policy", "agent.nri.guard", "agent.nri.guard_process"),
        *(
            "corepin.node.kube_access",
            "corepin.node.kube_api",
            "dashboard.serve",
            "webhook.config",
            "webhook.server",
        ),
    ),
    "corepin.plugin": (
        *("corepin.documents", "corepin.errors", "corepin.flags", "corepin.node", "corepin.terminal"),
        *("logs.printable", "pinning.contract"),
    ),
    "corepin.node": (
        *("corepin.documents", "corepin.drawing", "corepin.errors", "corepin.flags", "corepin.terminal"),
        "corepin.host_flags",
        *("agent.doctor", "agent.kernel.cgroup_names", "apiserver", "pinning"),
    ),
    "corepin.cmk": (
        *("corepin.documents", "corepin.errors", "corepin.node", "corepin.offline.plan", "corepin.terminal"),
        *("kubeyaml", "logs.printable", "pinning"),
    ),
    "dashboard.model": ("corepin.drawing", "pinning"),
    "dashboard.view": ("corepin.drawing", "dashboard.model", "pinning"),
    "dashboard.serve": ("apiserver", "dashboard.model", "dashboard.view", "pinning.contract"),
    "corepin.offline": ("corepin", "agent.kernel.sysfs", "kubeyaml", "pinning", "webhook"),
}
Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
LINES, CLASS_LINES, FUNCTION_LINES, FILES = 500, 250, 40, 25
CODE = sorted(path for folder in PACKAGES | OUTSIDE for path in Path(folder).rglob("*.py"))


def tops(source: str) -> set[str]:
    """Return the top-level names that a module imports; "" stands for a relative import."""
    return {name.partition(".")[0] for name in imported(source)}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_follows_the_arrows(path: Path) -> None:
    """A module imports its own package, those its arrows point to, and never the tests; never relatively."""
    package = path.parts[0]

    assert tops(path.read_text(encoding="utf-8")) & (PACKAGES | OUTSIDE | {""}) <= ARROWS[package] | {package}


@pytest.mark.parametrize("path", sorted(Path("pinning").rglob("*.py")), ids=str)
def test_pinning_is_standard_library_only(path: Path) -> None:
    """The domain runs wherever Python runs: no package from elsewhere is imported."""
    assert tops(path.read_text(encoding="utf-8")) <= sys.stdlib_module_names | {"pinning"}


def test_imports_are_found_wherever_they_stand() -> None:
    """The walk sees imports in functions and under TYPE_CHECKING, and dotted and relative ones."""
    source = "import a.b, c\nif X:\n    from d.e import f\ndef g():\n    from h import i\nfrom . import j\n"

    assert set(imported(source)) == {"a.b", "c", "d.e.f", "h.i", "..j"}
    assert tops(source) == {"a", "c", "d", "h", ""}


def test_every_package_is_held() -> None:
    """A new package gets its arrows here before it ships."""
    shipped = {path.parent.name for path in Path().glob("*/__init__.py")} - OUTSIDE

    assert shipped == ARROWS.keys() == PACKAGES


def test_every_room_is_held() -> None:
    """A new folder, and a module beside folders, gets its arrows here."""
    assert {room(named(path)) for path in MODULES if path.name != "__init__.py"} == ROOMS.keys()


def test_rooms_follow_the_arrows() -> None:
    """A room imports what its arrows point to and nothing else, wherever the import stands."""
    wrong = {
        (module, other)
        for module, others in arrows().items()
        for other in others
        if room(other) != room(module)
        if not any(f"{other}.".startswith(f"{allowed}.") for allowed in ROOMS.get(room(module), ()))
    }

    assert wrong == set()


def test_main_alone_knows_every_implementation() -> None:
    """What stands behind an interface is chosen in one place; doctor and the command look at the machine themselves."""
    behind = ("agent.cri", "agent.kernel", "agent.local", "agent.pod_watch", "agent.report", "agent.serve")
    known_by = {
        folder: {room(module) for module, others in arrows().items() if folder in map(room, others)}
        - {folder, "agent.doctor", "corepin.node", "corepin.offline"}
        for folder in behind
    }

    assert known_by == {
        "agent.cri": {"agent.main"},
        "agent.kernel": {
            "agent.main",
            "agent.cri",
            "agent.local",
            "agent.vm",
            "agent.wrappers",
        },  # names of cgroups; the demo's own cgroups; how files of cgroups and processes are read; masks
        "agent.local": {"agent.main"},
        "agent.pod_watch": {"agent.main"},
        "agent.report": {
            "agent.main",
            "agent.process",  # the publisher, which knows no reporter
            "agent.group_wait",  # one condition, while there is no configuration to report with
        },
        "agent.serve": {"agent.process", "agent.group_wait"},
    }


def test_no_rooms_go_round_in_a_circle() -> None:
    """Of two rooms one can be understood without the other."""
    assert circle(between_rooms()) == []


def test_no_files_go_round_in_a_circle() -> None:
    """Of two files one can be understood without the other."""
    assert circle(arrows()) == []


def test_nothing_is_too_long() -> None:
    """A file, a class and a function can be read at once."""
    assert dict(_long_ones()) == {}


def _long_ones() -> Iterator[tuple[str, int]]:
    for path in CODE:
        text = path.read_text(encoding="utf-8")
        if (lines := text.count("\n")) > LINES:
            yield str(path), lines
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Definition) and _lines(node) > _limit(node):
                yield node.name, _lines(node)


def _limit(node: Definition) -> int:
    return CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES


def _lines(node: Definition) -> int:
    """Return how long a definition is; the docstring of a function makes it no harder to read."""
    first = node.body[0]
    documented = not isinstance(node, ast.ClassDef) and ast.get_docstring(node) is not None
    said = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (node.end_lineno or 0) - node.lineno + 1 - said


def test_no_folder_is_too_full() -> None:
    """What a folder holds can be seen at once."""
    files = Counter(path.parent for path in CODE)

    assert [str(folder) for folder, count in files.items() if count > FILES] == []


def test_no_test_imports_another_one() -> None:
    """What tests share is in a module of its own."""
    tests = [path for path in CODE if path.parts[0] == "tests"]
    sharing = {
        (str(path), name)
        for path in tests
        for name in imported(path.read_text(encoding="utf-8"))
        if re.match(r"tests\.(\w+\.)*test_", name)
    }

    assert sharing == set()


def test_what_must_be_covered_is_there() -> None:
    """The Makefile demands every branch of files that exist."""
    (listed,) = re.findall(r"^PURE := (\S+)$", Path("Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert all(any(Path().glob(pattern)) for pattern in listed.split(","))
