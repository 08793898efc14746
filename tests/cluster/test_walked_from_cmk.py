"""The migration guide, walked from Intel CMK to its end and back: on a real node, and on one whose CPUs are a tree."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.overlay import FILE
from kubeyaml.reader import read_yaml
from kubeyaml.writer import write_yaml
from pinning.machine.cpuset import CPUSet
from tests.cluster.cmk import (
    ACCOUNT,
    CMK_LABEL,
    INJECTED,
    PROGRAM,
    USERS,
    cmk_installed,
    running_pods,
    take_over,
)
from tests.cluster.played_node import played_node
from tests.cluster.removal import ours, uninstall
from tests.docs.migration import CORES, RIGHTS, Walk, differences, of_users, rights
from tests.environments.cluster.cluster import AGENT, SYSTEM, TIMES
from tests.environments.node.node import allowed_cpus
from tests.environments.waiting import until, until_equal
from tests.image.build import NAME
from tests.manifests.guide import shell

if TYPE_CHECKING:
    from tests.cluster.played_node import PlayedNode
    from tests.environments.cluster.cluster import Cluster
    from tests.environments.node.node import Container
    from tests.manifests.guide import Shell

FIRST, SECOND = "node-1", "node-2"
CPUS, SECOND_CORES = 32, 14
SECONDS: Final = 240.0  # pods of Python programs start
DIRECTORIES: Final = {"/host/proc", "/opt/bin", "/etc/cmk"}


def test_way_over_and_back(any_cluster: Cluster, tmp_path: Path) -> None:
    """Nodes migrate from CMK to corepin and back by the guide's steps; the functions below check each result."""
    cluster = any_cluster
    terminal = shell(cluster.plane.server, tmp_path)
    if cluster.applied:
        uninstall(cluster, terminal)
    use_overlay(cluster, terminal)
    machine = tmp_path / "2"  # the paths of Unix sockets have at most 107 bytes
    machine.mkdir()
    cores = {FIRST: cluster.cores, SECOND: SECOND_CORES}
    with (
        played_node(cluster.plane.server, SECOND, machine, CPUS) as second,
        cmk_installed(cluster, cores),
    ):
        users = of_users(cluster.plane.server, USERS)
        way = Walk(terminal.run, own=own(cores))
        walk_half(cluster, way)
        walk_to_the_end(cluster, way, second)
        assert users.items() <= of_users(cluster.plane.server, USERS).items()
        flags = f"--cmk-img={NAME} --num-shared-cores=0"
        assert differences(terminal.run, cluster.plane.server, flags, cores) == ""
        walk_back(cluster, way, second)
        assert users.items() <= of_users(cluster.plane.server, USERS).items()
        assert way.left == []


def own(cores: dict[str, int]) -> dict[str, str]:
    """Return the reader's own values for the guide's numbers and image."""
    return {
        "--num-exclusive-cores=4 --num-shared-cores=1": f"--num-exclusive-cores={cores[FIRST]} --num-shared-cores=0",
        f"registry.example/{NAME.rpartition('/')[2]}": NAME,  # the image of this version
    }


