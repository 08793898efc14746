"""The account that a mutations file sets: such pods lose the API token; token volumes of users stay."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinning.contract import GATE_CONTAINER
from tests.pods import CORES, SMT, container, pod, token_mount, token_volume
from tests.webhook.requests import generated, request
from tests.webhook.rules.mutated import mutated, planned
from webhook.config.mutations import BUILT_IN, Mutations, load_mutations
from webhook.config.settings import load_settings
from webhook.review.handler import Decider
from webhook.review.response import Patched
from webhook.rules.mutate import Plan

PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN = "kube-api-access-x7k2p"
GATED = b"{gate: true, gateImage: 'registry.example/corepin:1'}"


def naming(*more: str, mount: str = "") -> Mutations:
    """Return a mutations file that names an account and adds a volume."""
    spec = ", ".join(
        ["serviceAccountName: cmk", "volumes: [{name: tools, hostPath: {path: /opt/bin}}]", *more]
    )
    mounts = f"[{{name: tools, mountPath: {mount or '/opt/bin'}}}]"
    text = f"mutations: {{perPod: {{spec: {{{spec}}}}}, perContainer: {{volumeMounts: {mounts}}}}}"
    return load_mutations(text.encode())


ACCOUNT = naming()


def applied(document: Any, mutations: Mutations = ACCOUNT, settings: bytes = b"") -> Any:
    """Return the pod after its plan, which a second call leaves as it is."""
    return mutated(document, settings, mutations)


def mounted(name: str, *more: Any, count: str = "1") -> Any:
    """Return a container with cores and the mount of a token."""
    return container(name, {CORES: count}, volumeMounts=[*more, token_mount(TOKEN)])


def with_token(*volumes: Any, **spec: Any) -> Any:
    """Return a pod as the ServiceAccount plugin leaves it: three containers with the token."""
    own = {"name": "own", "mountPath": "/data"}
    spec = {"serviceAccountName": "default", "serviceAccount": "default", **spec}
    return pod(
        mounted("main", own),
        container("beside", volumeMounts=[token_mount(TOKEN), own]),
        init=[container("setup", volumeMounts=[own, token_mount(TOKEN)]), container("bare")],
        volumes=[*volumes, token_volume(TOKEN), {"name": "own", "emptyDir": {}}],
        **spec,
    )


def tokens(document: Any) -> int:
    """Return the number of token volumes and mounts of a pod."""
    text = json.dumps(document["spec"])
    return len(re.findall(r'"name": "kube-api-access-', text))


def test_token_is_removed_with_all_its_mounts() -> None:
    """If the webhook sets the account, the token volume and all its mounts are removed, and nothing else."""
    document = with_token({"name": "first", "emptyDir": {}})
    spec = applied(document)["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("cmk", False)
    assert [it["name"] for it in spec["volumes"]] == ["first", "own", "tools"]
    mounts = [
        [it["name"] for it in each["volumeMounts"]] for each in (*spec["containers"], *spec["initContainers"])
    ]
    assert mounts == [["own", "tools"], ["own", "tools"], ["own", "tools"], ["tools"]]


def test_pod_with_nothing_but_the_token() -> None:
    """Lists that the removal empties get the file's volumes and mounts appended."""
    spec = applied(pod(mounted("main"), volumes=[token_volume(TOKEN)]))["spec"]
    assert [it["name"] for it in spec["volumes"]] == ["tools"]
    assert [it["name"] for it in spec["containers"][0]["volumeMounts"]] == ["tools"]


def test_gate_comes_after_the_removals() -> None:
    """The gate is inserted after the removals, because it shifts the indexes of init containers."""
    document = with_token()
    document["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2", "memory": "1Gi"}}
    document["metadata"]["annotations"] = {SMT: "isolate", "cmk.intel.com/mutate": "true"}
    result = applied(document, settings=GATED)
    assert [it["name"] for it in result["spec"]["initContainers"]] == [GATE_CONTAINER, "setup", "bare"]
    assert tokens(result) == 0


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"serviceAccountName": "mine", "serviceAccount": "mine"}, id="names an account"),
        pytest.param({"serviceAccountName": "", "serviceAccount": "mine"}, id="names it by the alias"),
        pytest.param({"automountServiceAccountToken": False}, id="states false"),
        pytest.param({"automountServiceAccountToken": True}, id="states true"),
    ],
)
def test_pod_that_chooses_keeps_its_volumes(spec: dict[str, Any]) -> None:
    """A pod that sets automountServiceAccountToken keeps its volumes."""
    result = applied(with_token(**spec))
    assert tokens(result) == 4
    stated = spec.get("automountServiceAccountToken")
    assert result["spec"].get("automountServiceAccountToken") is stated


