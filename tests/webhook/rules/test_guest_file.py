"""The file in a Kata guest that says where containers run: which pods get it, and what stays the user's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from pinning.contract import CPUS_FOLDER, CPUS_VOLUME, STATUS_CPUS
from pinning.pods.claims import read_pod
from pinning.pods.resources import members
from tests.pods import CORES, CPU_MANAGER, SMT, container, pod
from tests.webhook.requests import BEYOND, generated
from tests.webhook.rules.mutated import mutated, planned, reviewed
from webhook.config.mutations import BUILT_IN, Mutations
from webhook.review.decision_cache import pod_key, reader

EXCLUSIVE = {CPU_MANAGER: "exclusive"}
VOLUME = {
    "name": CPUS_VOLUME,
    "downwardAPI": {
        "items": [{"path": "cpus", "fieldRef": {"fieldPath": f"metadata.annotations['{STATUS_CPUS}']"}}]
    },
}
MOUNT = {"name": CPUS_VOLUME, "mountPath": CPUS_FOLDER, "readOnly": True}


def kata(*containers: Any, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    """Return a pod of a Kata runtime class with exclusive CPUs."""
    listed = containers or (container("main", "2"),)
    return pod(*listed, annotations=annotations or EXCLUSIVE, runtimeClassName="kata-qemu", **spec)


def mounts(document: Any) -> dict[str, list[Any]]:
    """Return the mounts at the file's path, by container."""
    spec = document["spec"]
    return {
        it["name"]: [mount for mount in it.get("volumeMounts") or () if mount["mountPath"] == CPUS_FOLDER]
        for it in (*(spec.get("initContainers") or ()), *spec["containers"])
    }


def test_containers_with_cpus_get_the_file() -> None:
    """The volume is added once, and mounted into each container that asks for CPUs, init containers too."""
    result = mutated(kata(container("main", "2"), container("beside"), init=[container("first", "1")]))

    assert result["spec"]["volumes"] == [VOLUME]
    assert mounts(result) == {"main": [MOUNT], "beside": [], "first": [MOUNT]}
    assert result["spec"]["containers"][0]["env"] == [{"name": "COREPIN_CONTAINER", "value": "main"}]
    assert result["spec"]["initContainers"][0]["env"] == [{"name": "COREPIN_CONTAINER", "value": "first"}]


def test_all_containers_beside_the_command_get_the_file() -> None:
    """Where CMK's contract is injected every container may run `cmk isolate`, also one without cores of its own."""
    cores = container("main", {CORES: "2"}, {CORES: "2"})
    result = mutated(kata(cores, container("helper"), annotations={"unrelated": "yes"}))

    assert mounts(result) == {"main": [MOUNT], "helper": [MOUNT]}


def test_a_users_variable_stays() -> None:
    """A user's variable of that name is kept."""
    own = {"name": "COREPIN_CONTAINER", "value": "another"}
    result = mutated(kata(container("main", "2", env=[own])))

    assert result["spec"]["containers"][0]["env"] == [own]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(pod(container("main", "2"), annotations=EXCLUSIVE), id="no runtime class"),
        pytest.param(
            pod(container("main", "2"), annotations=EXCLUSIVE, runtimeClassName="gvisor"), id="another class"
        ),
        pytest.param(pod(container("main", "2"), runtimeClassName="kata"), id="no claim"),
    ],
)
def test_other_pods_get_none(document: Any) -> None:
    """A pod without a virtual machine, or without a claim, gets no file."""
    assert planned(document).operations == ()


@pytest.mark.parametrize("mutations", [BUILT_IN, BEYOND], ids=["typed", "beyond the types"])
def test_it_goes_with_what_else_is_added(mutations: Mutations) -> None:
    """A pod that also gets CMK's contract gets the mounts and volumes of both, and the mark."""
    result = mutated(
        kata(container("main", {CORES: "2"}, {CORES: "2"}), annotations={SMT: "require"}), mutations=mutations
    )

    assert VOLUME in result["spec"]["volumes"]
    assert mounts(result) == {"main": [MOUNT]}
    assert {"cmk.intel.com/resources-injected", "guard.corepin.io/pod"} <= result["metadata"][
        "annotations"
    ].keys()


