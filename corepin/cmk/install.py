"""Server-side apply of an installation and its node labels; idempotent; the changes are printed first."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.difference import choice_lines, key_lines, node_lines
from corepin.cmk.dry_run import CONFLICT, MODIFIED, check_applies, object_lines
from corepin.cmk.fits import check_nodes
from corepin.cmk.flags import note
from corepin.cmk.installed import Installed, chosen_over, read_installed
from corepin.cmk.namespaces import Found, check, create, marked
from corepin.cmk.numbers import plan_numbers
from corepin.cmk.overlay import CMK, Choices, agents_config, overlay
from corepin.cmk.requests import APPLY_PATCH, MERGE_PATCH, Answered, kube_client, send
from corepin.documents import write_out
from corepin.errors import CommandFailed
from pinning.contract import AGENT_NAMESPACE, AGENT_NODE_LABEL, CPU_GROUP_LABEL
from pinning.planning.cpu_groups import KEY, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corepin.cmk.numbers import Planned, Wanted
    from corepin.cmk.overlay import Object

NAMED: Final = 5  # most nodes that one line names
# Field manager of `kubectl apply --server-side`, so that users may use that command too.
MANAGER: Final = "kubectl"
NODES: Final = "/api/v1/nodes"


@dataclass(frozen=True, slots=True)
class Order:
    """Arguments of `cluster-init`; no hosts mean every schedulable node."""

    hosts: tuple[str, ...]
    choices: Choices
    wanted: Wanted
    namespace: str


@dataclass(frozen=True, slots=True)
class Work:
    """Objects and labels to apply, and the resulting changes as text."""

    documents: list[Object]
    labels: Mapping[str, Mapping[str, str | None]]  # labels to set on each node; None: to remove
    lines: tuple[str, ...]  # the changes as text
    choices: Choices
    has_new_numbers: bool  # whether the configuration of nodes on which agents may run changes


def show(order: Order) -> bool:
    """Print the changes without applying them; return whether there are any."""
    with kube_client() as api:
        found = check(api, order.namespace)
        work = _prepare(api, order)
        documents = _marked(work.documents, found, order.namespace)
        lines = (*work.lines, *object_lines(api, documents, path_of, f"fieldManager={MANAGER}&force=true"))
    write_out("".join(f"{line}\n" for line in lines) or "nothing would change\n")
    return bool(lines)


def install(order: Order, *, force: bool) -> str:
    """Apply all objects, then label the nodes; return the service account of injected pods.

    Before that, check the agents' namespace, the nodes' CPUs and, by a dry run, every object, and print the changes.
    The namespace gets corepin's label only if this command creates it, or if it has the label already.
    """
    query = f"fieldManager={MANAGER}{'&force=true' if force else ''}"
    with kube_client() as api:
        found = check(api, order.namespace)
        work = _prepare(api, order)
        documents = _marked(work.documents, found, order.namespace)
        check_applies(api, documents, path_of, query)
        write_out("".join(f"{line}\n" for line in work.lines))
        if not found.exists:
            create(api, order.namespace)
        for it in documents:
            _apply(api, it, query)
            write_out(f"{it['kind']} {it['metadata']['name']}: applied\n")
        for node, labels in work.labels.items():
            label(api, node, labels)
            write_out(f"node {node}: {', '.join(_word(*it) for it in labels.items())}\n")
    if work.has_new_numbers:
        restart = f"kubectl -n {order.namespace} rollout restart daemonset/corepin-agent"
        note(f"running agents use the new numbers after a restart: {restart}")
    return work.choices.account or ""


def _marked(documents: list[Object], found: Found, namespace: str) -> list[Object]:
    """Return the objects, with corepin's label on the Namespace if it is new or corepin created it."""
    is_ours = not found.exists or found.is_created_by_us or namespace == AGENT_NAMESPACE
    return marked(documents, namespace) if is_ours else documents


def _prepare(api: Any, order: Order) -> Work:
    """Return objects, labels and changes to apply; raise CommandFailed for numbers that do not fit a node."""
    nodes = {node["metadata"]["name"]: node for node in send(api, "GET", NODES)["items"]}
    labels = {name: node["metadata"].get("labels") or {} for name, node in nodes.items()}
    chosen = chosen_nodes(nodes.values(), order.hosts)
    installed = read_installed(api, order.namespace)
    choices = chosen_over(order.choices, chosen_over(installed.choices if installed else Choices(), CMK))
    documents = overlay(choices, order.namespace)
    config = agents_config(documents)
    keys = installed.keys if installed else None
    before = {name: labels[name].get(CPU_GROUP_LABEL, "") for name in chosen}
    planned = plan_numbers(order.wanted, keys, config["data"][KEY], before)
    config["data"] = dict(planned.keys)
    if installed:  # so that the write fails if another client has changed a key since
        config["metadata"]["resourceVersion"] = installed.version
    _check_fit(planned, _others(planned, installed, labels), nodes)
    wanted = {name: _labels(group, before[name]) for name, group in planned.groups.items()}
    lines = (
        *key_lines(keys or {}, planned.keys),
        *(choice_lines(installed.choices, choices) if installed else ()),
        *node_lines(labels, wanted),
    )
    is_new = installed is not None and (planned.keys != keys or planned.groups != before)
    return Work(documents, wanted, lines, choices, is_new)


