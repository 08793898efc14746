"""A real cluster of one node on a machine of four cores with two threads each, the first reserved."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from pinning.contract import EXCLUSIVE_CORES, ISOLATED_CORES, STATUS_CPUS
from pinning.machine.cpuset import EMPTY, CPUSet, union
from tests.environments.guest.facts import whole_cores
from tests.environments.guest.guest import Report
from tests.environments.guest.machine import CORES

RESERVED, ALL = CORES[0], union(CORES)
STEPS = ["start", "install", "policies", "live_change", "sidecar", "cmk", "virtual_machine"]
STEPS += ["offline_and_back", "deletion"]
Look = dict[str, Any]


def look(walk: Report, step: str) -> Look:
    """Return the state of all pods at one step."""
    (found,) = [look for look in walk.all("look") if look["step"] == step]
    return found


def cpus(seen: Look, pod: str, container: str = "main") -> CPUSet:
    """Return the CPUs of a container: its cpuset, which must equal the masks of its two tasks."""
    kernel = seen["pods"][pod]["kernel"][container]
    assert kernel["allowed"] == [kernel["cpuset"]] * 2
    return CPUSet.parse(kernel["cpuset"])


def status_of(seen: Look, pod: str) -> dict[str, Any]:
    """Return the agent's status of a pod's container `main`, from the pod's annotation."""
    found: dict[str, Any] = seen["pods"][pod]["told"]["main"]
    return found


def idle(seen: Look, pod: str) -> CPUSet:
    """Return the idle siblings that are charged to a pod."""
    return CPUSet.parse(status_of(seen, pod)["idle"])


def typed(walk: Report, command: str) -> dict[str, Any]:
    """Return the only command of the report that starts with `command`."""
    (found,) = [call for call in walk.all("kubectl") if call["command"].startswith(command)]
    return found


def published(seen: Look, resource: str) -> int:
    """Return the node's number of a resource, which must be equal in capacity and allocatable."""
    node = seen["node"]
    assert node["capacity"][resource] == node["allocatable"][resource]
    return int(node["capacity"][resource])


def test_walk_comes_to_its_end(walk: Report) -> None:
    """Every step of the walk ended within its timeout."""
    assert [failure["traceback"] for failure in walk.facts.get("failed", [])] == []
    assert [passed["step"] for passed in walk.all("passed")] == STEPS


def test_every_command_but_a_forged_annotation_succeeds(walk: Report) -> None:
    """Every command succeeds but the one that writes the agent's annotation, which is refused with the reason."""
    failed = [call for call in walk.all("kubectl") if call["status"]]

    assert [call["command"].rpartition(" ")[2] for call in failed] == [f"{STATUS_CPUS}=forged"]
    assert 'is written only by the corepin agent of node "guest"' in failed[0]["said"]


def test_one_ca_is_published_in_every_entry(walk: Report) -> None:
    """The rotation's pod has published one CA in all four entries."""
    bundles = walk.one("bundles")["configurations"]

    assert len(bundles) == 4
    assert len(set(bundles)) == 1


def test_node_has_topology_and_resources(walk: Report) -> None:
    """Topology, label and both resources are on the node, and `kubectl describe node` shows the amounts."""
    seen = look(walk, "installed")

    assert [CPUSet.parse(core) for core in seen["node"]["topology"]["cores"]] == CORES
    assert seen["node"]["labels"]["cmk.intel.com/cmk-node"] == "true"
    assert (published(seen, EXCLUSIVE_CORES), published(seen, ISOLATED_CORES)) == (3, 3)
    described = typed(walk, "kubectl describe node")["said"].split()
    for resource in (EXCLUSIVE_CORES, ISOLATED_CORES):
        assert described[described.index(f"{resource}:") + 1] == "3"


def test_bystander_has_everything_first(walk: Report) -> None:
    """A pod without a policy runs on every CPU and gets no annotation."""
    seen = look(walk, "installed")

    assert cpus(seen, "bystander") == ALL
    assert seen["pods"]["bystander"]["told"] == {}


def test_require_owns_a_whole_core(walk: Report) -> None:
    """Two CPUs under `require` are the two threads of one core."""
    mine = cpus(look(walk, "policies"), "require")

    assert mine in CORES[1:]


