"""Imports between packages, rooms and files, and the size limits of these."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.layout import MODULES, PACKAGES, arrows, between, circle, imported, named, package, room
from tests.sizes import ABOVE, full_folders, long_classes, long_files, long_functions

OUTSIDE = frozenset({"tests", "bench", "demo", "scripts"})  # nothing that ships may import these
BELOW = frozenset({"apiserver", "kubeyaml", "logs", "pinning"})
ARROWS = {
    "apiserver": frozenset(),
    "kubeyaml": frozenset(),
    "logs": frozenset(),
    "pinning": frozenset(),
    "published": frozenset({"pinning"}),
    "certs": frozenset(),
    "webhook": BELOW | {"published"},
    "agent": BELOW | {"published"},
    "drawing": frozenset({"logs", "pinning", "published"}),
    "dashboard": BELOW | {"drawing", "published"},
    "corepin": PACKAGES,
}
PODS = ("pinning.contract", "pinning.errors", "pinning.pods")
# What each room may import besides itself: rooms or single modules. A room is a folder, or a module beside folders.
ROOMS = {
    "apiserver": (),
    "kubeyaml": (),
    "logs": (),
    "certs": (),
    "drawing": ("logs.printable", "pinning.contract", "pinning.errors", "pinning.machine", "published"),
    "published": ("pinning.errors", "pinning.machine.topology", "pinning.truncate"),
    "pinning.truncate": (),
    "pinning.contract": (),
    "pinning.errors": (),
    "pinning.json_text": ("pinning.errors",),
    "pinning.lazy": (),
    "pinning.machine": ("pinning.errors", "pinning.json_text"),
    "pinning.pods": (
        *("pinning.truncate", "pinning.contract", "pinning.errors", "pinning.lazy", "pinning.machine.cpuset"),
    ),
    "pinning.allocation": ("pinning.contract", "pinning.errors", "pinning.machine"),
    "pinning.dra": (
        *("pinning.contract", "pinning.errors", "pinning.machine", "pinning.pods", "pinning.truncate"),
    ),
    "pinning.planning": (
        *(
            *PODS,
            "pinning.allocation",
            "pinning.dra",
            "pinning.json_text",
            "pinning.machine",
            "pinning.truncate",
        ),
    ),
    "pinning.guests": (*PODS, "pinning.allocation", "pinning.machine"),
    "pinning.kubevirt": (*PODS, "pinning.truncate"),
    "pinning.cmk": ("pinning.contract", "pinning.errors", "pinning.machine", "pinning.planning"),
    "agent.clock": (),
    "agent.token_bucket": (),
    "agent.cmk_command": ("pinning.contract",),
    "agent.errors": (),
    "agent.grpc_calls": ("agent.errors", "agent.http2"),
    "agent.http2": (),
    "agent.grpc_server": ("agent.errors",),
    "agent.dra": (
        "agent.clock",
        "agent.errors",
        "agent.grpc_server",
        "agent.token_bucket",
        "apiserver",
        "pinning",
    ),
    "agent.config": ("pinning",),
    "agent.claim_interfaces": ("pinning",),
    "agent.interfaces": ("agent.claim_interfaces", "agent.node_state", "agent.vm_interfaces", "pinning"),
    "agent.absent": (
        "agent.errors",
        "agent.interfaces",
        "agent.node_state",
        "agent.vm_interfaces",
        "pinning",
    ),
    "agent.vm_interfaces": ("pinning",),
    "agent.kept_pod": ("pinning",),
    "agent.own_pods": ("agent.node_state", "pinning"),
    "agent.plain_pods": ("agent.own_pods", "pinning"),
    "agent.node_state": ("pinning",),
    "agent.metrics": ("agent.node_state", "pinning"),
    "agent.pod_watch": ("agent.errors", "agent.kept_pod", "apiserver", "pinning"),
    "agent.kernel": ("agent.errors", "agent.interfaces", "agent.node_state", "pinning"),
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
    "agent.nri.versions": (),
    "agent.nri.plugin": ("agent.nri.wire", "agent.nri.versions", "pinning"),
    "agent.nri.guard": ("agent.nri.wire", "pinning"),
    "agent.nri.guard_process": ("agent.nri.guard", "agent.nri.wire", "agent.nri.versions"),
    "agent.nri.container_watch": (
        *("agent.errors", "agent.interfaces", "agent.node_state", "agent.nri.plugin", "agent.nri.wire"),
        "pinning",
    ),
    "agent.kubelet": (
        *("agent.config", "agent.errors", "agent.grpc_calls", "agent.interfaces", "agent.metrics"),
        *("agent.token_bucket", "apiserver", "pinning"),
    ),
    "agent.local": (
        *("agent.absent", "agent.errors", "agent.interfaces", "agent.kernel"),
        *("apiserver.backoff", "kubeyaml", "pinning"),
    ),
    "agent.published_parts": ("agent.node_state", "pinning", "published"),
    "agent.serve": ("agent.node_state", "agent.published_parts", "pinning", "published"),
    "agent.vm": (
        *("agent.errors", "agent.interfaces", "agent.vm_interfaces", "pinning"),
        *("agent.kernel.affinity", "agent.kernel.cgroupfs", "agent.kernel.mover", "agent.kernel.procfs"),
    ),
    "agent.wrappers": (
        *("agent.errors", "agent.interfaces", "agent.node_state", "agent.kernel.affinity"),
        *("agent.kernel.cgroupfs", "agent.kernel.mover", "agent.kernel.process_exit"),
        *("agent.kernel.procfs", "agent.token_bucket", "pinning"),
    ),
    "agent.doctor": (
        *("agent.cri", "agent.errors", "agent.kernel", "agent.kubelet"),
        *("agent.quiet", "agent.reconcile.checkpoint", "agent.nri.versions", "pinning"),
        "published.agent_state",
    ),
    "agent.quiet": (
        *("agent.clock", "agent.config", "agent.errors", "agent.interfaces", "agent.kernel.cgroup_names"),
        *("agent.kernel.procfs", "agent.kernel.settings", "agent.node_state"),
        *(
            "agent.reconcile.foreign_writes",
            "agent.reconcile.checkpoint",
            "agent.reconcile.restorable",
            "logs.printable",
            "pinning",
        ),
    ),
    "agent.reconcile": (
        *("agent.clock", "agent.errors", "agent.interfaces", "agent.metrics", "agent.node_state"),
        *("agent.kubelet.policy", "agent.own_pods", "agent.plain_pods", "agent.published_parts"),
        *("agent.vm_interfaces", "apiserver.backoff", "pinning"),
    ),
    "agent.report": (
        *("agent.clock", "agent.config", "agent.interfaces", "agent.metrics", "agent.node_state"),
        *(
            "agent.errors",
            "agent.kept_pod",
            "agent.published_parts",
            "agent.token_bucket",
            "apiserver",
            "pinning",
            "published",
        ),
    ),
    "agent.process": (
        *("agent.clock", "agent.errors", "agent.interfaces", "agent.metrics", "agent.node_state"),
        *("agent.quiet", "agent.reconcile", "agent.report.publisher", "agent.serve"),
    ),
    "agent.access": ("agent.config", "agent.errors", "apiserver"),
    "agent.group_start": ("apiserver", "pinning"),
    "agent.group_wait": (
        *("agent.access", "agent.config", "agent.group_start", "agent.report", "agent.serve"),
        *("apiserver", "pinning"),
    ),
    "agent.main": ("agent", "apiserver", "pinning"),
    "webhook.metrics": (),
    "webhook.config": (
        *("apiserver", "kubeyaml", "webhook.metrics", "pinning"),
        *("published.codec", "published.node_topology"),
    ),
    "webhook.rules": ("webhook.config", "pinning"),
    "webhook.review": ("webhook.config", "webhook.metrics", "webhook.rules", "pinning"),
    "webhook.server": ("webhook.config", "webhook.metrics", "webhook.review", "pinning"),
    "corepin.errors": (),
    "corepin.flags": ("corepin.errors",),
    "corepin.host_flags": ("corepin.errors", "corepin.flags", "pinning.contract"),
    "corepin.rule_files": ("corepin.flags", "webhook.config"),
    "corepin.terminal": (),
    "corepin.json_text": ("kubeyaml",),
    "corepin.documents": (
        *("corepin.errors", "corepin.flags", "corepin.json_text", "drawing.spans", "kubeyaml"),
        "logs.printable",
    ),
    "corepin.node_file": ("corepin.documents", "corepin.errors", "pinning"),
    "corepin.__main__": ("corepin.cli",),
    "corepin.cli": (
        *("corepin.documents", "corepin.errors", "logs.printable"),  # it finds the verbs by their names
    ),
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
        *("corepin.documents", "corepin.errors", "corepin.flags", "corepin.node"),
        *("corepin.terminal", "logs.printable", "pinning.contract"),
    ),
    "corepin.node": (
        *("corepin.documents", "corepin.errors", "corepin.flags", "corepin.host_flags", "corepin.terminal"),
        *("agent.doctor", "agent.kernel.cgroup_names", "apiserver", "drawing", "logs.printable", "pinning"),
        "published",
    ),
    "corepin.cmk": (
        *("corepin.documents", "corepin.errors", "corepin.node", "corepin.offline.plan"),
        *("kubeyaml", "logs.printable", "pinning", "published"),
    ),
    "dashboard.model": ("drawing", "pinning", "published"),
    "dashboard.view": ("drawing", "dashboard.model", "pinning", "published"),
    "dashboard.serve": ("apiserver", "dashboard.model", "dashboard.view", "pinning.contract"),
    "corepin.offline": (
        *("corepin", "agent.kernel.sysfs", "drawing", "kubeyaml", "logs.printable", "pinning", "webhook"),
        *("published.node_pools", "published.pod_status"),
    ),
}
CODE = sorted(path for folder in PACKAGES | OUTSIDE for path in Path(folder).rglob("*.py"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in CODE}


def tops(source: str) -> set[str]:
    """Return the top-level names that a module imports; "" stands for a relative import."""
    return {name.partition(".")[0] for name in imported(source)}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_follows_the_arrows(path: Path) -> None:
    """A module imports its own package, those its arrows point to, and never the tests; never relatively."""
    own = path.parts[0]

    assert tops(path.read_text(encoding="utf-8")) & (PACKAGES | OUTSIDE | {""}) <= ARROWS[own] | {own}


@pytest.mark.parametrize("path", sorted(Path("pinning").rglob("*.py")), ids=str)
def test_pinning_is_standard_library_only(path: Path) -> None:
    """The domain imports the standard library only, so that it runs wherever Python runs."""
    assert tops(path.read_text(encoding="utf-8")) <= sys.stdlib_module_names | {"pinning"}


def test_imports_are_found_wherever_they_stand() -> None:
    """The walk sees imports in functions and under TYPE_CHECKING, and dotted and relative ones."""
    source = "import a.b, c\nif X:\n    from d.e import f\ndef g():\n    from h import i\nfrom . import j\n"

    assert imported(source) == {"a.b", "c", "d.e.f", "h.i", "..j"}
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
    """Only `agent.main` imports the implementations of interfaces, apart from doctor and the command."""
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
            "agent.quiet",
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


def test_the_kernel_room_alone_sets_affinities() -> None:
    """Every mask of another process is set by `agent/kernel`; the two programs of the shim set their own alone."""
    shipped = [path for folder in (*PACKAGES, "shim") for path in Path(folder).rglob("*.[cp]*")]
    setting = {
        path.as_posix()
        for path in shipped
        if path.suffix in (".c", ".py") and "sched_setaffinity" in path.read_text(encoding="utf-8")
    }

    assert setting == {"agent/kernel/affinity.py", "shim/guest.c", "shim/init.c"}


def test_no_packages_go_round_in_a_circle() -> None:
    """Packages do not import each other in a cycle."""
    assert circle(between(package)) == []


def test_no_rooms_go_round_in_a_circle() -> None:
    """Rooms do not import each other in a cycle."""
    assert circle(between(room)) == []


def test_no_files_go_round_in_a_circle() -> None:
    """No two files import each other, directly or by a chain of imports."""
    assert circle(arrows()) == []


def test_nothing_is_too_large() -> None:
    """No folder, file or class exceeds its limit, except for those that `tests/sizes.py` names."""
    assert {*full_folders(CODE), *long_files(TEXTS), *long_classes(TEXTS)} == ABOVE.keys()
    assert all(ABOVE.values())


def test_no_function_is_too_long() -> None:
    """No function is longer than the limit; for functions there are no exceptions."""
    assert list(long_functions(TEXTS)) == []


def test_what_is_too_large_is_found() -> None:
    """One file or line more than the limit is found; a function's docstring is not a part of it."""
    path = Path("a/b.py")

    def texts(class_lines: int, function_lines: int) -> dict[Path, str]:
        fields, steps = "    x = 1\n" * (class_lines - 1), "    y = 1\n" * (function_lines - 1)
        return {path: f'class C:\n{fields}\ndef f():\n    """One.\n\n    Two.\n    """\n{steps}'}

    within, above = texts(250, 40), texts(251, 41)

    assert [*long_files({path: "\n" * 500}), *long_classes(within), *long_functions(within)] == []
    assert list(long_files({path: "\n" * 501})) == ["a/b.py"]
    assert list(long_classes(above)) == ["a/b.py::C"]
    assert list(long_functions(above)) == ["a/b.py::f"]
    assert list(full_folders([Path(f"a/{number}.py") for number in range(25)])) == []
    assert list(full_folders([Path(f"a/{number}.py") for number in range(26)])) == ["a"]


def test_no_test_imports_another_one() -> None:
    """No test module imports another one: shared code is in a module of its own."""
    tests = [path for path in CODE if path.parts[0] == "tests"]
    sharing = {
        (str(path), name)
        for path in tests
        for name in imported(path.read_text(encoding="utf-8"))
        if re.match(r"tests\.(\w+\.)*test_", name)
    }

    assert sharing == set()


def test_what_must_be_covered_is_there() -> None:
    """Every pattern in the Makefile for files that need full coverage matches a file."""
    (listed,) = re.findall(r"^PURE := (\S+)$", Path("Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert all(any(Path().glob(pattern)) for pattern in listed.split(","))