def test_automount_true_is_warned_about() -> None:
    """Automounting a token of the webhook's account is a warning that names account and remedy."""
    field = "spec.automountServiceAccountToken"
    (warning,) = [
        it
        for it in planned(with_token(automountServiceAccountToken=True), mutations=ACCOUNT).warnings
        if it.field == field
    ]
    assert warning.message == (
        "true mounts an API token of the account cmk, which the webhook sets: remove the field, or name an account of"
        " your own"
    )
    for spec in ({"automountServiceAccountToken": False}, {"serviceAccountName": "mine"}, {}):
        assert field not in {it.field for it in planned(with_token(**spec), mutations=ACCOUNT).warnings}
    bare = pod(serviceAccountName="default", automountServiceAccountToken=True)
    assert planned(bare, mutations=ACCOUNT) == Plan(()), "a pod that gets no injection keeps its account"


@pytest.mark.parametrize("mutations", [BUILT_IN, Mutations(BUILT_IN.per_pod, {}, "default")])
def test_file_without_an_account_leaves_tokens(mutations: Mutations) -> None:
    """A file without an account, or with `default`, leaves the tokens of pods."""
    result = applied(with_token(), mutations)
    assert tokens(result) == 4
    assert "automountServiceAccountToken" not in result["spec"]


def test_file_that_states_the_field_decides() -> None:
    """The file's automountServiceAccountToken decides: with true pods keep their tokens."""
    for value in (True, False):
        mutations = naming(f"automountServiceAccountToken: {str(value).lower()}")
        result = applied(with_token(), mutations)
        assert result["spec"]["automountServiceAccountToken"] is value
        assert tokens(result) == (4 if value else 0)
        paths = [it["path"] for it in planned(with_token(), mutations=mutations).operations]
        assert len(paths) == len(set(paths) - {"/spec/volumes/-"}) + paths.count("/spec/volumes/-")


def test_file_that_mounts_at_the_place_of_the_token() -> None:
    """A mount of the file at the token's path is added after the token's is removed."""
    spec = applied(with_token(), naming(mount=PATH))["spec"]
    assert [it["mountPath"] for it in spec["containers"][0]["volumeMounts"]] == ["/data", PATH]
    assert tokens({"spec": spec}) == 0


def changed(**projected: Any) -> Any:
    """Return a volume with the generated name and another content."""
    volume = token_volume(TOKEN)
    volume["projected"].update(projected)
    return volume


TOKEN_SOURCE = token_volume(TOKEN)["projected"]["sources"][0]


@pytest.mark.parametrize(
    "volume",
    [
        pytest.param({"name": TOKEN, "emptyDir": {}}, id="another kind of volume"),
        pytest.param({"name": TOKEN, "hostPath": {"path": "/x"}, "projected": None}, id="null"),
        pytest.param(changed(sources=None), id="no sources"),
        pytest.param(changed(sources=token_volume(TOKEN)["projected"]["sources"][1:]), id="no token"),
        pytest.param(changed(sources=[TOKEN_SOURCE, TOKEN_SOURCE]), id="two tokens"),
        pytest.param(token_volume(TOKEN, {"secret": {"name": "mine"}}), id="a Secret beside it"),
        pytest.param(token_volume(TOKEN, {"configMap": {"name": "mine"}}), id="a ConfigMap beside it"),
        pytest.param(changed(sources=[{"serviceAccountToken": {"path": "vault"}}]), id="another file"),
        pytest.param(
            changed(sources=[{"serviceAccountToken": {"path": "token", "audience": "vault"}}]), id="audience"
        ),
    ],
)
def test_volume_of_another_content_stays(volume: Any) -> None:
    """A volume with a generated token name but another content is the user's, and stays."""
    document = pod(mounted("main"), volumes=[volume])
    assert [it["name"] for it in applied(document)["spec"]["volumes"]] == [TOKEN, "tools"]


