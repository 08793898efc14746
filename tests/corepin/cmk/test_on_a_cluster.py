"""`corepin cmk` against a real API server: apply, diff, describe, report, discover and uninstall."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent.report.cmk_node import cmk_node
from agent.report.desired_node import topology_text
from corepin.cli import main
from corepin.cmk.account_rights import account_warnings
from corepin.cmk.numbers import Numbers, Wanted
from corepin.cmk.overlay import Choices
from corepin.cmk.requests import kube_client
from corepin.errors import CommandFailed
from pinning.cmk.pools import cmk_pools, cmk_yaml
from pinning.cmk.reports import describe, node_report
from tests.agent.states import bound, state_of
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import NEWEST
from tests.environments.server.start import start_servers
from tests.pods import CORES, container

pytestmark = pytest.mark.server

AGENTS = "corepin-agent"
LABEL = "corepin.io/agent"
SECONDS = 120.0
STATE = state_of(bound("a", container("main", {CORES: 2})))
POOLS = cmk_pools(cmk_node(STATE))
NODES = ("n1", "n2", "n3.example.com")
SPECS = {"n2": {"unschedulable": True}}
IMAGE = "--cmk-img=registry.example/corepin:1"


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    """Return an API server with three nodes; one is cordoned, and one has its agent's topology annotation."""
    with start_servers(NEWEST) as api:
        for name in NODES:
            annotations = {"status.corepin.io/topology": topology_text(STATE)} if name == "n1" else {}
            metadata = {"name": name, "annotations": annotations}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": SPECS.get(name, {})}
            api.kubectl("create", "-f", "-", input=json.dumps(node))
        yield api


@pytest.fixture
def here(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """Return the cluster that the command sees."""
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig()))
    monkeypatch.delenv("NODE_NAME", raising=False)
    return api


def labelled(api: ApiServer) -> set[str]:
    """Return the nodes on which the agents run."""
    return {node["metadata"]["name"] for node in api.get("nodes", f"-l={LABEL}=true")["items"]}


def versions(api: ApiServer) -> dict[str, str]:
    """Return the resource versions of corepin's objects and of the nodes, by uid."""
    kinds = (
        "deployments,daemonsets,services,configmaps,roles,clusterroles,crds,nodes,validatingadmissionpolicies"
    )
    items = [
        *api.get(kinds, "-A", "-l=app.kubernetes.io/name=corepin")["items"],
        *api.get("nodes")["items"],
    ]
    return {it["metadata"]["uid"]: it["metadata"]["resourceVersion"] for it in items}


def init(*flags: str) -> int:
    """Apply the overlay with core counts that fit the four cores of n1."""
    return main(["cmk", "cluster-init", "--apply", IMAGE, "--num-exclusive-cores=2", *flags])


