"""Pods that do not ask for CPUs cause no reviews."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.environments.cluster.registered import Cluster, Registered, pod_document
from tests.pods import CORES, CPU_MANAGER, container


@contextmanager
def no_review(cluster: Cluster) -> Iterator[None]:
    """Assert that no review reaches the webhook during the block."""
    before = cluster.webhook.reviews()
    yield
    assert cluster.webhook.reviews() == before


def test_reviews_are_counted(cluster: Cluster) -> None:
    """A pod that asks for CPUs counts as one mutation review and one validation review."""
    before = [cluster.webhook.reviews(endpoint=name) for name in ("mutate", "validate")]
    cluster.created(pod_document("it", container("main", {CORES: "1"})))
    after = [cluster.webhook.reviews(endpoint=name) for name in ("mutate", "validate")]
    assert after == [count + 1 for count in before]


def test_plain_pods(cluster: Cluster) -> None:
    """Pods without annotations of ours are created, changed and deleted without a review."""
    with no_review(cluster):
        cluster.created(pod_document("plain"))
        cluster.created(pod_document("whole", container(limits="2"), annotations={"corepin.io/no": "x"}))
        cluster.created(pod_document("gpu", container(limits={"nvidia.com/gpu": "1"})))
        cluster.run("label", "pod/plain", "a=b")
        cluster.run("annotate", "pod/plain", "example.org/cpu-manager=exclusive")
        cluster.run("delete", "pod/plain", "--wait=false")


def test_mirror_pods(cluster: Cluster) -> None:
    """A mirror pod is never reviewed, because the kubelet would reject a changed copy."""
    hashed = {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.hash": "abc"}
    annotations = {**hashed, CPU_MANAGER: "wrong"}
    mirror = pod_document("mirror", container("main", {CORES: "1"}), annotations=annotations, nodeName="here")
    with no_review(cluster):
        stored = cluster.created(mirror)
    assert stored["metadata"]["annotations"] == annotations
    assert all("hostPath" not in volume for volume in stored["spec"].get("volumes", []))


def test_kube_system(registered: Registered) -> None:
    """Pods of kube-system are never reviewed, since they must start without the webhook."""
    cluster = registered.in_namespace("kube-system")
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    cluster.create(account)  # no controller creates it; fails if it exists
    with no_review(cluster):
        stored = cluster.created(pod_document("it", container("main", {CORES: "1"})))
    assert all("hostPath" not in volume for volume in stored["spec"].get("volumes", []))


def test_what_the_agent_and_the_kubelet_write(cluster: Cluster) -> None:
    """Changes of a pod's status annotation, status and labels, its binding and its deletion cause no review."""
    pod = pod_document("it", container("main", {CORES: "1"}), annotations={CPU_MANAGER: "none"})
    cluster.created(pod)
    ready = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "it"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "somewhere"},
    }
    with no_review(cluster):
        for change in (
            ("annotate", "pod/it", 'status.corepin.io/cpus={"version":1}'),
            ("annotate", "pod/it", "status.corepin.io/cpus={}", "--overwrite"),
            ("annotate", "pod/it", "status.corepin.io/cpus-"),
            ("patch", "pod/it", "--subresource=status", "--patch", ready),
            ("label", "pod/it", "a=b"),
        ):
            outcome = cluster.run(*change)
            assert not outcome.is_refused, outcome.stderr
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/it/binding"
        outcome = cluster.run("create", "--raw", path, "-f", "-", document=binding)
        assert not outcome.is_refused, outcome.stderr
        cluster.run("delete", "pod/it", "--wait=false")


def test_debug_containers(cluster: Cluster) -> None:
    """An ephemeral container in a pod that asks for CPUs causes no review."""
    cluster.created(pod_document("it", container(limits="2"), annotations={CPU_MANAGER: "exclusive"}))
    with no_review(cluster):
        outcome = cluster.run("debug", "it", "--image=registry.example/shell:1", "--profile=general")
        assert not outcome.is_refused, outcome.stderr
    assert cluster.stored("pod", "it")["spec"]["ephemeralContainers"]
