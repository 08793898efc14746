"""docs/troubleshooting.md has every message about a problem, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from agent import group_wait
from agent.dra import refusals
from agent.report import desired_node, events
from pinning import contract
from pinning.planning import cpu_groups, refusal
from tests.docs import said
from tests.tables import table

PAGE = Path("docs/troubleshooting.md").read_text(encoding="utf-8")
HOLE = "…"
ENOUGH_WORDS = 3  # shorter texts are no messages
EDGES = " ,;:.()"
# The modules that create the messages of each section.
PODS = (
    "pinning/pods/annotations.py",
    "pinning/pods/budget.py",
    "pinning/pods/claims.py",
    "pinning/pods/eligible.py",
    "pinning/pods/core_counts.py",
    "pinning/pods/crowd.py",
    "pinning/pods/crio.py",
    "pinning/pods/irq_policy.py",
    "pinning/pods/resources.py",
    "pinning/pods/shared_cpus.py",
    "pinning/pods/warnings.py",
    "webhook/rules/account.py",
    "webhook/rules/budget_record.py",
    "webhook/rules/counts.py",
    "webhook/rules/memory.py",
    "webhook/rules/pods.py",
    "webhook/rules/gate.py",
    "webhook/rules/mutate.py",
    "webhook/rules/sidecars.py",
    "webhook/review/handler.py",
    "webhook/review/unreadable.py",
    "webhook/rules/part_reader.py",
)
MACHINES = (
    "pinning/kubevirt/realtime.py",
    "pinning/kubevirt/review.py",
    "pinning/kubevirt/rules.py",
    "pinning/kubevirt/view.py",
    "pinning/kubevirt/warnings.py",
    "webhook/rules/vms.py",
)
THREADS = (
    "agent/vm/thread_names.py",
    "agent/vm/vcpus.py",
    "pinning/allocation/vcpus.py",
    "pinning/guests/masks.py",
)
NODES = (
    "pinning/planning/plan.py",
    "pinning/planning/asks.py",
    "pinning/planning/assign.py",
    "pinning/allocation/beside.py",
    "pinning/machine/near.py",
    "pinning/planning/claim_grants.py",
    "pinning/planning/memory.py",
    "pinning/pods/counted.py",
    "pinning/allocation/placement.py",
    "pinning/allocation/whole_cores.py",
    "pinning/planning/allocator.py",
    "pinning/errors.py",
)
CLAIMS = ("agent/dra/book.py", "agent/dra/closing.py", "agent/dra/plugin.py", "pinning/dra/claims.py")
QUIET = (
    *(
        f"agent/quiet/{name}.py"
        for name in ("balancer", "idle_states", "interrupt_ban", "interrupts", "irqbalance")
    ),
    *(
        f"agent/quiet/{name}.py"
        for name in ("keeper", "kept", "mover", "quieting", "workqueue_mover", "workqueues")
    ),
    *("agent/reconcile/restorable.py", "pinning/machine/interrupts.py", "pinning/planning/noise.py"),
)
WRAPPERS = tuple(sorted(str(path) for path in Path("agent/wrappers").glob("*.py")))
SHIM = tuple(f"shim/{name}.c" for name in ("agent", "guest", "init", "isolate", "vcpus"))
SECTIONS = {
    "Refusals and warnings about pods": PODS,
    "Refusals and warnings about virtual machines": MACHINES,
    "Threads of virtual machines": THREADS,
    "Why a claim is not fulfilled": NODES,
    "ResourceClaims that are not prepared": CLAIMS,
    "CPUs that are not quiet": QUIET,
    "Errors of `cmk isolate`": WRAPPERS,
}
# Texts in these modules that belong to other sections, or that users do not see.
ELSEWHERE = {
    "Refusals and warnings about pods": ("webhook/review/response.py", "webhook/rules/injection.py"),
    "Refusals and warnings about virtual machines": (),
    "Threads of virtual machines": (
        *("agent/reconcile/sandboxes.py", "agent/reconcile/vms.py", "agent/reconcile/vm_targets.py"),
        *("agent/vm/threads.py", "agent/vm/host_threads.py"),
    ),
    "Why a claim is not fulfilled": ("pinning/planning/refusal.py",),
    "ResourceClaims that are not prepared": (),
    "CPUs that are not quiet": (),
    "Errors of `cmk isolate`": (),
}
IN_C = {"Errors of `cmk isolate`": SHIM}
UNHEARD = {
    "pinning/allocation/static_policy.py"
}  # the kubelet's allocation, which is only compared and never refuses a claim
# The last two are from an annotation that the API server writes.
NOT_SHOWN = {
    *("dict[str, Any]", "a number of ", "another value"),
    *("LimitRanger plugin set: ", "cpu limit for container "),
    # Texts about a damaged checkpoint, which the log names as damaged.
    *("a part of the claim has no CPUs", "two parts hold the same CPUs"),
    # log entries other than warnings, and facts of warnings
    *(
        "claim unprepared",
        "registered at the kubelet",
        "CPUs kept quiet",
        "claims left",
        "delete the pods that name them",
    ),
    *("claims need a kubelet of Kubernetes 1.36 or later", "it was missing, or had been changed"),
    *("how a process ended is not known", "the runtime reports no exit code"),
    # Texts about closed connections, and about a socket that the agent cannot create.
    *(
        "the process that asked has exited",
        "all connections of the node are in use, and this container has its share of them",
    ),
    *("; name another --cmk-install-dir", "no socket in ", "another program writes to "),
    # a request to irqbalance, and a text of which the page has the part before the placeholder
    *("settings ban irqs ", "settings ban irqs NONE", "the bound of CPU {}"),
}


def test_every_maker_of_messages_is_looked_at() -> None:
    """Every module that creates causes or refusals is in the lists of this test."""
    listed = {
        *UNHEARD,
        *PODS,
        *MACHINES,
        *THREADS,
        *NODES,
        *(module for more in ELSEWHERE.values() for module in more),
    }
    assert said.makers("Cause", "cause", "NotEnoughCPUs", "Refusal") - listed == set()


def section(title: str) -> str:
    """Return one section of the page."""
    assert f"\n## {title}\n" in PAGE
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(title: str) -> list[str]:
    """Return the code in the first column of a section's tables."""
    rows = re.findall(r"^\| (.*?) \|", section(title), re.MULTILINE)
    return [code for row in rows for code in re.findall(r"`(.+?)`(?=[,\s]|$)", row)]