def test_apply_may_be_repeated(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A second `--apply` changes nothing; another host list adds nodes; --all-hosts takes schedulable nodes."""
    assert init("--host-list=n1") == 0
    assert "node n1: corepin.io/agent=true" in capsys.readouterr().out
    assert labelled(here) == {"n1"}
    before = versions(here)
    assert init("--host-list=n1") == 0
    assert versions(here) == before
    assert init("--all-hosts") == 0
    assert labelled(here) == {"n1", "n3.example.com"}
    assert init("--host-list=n2") == 0
    assert labelled(here) == set(NODES)


def test_a_node_that_is_not_there_is_refused_before_anything_is_done(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown node is refused before any change, with a similar name."""
    before = versions(here)
    assert init("--host-list=n1,n3.exampel.com") == 2
    assert (
        "--host-list: there is no node 'n3.exampel.com': did you mean n3.example.com?"
        in capsys.readouterr().err
    )
    assert versions(here) == before


def test_fields_of_others_are_taken_over_when_that_is_asked_for(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fields changed by hand are conflicts, found before any write; a flag takes them over, as in kubectl."""
    assert init("--host-list=n1") == 0
    change = '{"spec": {"minReadySeconds": 3, "template": {"spec": {"terminationGracePeriodSeconds": 3}}}}'
    here.kubectl("-n", AGENTS, "patch", "daemonset", "corepin-agent", "--type=merge", "-p", change)
    here.kubectl("label", "node", "n1", f"{LABEL}-")
    before = versions(here)
    capsys.readouterr()
    assert init("--host-list=n1", "--no-taint") == 2
    shown = capsys.readouterr()
    assert (versions(here), shown.out) == (before, "")
    assert "daemonsets/corepin-agent: the API server answered 409: Apply failed with 1 conflict" in shown.err
    assert shown.err.endswith("nothing was changed: to take these fields over, add --force-conflicts\n")
    assert init("--host-list=n1", "--force-conflicts") == 0
    pod = here.get("-n", AGENTS, "daemonset", "corepin-agent")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 10


def keys(api: ApiServer) -> dict[str, str]:
    """Return the keys of the agents' ConfigMap."""
    found: dict[str, str] = api.get("-n", AGENTS, "configmap", "corepin-agent")["data"]
    return found


def group(api: ApiServer, node: str) -> str | None:
    """Return the group of a node."""
    found: str | None = api.get("node", node)["metadata"]["labels"].get("corepin.io/cpu-group")
    return found


NAME = "exclusive-14-shared-1"
FOURTEEN = ("cmk", "cluster-init", "--host-list=n2", "--num-exclusive-cores=14")


def edit(api: ApiServer, **data: str | None) -> None:
    """Change keys of the agents' ConfigMap by hand."""
    change = json.dumps({"data": {key.replace("_", "."): text for key, text in data.items()}})
    api.kubectl("-n", AGENTS, "patch", "configmap", "corepin-agent", "--type=merge", "-p", change)


def test_the_difference_is_shown_and_nothing_changed(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The diff's exit code says whether anything would change; an unknown node is a warning, and nothing is written."""
    assert init("--host-list=n1") == 0
    before = versions(here)
    capsys.readouterr()
    assert main([*FOURTEEN, "--diff"]) == 1
    shown = capsys.readouterr()
    assert f"ConfigMap corepin-agent: config.{NAME}.yaml is new\n" in shown.out
    assert f"node n2: corepin.io/cpu-group={NAME}\n" in shown.out
    assert "warning: no agent has reported the CPUs of n2: whether the numbers fit is not known" in shown.err
    assert versions(here) == before
    assert main(["cmk", "cluster-init", "--host-list=n1", "--diff"]) == 0
    assert capsys.readouterr().out == "nothing would change\n"
    selector = ("-n", AGENTS, "patch", "daemonset", "corepin-agent", "--type=merge", "-p")
    here.kubectl(*selector, '{"spec": {"template": {"spec": {"priorityClassName": "mine"}}}}')
    here.kubectl("-n", AGENTS, "delete", "networkpolicy", "corepin-agent")
    assert main(["cmk", "cluster-init", "--host-list=n1", "--diff"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "DaemonSet corepin-agent: changes spec.template.spec.priorityClassName",
        "NetworkPolicy corepin-agent: is new",
    ]
    assert init("--host-list=n1", "--force-conflicts") == 0


def test_numbers_are_of_nodes(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A command for n2 keeps n1's core counts, the image, the taint setting and the keys of other groups."""
    assert init("--host-list=n1", "--no-taint") == 0
    by_hand = f"# mine\n{keys(here)['config.yaml']}"
    edit(here, config_yaml=by_hand, config_broken_yaml="reserved: [")
    capsys.readouterr()
    assert main([*FOURTEEN, "--apply"]) == 0
    assert capsys.readouterr().out.startswith(f"ConfigMap corepin-agent: config.{NAME}.yaml is new\n")
    assert (group(here, "n1"), group(here, "n2")) == (None, NAME)
    now = keys(here)
    assert (now["config.yaml"], now["config.broken.yaml"]) == (by_hand, "reserved: [")
    assert "exclusive_cores: 14" in now[f"config.{NAME}.yaml"]
    pod = here.get("-n", AGENTS, "daemonset", "corepin-agent")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/corepin:1"
    assert [it.get("value") for it in container["env"] if it["name"] == "COREPIN_TAINT"] == [None]
    before = versions(here)
    assert main([*FOURTEEN, "--apply"]) == 0
    assert versions(here) == before
    edit(here, config_broken_yaml=None)
    assert init("--host-list=n2", "--taint") == 0  # the default core counts, as for n1
    assert group(here, "n2") is None
    assert "config.broken.yaml" not in keys(here)


def test_numbers_that_a_known_node_cannot_hold_are_refused(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers above the four cores that n1's agent reported are refused before any write, for n1 or its whole group."""
    assert init("--host-list=n1", "--cpu-group=small", "--num-exclusive-cores=1", "--num-shared-cores=0") == 0
    before = versions(here)
    for flags in (
        ("--host-list=n1", "--num-exclusive-cores=40"),
        ("--host-list=n2", "--cpu-group=small", "--num-exclusive-cores=40"),
    ):
        capsys.readouterr()
        assert init(*flags) == 2
        assert "node n1 cannot have config." in capsys.readouterr().err
    assert versions(here) == before


def test_another_client_that_writes_at_the_same_time_loses_nothing(here: ApiServer) -> None:
    """If another client changes the ConfigMap after it was read, apply fails, and the other client's group is kept."""
    from corepin.cmk import install

    assert init("--host-list=n1") == 0
    with kube_client() as client:
        order = install.Order(("n1",), Choices(), Wanted(Numbers(exclusive_cores=2), "mine"), AGENTS)
        work = install._prepare(client, order)
        edit(here, config_theirs_yaml="smtPolicy: require")
        (document,) = (
            it
            for it in work.documents
            if it["metadata"]["name"] == "corepin-agent" and it["kind"] == "ConfigMap"
        )
        with pytest.raises(CommandFailed, match=r"object has been modified.*: repeat this command"):
            install._apply(client, document, "fieldManager=kubectl&force=true")
    assert "config.theirs.yaml" in keys(here)


def test_bindings_of_the_account_are_warned_of(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Bindings of the account are warned about; bindings that the caller may not list are reported as unknown."""
    account = "cmk-namespace:cmk-serviceaccount"
    binding = ("create", "clusterrolebinding", "cmk-role-binding-node", "--clusterrole=system:node")
    here.kubectl(*binding, f"--serviceaccount={account}")
    here.kubectl(
        "create", "rolebinding", "viewer", "--clusterrole=view", f"--user=system:serviceaccount:{account}"
    )
    assert init("--host-list=n1") == 0
    told = capsys.readouterr().err
    named = "ClusterRoleBinding cmk-role-binding-node, RoleBinding default/viewer give it rights"
    assert f"corepin cmk: warning: --saname: pods get an account cmk-serviceaccount, and {named}: " in told
    assert init("--host-list=n1", "--saname=pinned") == 0
    assert "warning" not in capsys.readouterr().err
    with kube_client() as client:
        client.headers["Impersonate-User"] = "stranger"
        unknown = list(account_warnings(client, "cmk-serviceaccount"))
    for kind, warning in zip(("ClusterRoleBinding", "RoleBinding"), unknown, strict=True):
        whether = f"whether a {kind} gives rights to an account cmk-serviceaccount is not known: GET "
        assert warning.startswith(f"warning: --saname: {whether}")
        assert "answered 403" in warning
    here.kubectl("delete", "clusterrolebinding/cmk-role-binding-node", "rolebinding/viewer")


def test_a_node_is_described_from_what_its_agent_wrote(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node is described from ConfigMap and annotation; a node without an agent is one line."""
    assert init("--host-list=n1") == 0
    here.kubectl(
        "-n", AGENTS, "create", "configmap", "cmk-config-n1", f"--from-literal=config={cmk_yaml(POOLS)}"
    )
    capsys.readouterr()
    assert main(["cmk", "describe", "--node=n1"]) == 0
    assert json.loads(capsys.readouterr().out) == describe(POOLS)
    assert main(["cmk", "reconcile", "--node=n1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"reclaimedCpuLists": []}
    assert main(["cmk", "describe", "--node=n2"]) == 2
    assert "node n2 has no annotation status.corepin.io/topology" in capsys.readouterr().err
    assert main(["cmk", "describe", "--node=n1", "--namespace=elsewhere"]) == 2
    assert "name the agents' namespace with --namespace" in capsys.readouterr().err


def test_a_report_is_published_in_place(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A report is updated in place, and an unchanged one is not written again."""
    assert init("--host-list=n1") == 0
    here.kubectl(
        *("-n", AGENTS, "create", "configmap", "cmk-config-n1", f"--from-literal=config={cmk_yaml(POOLS)}"),
        check=False,
    )
    for _ in range(2):
        assert main(["cmk", "node-report", "--node=n1", "--publish"]) == 0
    shown = here.get("-n", AGENTS, "cmk-nr", "n1")
    assert shown["spec"]["report"] == node_report(POOLS, STATE.topology)
    assert shown["metadata"]["generation"] == 1


def test_discover_says_what_is_missing(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """`discover` says what a node lacks: one is complete, one has no taint, and one is unknown."""
    assert main(["cmk", "discover"]) == 2
    assert "no node has the label cmk.intel.com/cmk-node=true" in capsys.readouterr().err
    here.kubectl("label", "node", "n1", "cmk.intel.com/cmk-node=true")
    status = {"status": {"allocatable": {"cmk.intel.com/exclusive-cores": "4"}}}
    here.kubectl("patch", "node", "n1", "--subresource=status", "-p", json.dumps(status))
    assert main(["cmk", "discover"]) == 1
    found = "n1: cmk.intel.com/exclusive-cores: 4, label cmk.intel.com/cmk-node=true"
    assert capsys.readouterr().out == f"{found}, MISSING taint cmk=true:NoSchedule\n"
    assert main(["cmk", "discover", "--no-taint"]) == 0
    here.kubectl("taint", "node", "n1", "cmk=true:NoSchedule")
    assert main(["cmk", "discover", "--node=n1"]) == 0
    assert capsys.readouterr().out.endswith(f"{found}, taint cmk=true:NoSchedule\n")
    assert main(["cmk", "discover", "--node=n2"]) == 1
    assert "n2: MISSING cmk.intel.com/exclusive-cores, MISSING label" in capsys.readouterr().out
    here.kubectl("taint", "node", "n1", "cmk-")


def finish(api: ApiServer, pod: str) -> Any:
    """Let a pod succeed, as its kubelet would; return it."""
    deadline = time.monotonic() + SECONDS
    while (done := api.kubectl("-n", AGENTS, "get", "pod", pod, "-o=json", check=False)).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    status = json.dumps({"status": {"phase": "Succeeded"}})
    api.kubectl("-n", AGENTS, "patch", "pod", pod, "--subresource=status", "-p", status)
    return json.loads(done.stdout)


def test_uninstall_cleans_the_chosen_nodes(here: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    """`uninstall` only prints without --apply; with it the agent's pod resets the node and its objects are deleted."""
    assert init("--host-list=n1,n2", "--cpu-group=mine") == 0
    assert group(here, "n1") == "mine"
    for plural, kind in (
        ("cmk-nodereports", "Cmk-nodereport"),
        ("cmk-reconcilereports", "Cmk-reconcilereport"),
    ):
        report = {"apiVersion": "intel.com/v1", "kind": kind, "metadata": {"name": "n1", "namespace": AGENTS}}
        here.kubectl("apply", "-f", "-", input=json.dumps(report))
        assert here.get("-n", AGENTS, plural)["items"]
    capsys.readouterr()
    assert main(["cmk", "uninstall", "--host-list=n1"]) == 0
    assert "nodeName: n1" in capsys.readouterr().out
    assert labelled(here) >= {"n1", "n2"}
    with ThreadPoolExecutor(1) as pool:
        kubelet = pool.submit(finish, here, "corepin-reset-n1")
        assert main(["cmk", "uninstall", "--host-list=n1", "--apply"]) == 0
        (container,) = kubelet.result()["spec"]["containers"]
    assert container["args"] == ["agent", "--reset"]
    assert "livenessProbe" not in container
    assert "n1" not in labelled(here)
    assert (group(here, "n1"), group(here, "n2")) == (None, "mine")
    assert here.get("-n", AGENTS, "pods")["items"] == []
    for kind in ("cmk-nr", "cmk-rr", "configmaps"):
        names = [it["metadata"]["name"] for it in here.get("-n", AGENTS, kind)["items"]]
        assert not {"n1", "cmk-config-n1"} & set(names)
    assert capsys.readouterr().out == "node n1: uninstalled\n"


def test_agents_on_every_node_are_not_uninstalled_one_by_one(
    here: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agents that run on every node are not uninstalled from single nodes, since no label would stop them."""
    assert main(["cmk", "uninstall", "--host-list=n1", "--namespace=elsewhere"]) == 2
    assert "name the agents' namespace with --namespace" in capsys.readouterr().err
    assert init("--host-list=n1") == 0
    selector = [{"op": "remove", "path": "/spec/template/spec/nodeSelector/corepin.io~1agent"}]
    here.kubectl(
        *("-n", AGENTS, "patch", "daemonset", "corepin-agent", "--type=json", "-p", json.dumps(selector))
    )
    assert main(["cmk", "uninstall", "--host-list=n1"]) == 2
    assert "run on every node" in capsys.readouterr().err