def test_what_is_the_users_stays() -> None:
    """A user's volume of that name is kept, and the file gets another; a user's mount at its folder is kept too."""
    own = {"name": CPUS_VOLUME, "emptyDir": {}}
    result = mutated(kata(volumes=[own]))
    assert result["spec"]["volumes"] == [own, VOLUME | {"name": f"{CPUS_VOLUME}-2"}]
    assert mounts(result) == {"main": [MOUNT | {"name": f"{CPUS_VOLUME}-2"}]}

    mount = {"name": "mine", "mountPath": f"{CPUS_FOLDER}/"}
    document = kata(container("main", "2", volumeMounts=[mount]), volumes=[{"name": "mine", "emptyDir": {}}])
    assert planned(document).operations == ()


def test_a_volume_that_is_there_is_used() -> None:
    """A container that another webhook adds gets a mount of the stored volume, and no second volume is added."""
    stored = msgspec.json.decode(msgspec.json.encode(VOLUME))
    stored["downwardAPI"]["defaultMode"] = 420
    stored["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"] = "v1"
    result = mutated(
        kata(container("main", "2", volumeMounts=[MOUNT]), container("late", "1"), volumes=[stored])
    )

    assert result["spec"]["volumes"] == [stored]
    assert mounts(result) == {"main": [MOUNT], "late": [MOUNT]}


def test_a_users_volume_of_another_name_is_not_the_files() -> None:
    """A user's volume with the same annotation under another name is kept, and the file gets its own."""
    own = VOLUME | {"name": "mine"}
    result = mutated(kata(volumes=[own]))

    assert result["spec"]["volumes"] == [own, VOLUME]
    assert mounts(result) == {"main": [MOUNT]}


def test_a_name_of_the_mutations_file_is_not_taken() -> None:
    """A volume of that name in the mutations file is kept."""
    fragment = {"spec": {"volumes": [{"name": CPUS_VOLUME, "emptyDir": {}}]}}
    result = mutated(kata(container("main", {CORES: "1"}, {CORES: "1"})), mutations=Mutations(fragment, {}))

    assert [volume["name"] for volume in result["spec"]["volumes"]] == [CPUS_VOLUME, f"{CPUS_VOLUME}-2"]
    assert mounts(result)["main"] == [MOUNT | {"name": f"{CPUS_VOLUME}-2"}]


def test_a_pod_without_it_is_admitted() -> None:
    """The validating webhook admits a pod without the file, which is only informative."""
    document = kata()
    assert reviewed(document).causes == ()


def test_runtime_class_and_volume_are_part_of_the_cache_key() -> None:
    """Runtime class, and a volume of that name, are part of the cache key."""
    own = {"name": CPUS_VOLUME, "emptyDir": {}}
    documents = [
        kata(),
        pod(container("main", "2"), annotations=EXCLUSIVE),
        kata(volumes=[own]),
        kata(volumes=[VOLUME]),
    ]
    keys = {key_of(document) for document in documents}
    assert len(keys) == len(documents)
    assert key_of(kata(volumes=[{"name": "x", "emptyDir": {}}])) == key_of(kata(volumes=[]))


def key_of(document: Any) -> bytes:
    """Return the cache key of a new pod."""
    text = msgspec.json.encode(document)
    return pod_key(reader(BUILT_IN).read(msgspec.Raw(text)), BUILT_IN, len(text))


@given(document=generated)
@settings(max_examples=100, deadline=None)
def test_any_pod_of_a_kata_class_is_patched_once(document: Any) -> None:
    """For any pod each container that asks for CPUs has a mount at the folder, and a second patch adds nothing."""
    document["spec"]["runtimeClassName"] = "kata"
    there = mounts(mutated(document))
    names = Counter(member.name for member in members(document))  # the API server refuses duplicate names
    assert all(there[it.container] for it in read_pod(document).claims if names[it.container] == 1)