def pieces(title: str) -> set[str]:
    """Return the messages of a section, split at their placeholders."""
    return {piece.strip(EDGES) for cell in first_cells(title) for piece in cell.split(HOLE)} - {""}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_message_is_documented(title: str) -> None:
    """Every text of the rules is in its section."""
    described = pieces(title)
    logged = set(first_cells("Warnings in the logs"))
    shown = (said.texts(*SECTIONS[title]) | said.c_texts(*IN_C.get(title, ()))) - NOT_SHOWN - logged
    texts = {text for text in shown if len(text.split()) >= ENOUGH_WORDS}
    assert len(texts) > 10
    missing = {text for text in texts if not any(text.strip(EDGES) in piece for piece in described)}
    assert missing == set()


@pytest.mark.parametrize("title", SECTIONS)
def test_every_documented_message_exists(title: str) -> None:
    """Every message on the page has its text in the code."""
    texts = said.texts(*SECTIONS[title], *ELSEWHERE[title]) | said.c_texts(*IN_C.get(title, ()))
    assert {piece for piece in pieces(title) if not any(piece in text for text in texts)} == set()


@table(
    "title, names",
    {
        "events": ("Events of pods", lambda: set(events.Reason)),
        "certs": ("Events of certificates", lambda: said.first_arguments("certs", "Event", "_warning")),
        "doctor": ("What corepin doctor looks at", lambda: said.subjects("agent/doctor")),
        "logs": (
            "Warnings in the logs",
            lambda: said.loud_logs("agent", "apiserver", "webhook", "certs", "corepin"),
        ),
    },
)
def test_names_are_documented_and_exist(title: str, names: Callable[[], set[str]]) -> None:
    """The first column has each name, and no other."""
    known = names()  # read here and not at import, because pytest imports this module for any test run
    assert known
    assert set(first_cells(title)) == known