@pytest.mark.parametrize(
    "name", ["kube-api-access-mine", "kube-api-access-", "kube-api-access-x7k2pp", "token", ""]
)
def test_volume_of_another_name_stays(name: str) -> None:
    """A volume whose name the ServiceAccount plugin would not generate stays."""
    document = pod(
        container("main", {CORES: "1"}, volumeMounts=[token_mount(name)]), volumes=[token_volume(name)]
    )
    assert [it["name"] for it in applied(document)["spec"]["volumes"]] == [name, "tools"]


@pytest.mark.parametrize(
    "mounts",
    [
        pytest.param([], id="not at all"),
        pytest.param([token_mount(TOKEN, "/vault")], id="elsewhere"),
        pytest.param([token_mount(TOKEN), token_mount(TOKEN, "/vault")], id="there and elsewhere"),
        pytest.param([token_mount(TOKEN), token_mount(TOKEN)], id="twice"),
    ],
)
def test_volume_that_is_mounted_otherwise_stays(mounts: list[Any]) -> None:
    """A token volume with an unusual mount stays with all its mounts, so that the pod stays valid."""
    document = pod(container("main", {CORES: "1"}, volumeMounts=mounts), volumes=[token_volume(TOKEN)])
    assert tokens(applied(document)) == 1 + len(mounts)


def test_volume_that_one_container_mounts_elsewhere_stays() -> None:
    """A token volume that one container mounts elsewhere stays in all containers."""
    elsewhere = container("proxy", volumeMounts=[token_mount(TOKEN, "/vault")])
    document = pod(mounted("main"), elsewhere, volumes=[token_volume(TOKEN)])
    assert tokens(applied(document)) == 3


def test_volumes_of_the_users_beside_it() -> None:
    """If the user has volumes with token names, none is taken for the plugin's."""
    document = pod(mounted("main"), volumes=[token_volume(TOKEN), token_volume("kube-api-access-mine")])
    assert tokens(applied(document)) == 3
    beside = pod(mounted("main"), volumes=[token_volume(TOKEN), token_volume("mine")])
    assert [it["name"] for it in applied(beside)["spec"]["volumes"]] == ["mine", "tools"]


def test_certificates_of_openshift_belong_to_it() -> None:
    """A token volume with OpenShift's second CA bundle is recognized."""
    volume = token_volume(TOKEN, {"configMap": {"name": "openshift-service-ca.crt"}})
    assert tokens(applied(pod(mounted("main"), volumes=[volume]))) == 0


@pytest.mark.parametrize("mounts", [1, 30_000])
def test_patch_does_not_grow_with_repeated_mounts(mounts: int) -> None:
    """A pod with repeated mounts, which is invalid, gets no removals: each costs the API server a copy of a list."""
    main = container("main", {CORES: "1"}, volumeMounts=[token_mount(TOKEN)] * mounts)
    steps = planned(pod(main, volumes=[token_volume(TOKEN)]), mutations=ACCOUNT).operations
    assert sum(it["op"] == "remove" for it in steps) == (2 if mounts == 1 else 0)


def test_patch_does_not_grow_with_volumes() -> None:
    """Ten thousand volumes like the token's cost no removal."""
    alphabet = "bcdfghjklm"
    names = [TOKEN[:-4] + "".join(alphabet[int(digit)] for digit in f"{at:04}") for at in range(10_000)]
    main = container("main", {CORES: "1"}, volumeMounts=list(map(token_mount, names)))
    steps = planned(pod(main, volumes=list(map(token_volume, names))), mutations=ACCOUNT).operations
    assert {it["op"] for it in steps} == {"add"}


@given(
    generated, st.sampled_from([ACCOUNT, naming(mount=PATH), naming("automountServiceAccountToken: false")])
)
@settings(max_examples=200, deadline=None)
def test_second_call_changes_nothing(document: Any, mutations: Mutations) -> None:
    """For any pod and place of its token each patch applies, a second one is empty, and no mount lacks its volume."""
    rules = Decider(load_settings(GATED), mutations)
    answer = rules.mutate(request(document))
    if not isinstance(answer, Patched):
        return
    result = jsonpatch.apply_patch(document, [dict(it) for it in answer.operations])
    again = rules.mutate(request(result))
    assert not isinstance(again, Patched)
    named = {it["name"] for it in result["spec"].get("volumes") or ()}
    lost = {it["name"] for it in document["spec"].get("volumes") or ()} - named
    kept = json.dumps([result["spec"]["containers"], result["spec"].get("initContainers")])
    assert not any(f'"name": "{name}"' in kept for name in lost)