def _others(
    planned: Planned, installed: Installed | None, labels: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Return, by name, the groups of nodes that were not chosen and whose configuration changes too."""
    was = installed.keys if installed else {}
    with_agent = {
        name: its.get(CPU_GROUP_LABEL, "")
        for name, its in labels.items()
        if its.get(AGENT_NODE_LABEL) == "true" and name not in planned.groups
    }
    return {
        name: group
        for name, group in with_agent.items()
        if planned.keys.get(key_of(group)) != was.get(key_of(group))
    }


def _check_fit(planned: Planned, others: Mapping[str, str], nodes: Mapping[str, Any]) -> None:
    """Raise CommandFailed if numbers do not fit a node; print a note if a node's CPUs are not published."""
    fits = check_nodes(planned.keys, {**others, **planned.groups}, nodes)
    if fits.refused:
        more = f"; and {len(fits.refused) - NAMED} nodes more" if len(fits.refused) > NAMED else ""
        problem = f"{'; '.join(fits.refused[:NAMED])}{more}"
        raise CommandFailed(f"{problem}: nothing was changed; name nodes of one size with --host-list")
    if fits.unknown:
        more = ", ..." if len(fits.unknown) > NAMED else ""
        named = f"{', '.join(fits.unknown[:NAMED])}{more}"
        note(f"warning: no agent has reported the CPUs of {named}: whether the numbers fit is not known")


def _labels(group: str, before: str) -> dict[str, str | None]:
    """Return the labels to set on a node, without an unchanged group."""
    agent: dict[str, str | None] = {AGENT_NODE_LABEL: "true"}
    return agent if group == before else {**agent, CPU_GROUP_LABEL: group or None}


def _word(name: str, value: str | None) -> str:
    return f"without {name}" if value is None else f"{name}={value}"


def chosen_nodes(nodes: Iterable[Any], hosts: Sequence[str], *, every: bool = False) -> tuple[str, ...]:
    """Return the nodes in `hosts`, otherwise all schedulable ones (with `every` all); raise CommandFailed for none."""
    found = {node["metadata"]["name"]: node for node in nodes}
    for host in hosts:
        if host not in found:
            close = get_close_matches(host, found, n=1)
            remedy = f"did you mean {close[0]}?" if close else "`kubectl get nodes` lists the nodes"
            raise CommandFailed(f"--host-list: there is no node {host!r}: {remedy}")
    chosen = tuple(hosts) or tuple(sorted(host for host, node in found.items() if every or _takes_pods(node)))
    if chosen:
        return chosen
    if every:
        raise CommandFailed(
            f"--all-hosts: no node has the label {AGENT_NODE_LABEL}=true, so that no agent is left to uninstall"
        )
    raise CommandFailed(
        "--all-hosts: no Linux node takes pods now: uncordon one, or name it with --host-list"
    )


def label(api: Any, node: str, labels: Mapping[str, str | None]) -> None:
    """Set labels of an existing node; None removes a label."""
    send(api, "PATCH", f"{NODES}/{node}", {"metadata": {"labels": labels}}, MERGE_PATCH)


def path_of(it: Object) -> str:
    """Return the path of an object in the API."""
    version, metadata = it["apiVersion"], it["metadata"]
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{space}/{_plural(it['kind'])}/{metadata['name']}"


def _plural(kind: str) -> str:
    word = kind.lower()
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def _takes_pods(node: Any) -> bool:
    is_linux = (node["metadata"].get("labels") or {}).get("kubernetes.io/os", "linux") == "linux"
    return is_linux and not node["spec"].get("unschedulable")


def _apply(api: Any, it: Object, query: str) -> None:
    try:
        send(api, "PATCH", f"{path_of(it)}?{query}", it, APPLY_PATCH)
    except Answered as error:
        if error.status != CONFLICT:
            raise
        if MODIFIED in str(error):
            raise CommandFailed(f"{error}: repeat this command") from error
        raise CommandFailed(f"{error}: to take these fields over, add --force-conflicts") from error