def test_reasons_of_refusals_are_documented_and_exist() -> None:
    """The first table of the section has each reason; the second has the messages."""
    rows = section("Why a claim is not fulfilled").partition("| message |")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)) == set(refusal.Reason)


def test_causes_of_refused_prepares_are_documented_and_exist() -> None:
    """The page lists the words of the metric of refused Prepares beside the messages that they count."""
    described = section("ResourceClaims that are not prepared")
    words = set(re.findall(r"\| `(\w+)` \|", described)) | set(re.findall(r"\(`(\w+)`\)", described))
    assert words == set(refusals.Cause)


def test_reasons_of_held_starts_are_documented() -> None:
    """The page has every message with which the agent holds back a container over NRI."""
    texts = {it for it in said.texts("pinning/planning/start_table.py") if len(it.split()) >= ENOUGH_WORDS}
    described = pieces("Symptoms")
    assert len(texts) > 5
    assert {text for text in texts if not any(text.strip(EDGES) in piece for piece in described)} == set()


def test_alerts_are_documented_and_exist() -> None:
    """The table has each alert of the monitoring component, and no other."""
    document = yaml.safe_load(Path("manifests/components/monitoring/alerts.yaml").read_text(encoding="utf-8"))
    rules = [rule["alert"] for group in document["spec"]["groups"] for rule in group["rules"]]
    assert first_cells("Alerts") == rules


def test_conditions_and_taints_are_documented_and_exist() -> None:
    """The page has every condition with its reasons, and every taint, that the agent writes or removes."""
    described = section("Conditions and taints of nodes")
    code = (
        said.texts(desired_node.__file__) | said.texts(cpu_groups.__file__) | said.texts(group_wait.__file__)
    )
    conditions = {
        contract.KUBELET_CONDITION,
        contract.OVERCOMMIT_CONDITION,
        contract.PLUGIN_CONDITION,
        contract.DEGRADED_CONDITION,
        contract.NOISE_CONDITION,
    }
    taints = {
        f"{item.key}={item.value}:{item.effect}"
        for item in (desired_node.CMK_TAINT, desired_node.OVERCOMMIT_TAINT)
    }
    assert set(re.findall(r"condition `(\w+)`", described)) == conditions
    assert set(re.findall(r"taint `(.+?)`", described)) == taints | {contract.NOT_READY_TAINT_KEY}
    reasons = set(re.findall(r"reason `(\w+)`", described))
    assert reasons <= code
    conditional = {text for text in code if re.fullmatch(r"([A-Z][a-zA-Z]+){2,}|Enough", text)}
    assert conditional - {"NoSchedule"} == reasons


def test_refusals_of_the_policies_are_documented() -> None:
    """Each message of a policy in the base or a component starts like a message on the page."""
    files = [Path("manifests/base/policies.yaml"), *sorted(Path("manifests/components").rglob("*.yaml"))]
    documents = [item for file in files for item in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    policies = [
        item
        for item in documents
        if isinstance(item, dict) and item.get("kind") == "ValidatingAdmissionPolicy"
    ]
    validations = [rule for item in policies for rule in item["spec"].get("validations", ())]
    cells = first_cells("Refusals of the policies")
    begins = {cell.partition(HOLE)[0].strip() for cell in cells} - {""}
    shown = {part for cell in cells for part in cell.split(HOLE) if part}
    said_by = [rule.get("messageExpression") or rule["message"] for rule in validations]
    assert len(said_by) > 20
    assert [text for text in said_by if not any(begin in text for begin in begins)] == []
    assert [part for part in shown if not any(part.strip() in text for text in said_by)] == []


def test_reasons_of_readiness_are_documented() -> None:
    """The table has every reason that `/readyz` of agent, guard and webhook gives."""
    described = section("A pod of corepin is not ready")
    texts = [
        *(
            text
            for text in said.texts("agent/serve/endpoints.py")
            if "listed yet" in text or "answer" in text
        ),
        *(text for text in said.texts("agent/nri/guard_process.py") if "validators" in text or "yet" in text),
        *said.returned("webhook/server/status.py", "obstacle"),
    ]
    assert len(texts) > 8
    assert [text for text in texts if text.strip(EDGES) not in described] == []