def test_isolate_runs_one_thread_of_each_core(walk: Report) -> None:
    """Two CPUs under `isolate` are on two cores, whose siblings stay idle and are charged to the pod."""
    seen = look(walk, "policies")
    mine = cpus(seen, "isolate")

    assert len(mine) == 2
    assert len(whole_cores(mine)) == 4
    assert idle(seen, "isolate") == whole_cores(mine) - mine


def test_others_run_on_what_is_left(walk: Report) -> None:
    """The pod without a policy runs on the reserved core, away from both owners."""
    seen = look(walk, "policies")

    assert cpus(seen, "bystander") == RESERVED
    assert whole_cores(cpus(seen, "require")) & whole_cores(cpus(seen, "isolate")) == EMPTY


def test_isolate_is_charged_in_cores(walk: Report) -> None:
    """The webhook, called over TLS with the published CA, has added the request for isolated cores."""
    resources = look(walk, "policies")["pods"]["isolate"]["resources"]["main"]

    assert resources["limits"][ISOLATED_CORES] == resources["requests"][ISOLATED_CORES] == "2"


@pytest.mark.parametrize("pod", ["require", "isolate"])
def test_pod_annotation_has_the_kernels_cpus(walk: Report, pod: str) -> None:
    """The pod's annotation has the CPUs of the kernel."""
    document = yaml.safe_load(typed(walk, f"kubectl get pod {pod}")["said"])
    status = json.loads(document["metadata"]["annotations"][STATUS_CPUS])["containers"]["main"]

    assert status["pinned"] is True
    assert (status["policy"], status["smtPolicy"]) == ("exclusive", pod)
    mine = cpus(look(walk, "policies"), pod)
    assert CPUSet.parse(status["cpus"]) == CPUSet.parse(status["applied"]["cpus"]) == mine


def test_event_and_map_show_the_owner(walk: Report) -> None:
    """`kubectl describe` has the event, and `corepin map` draws both owners with the idle siblings."""
    mine = cpus(look(walk, "policies"), "isolate")

    assert f"container main runs on CPUs {mine}" in typed(walk, "kubectl describe pod isolate")["said"]
    drawn = typed(walk, "corepin map")["said"]
    assert f"default/isolate/main: exclusive, CPUs {mine}" in drawn
    assert "2 idle (a)" in drawn


def test_edited_smt_policy_gives_a_core_back(walk: Report) -> None:
    """An edit from `isolate` to `require` moves the running pod to one core and frees the other."""
    before, after = look(walk, "policies"), look(walk, "isolate to require")

    assert cpus(after, "isolate") in CORES[1:]
    assert cpus(after, "isolate") <= whole_cores(cpus(before, "isolate"))
    assert cpus(after, "require") == cpus(before, "require")
    assert cpus(after, "bystander") == ALL - cpus(after, "require") - cpus(after, "isolate")


def test_share_lets_others_in_and_none_lets_go(walk: Report) -> None:
    """With `share` other pods may use the pod's CPUs; with `none` the pod runs on the shared set."""
    share, none = look(walk, "exclusive to share"), look(walk, "exclusive to none")

    assert cpus(share, "require") == cpus(look(walk, "policies"), "require")
    assert cpus(share, "require") <= cpus(share, "bystander") == ALL - cpus(share, "isolate")
    assert cpus(none, "require") == cpus(none, "bystander") == ALL - cpus(none, "isolate")
    assert none["pods"]["require"]["told"] == {}


def test_policy_change_is_a_warning_and_an_event(walk: Report) -> None:
    """A shared policy with whole cores is a warning at once; each change is an event of the pod."""
    warned = typed(walk, "kubectl annotate --overwrite pod/require qos.gocrane.io/cpu-manager=share")["said"]

    assert "require has no effect: it has an effect only while the CPU policy is exclusive" in warned
    assert "PolicyChanged" in typed(walk, "kubectl describe pod require")["said"]