def use_overlay(cluster: Cluster, terminal: Shell) -> None:
    """Let `corepin` carry an overlay for this machine: where the kubelet keeps its cgroups, and the tests' times."""
    documents = [content for _, content in read_yaml(FILE.read_text(encoding="utf-8")) if content]
    values = {**TIMES, "COREPIN_KUBELET_CGROUP_ROOT": cluster.containerd.cgroup}
    for it in documents:
        if it["kind"] in {"Deployment", "DaemonSet"} and it["metadata"]["name"] != "corepin-webhook":
            (container,) = it["spec"]["template"]["spec"]["containers"]
            names = TIMES if it["kind"] == "Deployment" else {"COREPIN_KUBELET_CGROUP_ROOT"}
            kept = [variable for variable in container["env"] if variable["name"] not in names]
            container["env"] = [*kept, *({"name": name, "value": values[name]} for name in names)]
    overlay = terminal.folder / "overlay.yaml"
    overlay.write_text(write_yaml(documents))
    command = terminal.folder / "bin/corepin"
    command.unlink()
    script = (
        f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\nfrom corepin.cmk import overlay\n"
        f"overlay.FILE = Path({str(overlay)!r})\nfrom corepin.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    command.write_text(script)
    command.chmod(0o755)


def walk_half(cluster: Cluster, way: Walk) -> None:
    """Bring the first node over; the second one's CMK goes on with its rights, program and webhook."""
    api = cluster.plane.server
    assert rights(api) == set(RIGHTS)
    way.through("uncordon node-1")
    until("the agent is ready", lambda: is_ready(cluster, AGENT, FIRST), SECONDS)
    until_equal("webhooks", lambda: len(running_ready(cluster, SYSTEM, "webhook")), 2, SECONDS)
    until("reviews are answered", cluster.is_reviewed, SECONDS)
    until_equal("cores", lambda: amounts(cluster.document()), {str(cluster.cores)}, SECONDS)
    assert rights(api) == set(RIGHTS)
    assert daemon_sets(cluster) == {f"cmk-reconcile-nodereport-ds-{SECOND}"}
    both = pod_by_both(cluster)
    assert both["metadata"]["annotations"][INJECTED] == "true"
    for it in (
        both["spec"]["volumes"],
        both["spec"]["tolerations"],
        both["spec"]["containers"][0]["volumeMounts"],
    ):
        assert len({str(entry) for entry in it}) == len(it)
    assert len({volume["name"] for volume in both["spec"]["volumes"]}) == len(both["spec"]["volumes"])


def walk_to_the_end(cluster: Cluster, way: Walk, second: PlayedNode) -> None:
    """Bring the second node over, in a group of its own, then the workloads, and remove what is left of CMK."""
    api = cluster.plane.server
    way.through("uncordon node-2")
    until("the agent is ready", lambda: second.document() and is_ready(cluster, AGENT, SECOND), SECONDS)
    until_equal("cores", lambda: amounts(second.document()), {str(SECOND_CORES)}, SECONDS)
    assert (
        second.document()["metadata"]["labels"]["corepin.io/cpu-group"]
        == f"exclusive-{SECOND_CORES}-shared-0"
    )
    assert amounts(cluster.document()) == {str(cluster.cores)}
    way.through("patch deployment forwarder")
    is_pinned(cluster)
    assert "no" in way.through("auth can-i get secrets").split()
    assert rights(api) == set()
    assert cmk_remains(cluster) == []
    cluster.kubectl("-n", "telco", "rollout", "restart", "deployment")
    for name in ("forwarder", "helper", "collector"):
        cluster.kubectl("-n", "telco", "rollout", "status", f"deployment/{name}", f"--timeout={SECONDS:.0f}s")
    is_pinned(cluster)
    pods = running_pods(cluster, "telco")
    assert len(pods) == 3
    for pod in pods:
        is_injected(pod)


def walk_back(cluster: Cluster, way: Walk, second: PlayedNode) -> None:
    """Give the second node back to CMK while the first one stays, then the first: its containers run on."""
    before = is_pinned(cluster)
    way.through("uninstall --host-list=node-2")
    assert marks(cluster, second.document()) == []
    assert not [name for name in second.document()["metadata"]["labels"] if "corepin" in name]
    assert amounts(cluster.document()) == {str(cluster.cores)}
    take_over(cluster, SECOND, SECOND_CORES)
    until("CMK is back", lambda: is_ready(cluster, "default", SECOND))
    is_pinned(cluster)
    way.through("uninstall --all-hosts")
    assert second.document()["metadata"]["labels"][CMK_LABEL] == "true"
    assert marks(cluster, cluster.document()) == []
    assert list(cluster.programs.iterdir()) == []
    assert forwarder(cluster) == before
    assert before.cpus == cluster.all  # the program itself stays where `cmk isolate` has put it
    left = cluster.kubectl("get", "namespaces,clusterroles,crds", "--selector=app.kubernetes.io/name=corepin")
    assert left == ""


def amounts(node: Any) -> set[str]:
    """Return capacity and allocatable of CMK's cores on a node."""
    return {node["status"][part].get(CORES, "0") for part in ("capacity", "allocatable")}


def daemon_sets(cluster: Cluster) -> set[str]:
    """Return the DaemonSets of CMK."""
    return {it["metadata"]["name"] for it in cluster.get("-n", "default", "daemonsets")["items"]}


def running_ready(cluster: Cluster, namespace: str, component: str = "") -> list[Any]:
    """Return the ready pods of a namespace, or of one component."""
    return [
        pod
        for pod in running_pods(cluster, namespace)
        if all(it["ready"] for it in pod["status"]["containerStatuses"])
        and component in {"", pod["metadata"]["labels"].get("app.kubernetes.io/component")}
    ]


def is_ready(cluster: Cluster, namespace: str, node: str) -> bool:
    """Return whether a namespace has a ready pod on a node."""
    return any(pod["spec"]["nodeName"] == node for pod in running_ready(cluster, namespace))


def pod_by_both(cluster: Cluster) -> Any:
    """Return a pod of users as both webhooks leave it."""
    container = {"name": "main", "image": "cmk:v1.5.2", "resources": {"limits": {CORES: "1"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", "namespace": "telco"}}
    shown = cluster.admitted({**pod, "spec": {"containers": [container]}})
    assert shown
    return shown


def forwarder(cluster: Cluster) -> Container | None:
    """Return the container of the forwarder, None while none runs."""
    found = [pod for pod in running_pods(cluster, "telco") if pod["metadata"]["labels"]["app"] == "forwarder"]
    return cluster.container_of(found[0]) if found else None


def is_pinned(cluster: Cluster) -> Container:
    """Check that the forwarder's program has the cores that CMK's command took for it; return its container."""
    container = until("the forwarder runs", lambda: forwarder(cluster), SECONDS)
    (pid,) = until_pinned(container)
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    assigned = dict(it.partition("=")[::2] for it in variables)["CMK_CPUS_ASSIGNED"]
    assert CPUSet.parse(assigned) != cluster.all
    until_equal("affinity", lambda: allowed_cpus(pid), CPUSet.parse(assigned))
    return container


def until_pinned(container: Container) -> list[int]:
    """Return the only process of a container once it is the wrapped program."""

    def programs() -> list[int]:
        commands = {}
        for pid in container.pids:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended, as runc's own do
                commands[pid] = Path(f"/proc/{pid}/cmdline").read_text()
        is_wrapped = [command.split("\0")[0] for command in commands.values()] == ["sleep"]
        return list(commands) if is_wrapped else []

    return until("the program runs", programs)


def is_injected(pod: Any) -> None:
    """Check that a pod has what CMK's users expect, once, and no API token."""
    assert pod["metadata"]["annotations"][INJECTED] == "true"
    assert pod["spec"]["serviceAccountName"] == ACCOUNT
    volumes = pod["spec"]["volumes"]
    assert not [it["name"] for it in volumes if it["name"].startswith("kube-api-access-")]
    assert len({it["name"] for it in volumes}) == len(volumes)
    for container in pod["spec"]["containers"]:
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert sorted(mounts) == sorted(DIRECTORIES)
        assert len({it["name"] for it in container["env"]}) == len(container["env"])


def cmk_remains(cluster: Cluster) -> list[str]:
    """Return by what CMK could still act: its objects, containers, webhook, account and program."""
    kinds = "daemonsets,deployments,pods,services,secrets,mutatingwebhookconfigurations,clusterroles,clusterrolebindings"
    found = [
        f"{it['kind']} {it['metadata']['name']}"
        for it in cluster.get(kinds, "-A")["items"]
        if it["metadata"]["name"].startswith("cmk-")
    ]
    found += cluster.kubectl(
        "-n", "cmk-namespace", "get", "serviceaccount", ACCOUNT, "--ignore-not-found"
    ).split()
    if (cluster.programs / "cmk").read_bytes() == PROGRAM.encode():
        found.append("/opt/bin/cmk")
    return found


def marks(cluster: Cluster, node: Any) -> list[str]:
    """Return the marks of corepin or CMK on a node and its pods, except the pods' own annotations."""
    pods = [
        pod for pod in running_pods(cluster, "telco") if pod["spec"]["nodeName"] == node["metadata"]["name"]
    ]
    return [
        it
        for it in ours(node, pods)
        if it not in {f"annotations: {INJECTED}", "annotations: cmk.intel.com/mutate"}
    ]
