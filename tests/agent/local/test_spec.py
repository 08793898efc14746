"""Containers of a pod that must start, and the end of the pod, by Kubernetes' rules."""

from __future__ import annotations

from typing import Any

import pytest

from agent.local.manifest import BadManifest
from agent.local.spec import PATH, SLEEP, Ended, PodRun, due, final_phase, read_run
from tests.pods import container, pod

OK, BAD, UNKNOWN = Ended(0), Ended(1), Ended(None)


def run_of(policy: str | None = None, **containers: Any) -> PodRun:
    """Return a pod with init containers i and j, a sidecar s between them, and main containers a and b."""
    first = [container("i"), container("s", restartPolicy="Always"), container("j")]
    return read_run(pod(container("a"), container("b"), init=first, restartPolicy=policy, **containers))


@pytest.mark.parametrize(
    ("live", "ended", "starts"),
    [
        pytest.param("", {}, "i", id="first init container"),
        pytest.param("i", {}, "", id="while it runs"),
        pytest.param("", {"i": BAD}, "i", id="it failed"),
        pytest.param("", {"i": UNKNOWN}, "i", id="nobody knows how it ended"),
        pytest.param("", {"i": OK}, "s", id="then the sidecar"),
        pytest.param("s", {"i": OK}, "j", id="which need not end"),
        pytest.param("sj", {"i": OK}, "", id="second init container"),
        pytest.param("s", {"i": OK, "j": OK}, "ab", id="then all others"),
        pytest.param("sa", {"i": OK, "j": OK, "b": BAD}, "b", id="one ended"),
        pytest.param("ab", {"i": OK, "j": OK, "s": OK}, "s", id="the sidecar ended"),
    ],
)
def test_containers_start_in_order(live: str, ended: dict[str, Ended], starts: str) -> None:
    """Init containers run in order, sidecars run beside them, and all restart by default."""
    assert "".join(spec.name for spec in due(run_of(), frozenset(live), ended)) == starts


@pytest.mark.parametrize(
    ("policy", "ended", "starts", "phase"),
    [
        pytest.param("Always", {"a": OK, "b": OK}, "ab", None, id="always"),
        pytest.param("OnFailure", {"a": OK, "b": BAD}, "b", None, id="on failure, one failed"),
        pytest.param("OnFailure", {"a": OK, "b": OK}, "", "Succeeded", id="on failure, none failed"),
        pytest.param("Never", {"a": OK, "b": BAD}, "", "Failed", id="never, one failed"),
        pytest.param("Never", {"a": OK, "b": OK}, "", "Succeeded", id="never, none failed"),
        pytest.param("Never", {"a": OK}, "b", None, id="never, one has not begun"),
    ],
)
def test_pod_phase_follows_restart_policy_and_exit_codes(
    policy: str, ended: dict[str, Ended], starts: str, phase: str | None
) -> None:
    """The restart policy decides which containers restart, and the exit codes the phase."""
    all_ended = {"i": OK, "j": OK, **ended}

    assert "".join(spec.name for spec in due(run_of(policy), frozenset("s"), all_ended)) == starts
    assert final_phase(run_of(policy), frozenset("s"), all_ended) == phase


def test_failed_init_container_of_a_pod_that_never_restarts() -> None:
    """With `Never` a failed init container fails the pod, and no container starts."""
    assert final_phase(run_of("Never"), frozenset(), {"i": BAD}) == "Failed"
    assert list(due(run_of("Never"), frozenset(), {"i": BAD})) == []
    assert final_phase(run_of("OnFailure"), frozenset(), {"i": BAD}) is None


def test_command_and_environment() -> None:
    """Arguments follow the command, variables are expanded, and a container without a command sleeps."""
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}, {"name": "C", "valueFrom": {}}]
    run = read_run(
        pod(container("a", command=["run", "$(B)"], args=["$(NOT)"], env=env), container("b", args=["x"]))
    )

    assert run.containers[0].command == ("run", "12", "$(NOT)")
    assert run.containers[0].environment == {"PATH": PATH, "A": "1", "B": "12", "C": ""}
    assert run.containers[1].command == SLEEP


def test_grace_period() -> None:
    """The grace period is 30 seconds unless the manifest says otherwise, zero included."""
    assert read_run(pod()).grace_seconds == 30
    assert read_run(pod(terminationGracePeriodSeconds=0)).grace_seconds == 0


def test_invalid_command_is_refused() -> None:
    """A command that is not a list is refused with its field."""
    with pytest.raises(BadManifest, match=r"pod default/demo cannot be started: .*command"):
        read_run(pod(container("a", command="sleep 1")))