def test_sidecar_of_a_later_webhook_leaves_the_pod_guaranteed(walk: Report) -> None:
    """Our webhook sets limits for a later webhook's proxy, which runs on the shared set; main keeps its CPUs."""
    seen = look(walk, "meshed")
    pod = seen["pods"]["meshed"]

    assert pod["qos"] == "Guaranteed"
    limits = {"cpu": "200m", "memory": "64M"}
    assert pod["resources"]["proxy"] == {"limits": limits, "requests": limits}
    assert cpus(seen, "meshed") in CORES[1:]
    assert cpus(seen, "meshed", "proxy") == cpus(seen, "bystander") == ALL - cpus(seen, "meshed")


def test_cmk_pod_is_scheduled_and_served(walk: Report) -> None:
    """A pod with one CMK core gets a whole core, and the webhook's variable, mounts and toleration."""
    seen = look(walk, "cmk")
    document = yaml.safe_load(typed(walk, "kubectl get pod cmk")["said"])
    main = document["spec"]["containers"][0]

    assert cpus(seen, "cmk") in CORES[1:]
    assert cpus(seen, "bystander") == ALL - cpus(seen, "cmk")
    assert {"name": "CMK_NUM_CORES", "value": "1"} in main["env"]
    assert [mount["mountPath"] for mount in main["volumeMounts"]] == ["/opt/bin", "/etc/cmk"]
    assert "cmk" in [toleration.get("key") for toleration in document["spec"]["tolerations"]]


def test_claim_that_does_not_fit_is_refused_with_an_event(walk: Report) -> None:
    """A claim of three cores with two free ones is refused with an event and a remedy, and no other pod moves."""
    seen = look(walk, "refused")
    event = next(event for event in walk.all("event") if event["pod"] == "greedy")

    assert event["reason"] == "Unpinnable"
    assert "wanted 6 CPUs on wholly free cores, found 4: ask for at most 4" in event["message"]
    assert status_of(seen, "greedy")["pinned"] is False
    assert status_of(seen, "greedy")["refusal"]["reason"] == "NotEnoughCPUs"
    assert cpus(seen, "cmk") == cpus(look(walk, "cmk"), "cmk")


def test_pod_without_enough_resources_is_not_scheduled(walk: Report) -> None:
    """A pod that wants more of CMK's cores than are published is not scheduled; the event names the resource."""
    event = next(event for event in walk.all("event") if event["pod"] == "queued")

    assert event["reason"] == "FailedScheduling"
    assert f"Insufficient {EXCLUSIVE_CORES}" in event["message"]


def test_refused_claim_is_served_once_there_is_room(walk: Report) -> None:
    """When the CMK pod is deleted, the refused claim gets cores."""
    seen = look(walk, "mended")

    assert cpus(seen, "greedy") == ALL - RESERVED
    assert cpus(seen, "bystander") == RESERVED


def test_offline_cpu_is_replaced_and_reported(walk: Report) -> None:
    """The owner keeps its other CPU and gets one of a free core; node and pod report the change."""
    before, offline = look(walk, "before"), look(walk, "offline")
    gone = CPUSet((walk.all("switched")[0]["cpu"],))
    mine = cpus(offline, "whole")

    assert CPUSet.parse(offline["online"]) == ALL - gone
    assert CPUSet.parse(offline["node"]["topology"]["online"]) == ALL - gone
    assert len(mine) == 2
    assert cpus(before, "whole") - gone <= mine
    assert cpus(offline, "bystander") == ALL - whole_cores(mine)
    assert published(offline, EXCLUSIVE_CORES) == published(before, EXCLUSIVE_CORES) - 1


def test_cpu_back_online_is_idle_beside_its_owner(walk: Report) -> None:
    """The CPU that is online again stays idle beside the owner of its core; no pod moves."""
    offline, back = look(walk, "offline"), look(walk, "back")

    assert cpus(back, "whole") == cpus(offline, "whole")
    assert idle(back, "whole") == whole_cores(cpus(back, "whole")) - cpus(back, "whole")
    assert cpus(back, "bystander") == ALL - whole_cores(cpus(back, "whole"))


def test_deletion_gives_everything_back(walk: Report) -> None:
    """After the last owner the bystander runs everywhere again, and the node offers every core."""
    seen = look(walk, "deleted")

    assert cpus(seen, "bystander") == ALL
    assert seen["node"]["pools"]["owners"] == {}
    assert published(seen, EXCLUSIVE_CORES) == published(seen, ISOLATED_CORES) == 3
