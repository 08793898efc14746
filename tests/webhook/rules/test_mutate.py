"""The patch of a new pod: every row of the tables of Intel CMK's recorded behaviour, kept or fixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pods import CORES, OTHER_CORES, SMT, container, pod
from tests.tables import table
from tests.webhook.rules.mutated import mutated, planned
from webhook.config.mutations import BUILT_IN, Mutations, load_mutations

EXAMPLES = Path(__file__).parents[3] / "examples" / "cmk"
RESOURCES = load_mutations((EXAMPLES / "mutations-resources.yaml").read_bytes())
CLUSTER_INIT = load_mutations((EXAMPLES / "mutations-cluster-init.yaml").read_bytes())
WITHOUT_WEBHOOK = Path(__file__).parents[2] / "smt_cluster" / "cmk_pods_without_webhook.yaml"
MUTATE = "cmk.intel.com/mutate"
INJECTED = {"cmk.intel.com/resources-injected": "true"}
PROC_FS = {"name": "CMK_PROC_FS", "value": "/host/proc"}


def injected(document: Any, mutations: Mutations = BUILT_IN) -> bool:
    """Return whether a pod gets the CMK contract."""
    return (
        "annotations" in mutated(document, mutations=mutations)["metadata"]
        and INJECTED.items()
        <= (mutated(document, mutations=mutations)["metadata"]["annotations"] or {}).items()
    )


def env(document: Any, at: int = 0, kind: str = "containers") -> list[Any]:
    """Return the environment of a container."""
    return list(document["spec"][kind][at].get("env") or ())


def cores(count: str | int = "1", **more: Any) -> Any:
    """Return a container that claims cores."""
    return container("main", {CORES: count}, {CORES: count}, **more)


def test_every_claiming_container_gets_its_own_count() -> None:
    """CMK_NUM_CORES follows the environment of the mutations file, with the container's own number."""
    result = mutated(pod(cores("1"), container("two", {CORES: "2"})), mutations=RESOURCES)
    assert env(result) == [PROC_FS, {"name": "CMK_NUM_CORES", "value": "1"}]
    assert env(result, 1) == [PROC_FS, {"name": "CMK_NUM_CORES", "value": "2"}]


def test_a_pod_that_asks_for_nothing_gets_nothing() -> None:
    """A pod without CMK's resource and annotation gets no patch."""
    plan = planned(pod(container("main", "2")), mutations=RESOURCES)
    assert (plan.operations, plan.warnings) == ((), ())


@pytest.mark.parametrize("value", ["true", "True", "1"])
def test_the_annotation_injects_without_a_count(value: str) -> None:
    """Three spellings of the annotation ask for the injection; without a resource there is no CMK_NUM_CORES."""
    result = mutated(pod(annotations={MUTATE: value}), mutations=RESOURCES)
    assert env(result) == [PROC_FS]
    assert result["metadata"]["annotations"] == {MUTATE: value, **INJECTED}


@pytest.mark.parametrize("value", ["TRUE", "yes", "on", " true", "", "false", "False", "0"])
def test_other_values_of_the_annotation_inject_nothing(value: str) -> None:
    """Any other value of the annotation injects nothing."""
    assert not injected(pod(annotations={MUTATE: value}))


def test_false_is_no_opt_out() -> None:
    """A pod with CMK's resource is injected whatever its annotation says (/validate warns of the failed opt-out)."""
    assert injected(pod(cores(), annotations={MUTATE: "false"}))


@table(
    "limits, requests, count",
    {
        "R5 both": ({CORES: "2"}, {CORES: "2"}, "2"),
        "R5 request only": (None, {CORES: "2"}, "2"),
        "T5 R5 limit only": ({CORES: "3"}, None, "3"),
        "R5 the request counts": ({CORES: "3"}, {CORES: "1"}, "1"),
        "R6 outside isolcpus": ({OTHER_CORES: "2"}, None, "2"),
        "R6 the first resource wins": ({CORES: "1", OTHER_CORES: "2"}, None, "1"),
        "R6 a limit of the first beats a request of the second": ({CORES: "1"}, {OTHER_CORES: "2"}, "1"),
        "R16 an integer becomes text": ({CORES: 2}, None, "2"),
        "R16 1k is a thousand": ({CORES: "1k"}, None, "1000"),
        "2000m is two": ({CORES: "2000m"}, None, "2"),
    },
)
def test_cmk_num_cores_is_the_containers_own_resource(limits: Any, requests: Any, count: str) -> None:
    """The value comes from the request, else the limit, of the first of CMK's resources, in plain digits."""
    assert env(mutated(pod(container("main", limits, requests)))) == [
        {"name": "CMK_NUM_CORES", "value": count}
    ]


@pytest.mark.parametrize("count", ["0", "-1", "1500m", "junk"])
def test_a_count_that_is_none_is_not_passed_on(count: str) -> None:
    """A count that /validate refuses gets no CMK_NUM_CORES, which `cmk isolate` could not read."""
    assert env(mutated(pod(container("main", {CORES: count})))) == []


def test_neighbours_get_the_mounts_but_no_count() -> None:
    """Every container of an injected pod gets the additions of `perContainer`, but no count without a claim."""
    result = mutated(pod(cores(), container("plain")), mutations=RESOURCES)
    assert env(result, 1) == [PROC_FS]
    assert [mount["mountPath"] for mount in result["spec"]["containers"][1]["volumeMounts"]] == [
        "/host/proc",
        "/etc/cmk",
        "/opt/bin",
    ]


def test_an_init_container_alone_asks() -> None:
    """A resource of an init container injects the pod; CMK did not."""
    result = mutated(pod(container("main"), init=[cores("1")]), mutations=RESOURCES)
    assert env(result, kind="initContainers") == [PROC_FS, {"name": "CMK_NUM_CORES", "value": "1"}]


def test_init_containers_and_sidecars_are_injected() -> None:
    """Init containers get the mounts, and their own count when they claim; native sidecars too."""
    init = [container("setup", {CORES: "1"}), container("mesh", restartPolicy="Always")]
    result = mutated(pod(cores("2"), init=init, annotations={MUTATE: "true"}))
    assert env(result, 0, "initContainers") == [{"name": "CMK_NUM_CORES", "value": "1"}]
    assert len(result["spec"]["initContainers"][1]["volumeMounts"]) == 2


@pytest.mark.parametrize("limits", [None, {}, {"cpu": "2"}])
def test_a_request_alone_gets_its_limit(limits: Any) -> None:
    """A request of cores without a limit gets the same limit, for each resource and container; CMK added none."""
    both = container("main", limits, {CORES: "2", OTHER_CORES: "1"})
    result = mutated(pod(both, cores("1"), initContainers=[container("init", limits, {OTHER_CORES: "1"})]))
    main, other = (each["resources"] for each in result["spec"]["containers"])
    assert main["limits"] == {**(limits or {}), CORES: "2", OTHER_CORES: "1"}
    assert other["limits"] == {CORES: "1"}
    assert result["spec"]["initContainers"][0]["resources"]["limits"] == {**(limits or {}), OTHER_CORES: "1"}


def test_an_unequal_or_unreadable_limit_is_left_alone() -> None:
    """An unequal or unreadable limit, which /validate refuses, is not replaced."""
    for limit in ("3", "much"):
        result = mutated(pod(container("main", {CORES: limit}, {CORES: "2"})))
        assert result["spec"]["containers"][0]["resources"]["limits"] == {CORES: limit}


def test_a_preset_count_is_kept() -> None:
    """The user's own CMK_NUM_CORES stays (above the claim it is refused by /validate)."""
    preset = {"name": "CMK_NUM_CORES", "value": "7"}
    assert env(mutated(pod(cores("1", env=[preset])))) == [preset]


def test_a_preset_variable_of_the_file_is_kept_once() -> None:
    """CMK appended a second CMK_PROC_FS, which won at run time."""
    preset = {"name": "CMK_PROC_FS", "value": "/mine"}
    assert env(mutated(pod(cores(env=[preset])), mutations=RESOURCES)) == [
        preset,
        {"name": "CMK_NUM_CORES", "value": "1"},
    ]


def test_tolerations_are_appended_once() -> None:
    """The user's tolerations stay in their order; an equal one is not added again."""
    own = {"key": "gpu", "operator": "Exists"}
    result = mutated(pod(cores(), tolerations=[own]), mutations=RESOURCES)
    assert result["spec"]["tolerations"] == [own, {"operator": "Exists"}]
    again = mutated(
        pod(cores(), tolerations=[{"operator": "Exists", "key": "", "value": None}]), mutations=RESOURCES
    )
    assert len(again["spec"]["tolerations"]) == 1


@pytest.mark.parametrize("mutations", [RESOURCES, CLUSTER_INIT], ids=["resources", "cluster-init"])
@table(
    "given, account, alias",
    {
        "absent": ({}, "cmk-serviceaccount", None),
        "empty": ({"serviceAccountName": ""}, "cmk-serviceaccount", None),
        "defaulted": ({"serviceAccountName": "default"}, "cmk-serviceaccount", None),
        "defaulted with the alias": (
            {"serviceAccountName": "default", "serviceAccount": "default"},
            "cmk-serviceaccount",
            "cmk-serviceaccount",
        ),
        "R13 the user's own": ({"serviceAccountName": "mysa"}, "mysa", None),
        "the user's own by the alias": ({"serviceAccount": "mysa"}, None, "mysa"),
    },
)
def test_a_chosen_service_account_is_never_replaced(
    mutations: Mutations, given: dict[str, Any], account: str | None, alias: str | None
) -> None:
    """Only the default service account is replaced, and alias and name are the same."""
    spec = mutated(pod(cores(), **given), mutations=mutations)["spec"]
    assert (spec.get("serviceAccountName"), spec.get("serviceAccount")) == (account, alias)


def test_what_is_there_already_stays() -> None:
    """An existing volume of the same name, and a mount at the same path, are not added again."""
    document = pod(
        cores(volumeMounts=[{"name": "tools", "mountPath": "/opt/bin"}]),
        volumes=[{"name": "cmk-host-proc", "emptyDir": {}}, {"name": "tools", "emptyDir": {}}],
    )
    spec = mutated(document, mutations=RESOURCES)["spec"]
    names = [volume["name"] for volume in spec["volumes"]]
    assert names == ["cmk-host-proc", "tools", "cmk-config-dir"]
    assert [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]] == [
        "/opt/bin",
        "/host/proc",
        "/etc/cmk",
    ]


@pytest.mark.parametrize(
    "mutations", [BUILT_IN, RESOURCES, CLUSTER_INIT], ids=["built-in", "resources", "cluster-init"]
)
@pytest.mark.parametrize("document", list(yaml.safe_load_all(WITHOUT_WEBHOOK.read_text(encoding="utf-8"))))
def test_a_pod_that_mounts_everything_itself_gets_no_volume(document: Any, mutations: Mutations) -> None:
    """CMK's pods for clusters without its webhook keep their volumes and mounts, without a warning."""
    before, after = document["spec"], mutated(document, mutations=mutations)["spec"]
    assert after["volumes"] == before["volumes"]
    assert [each["volumeMounts"] for each in after["containers"]] == [
        each["volumeMounts"] for each in before["containers"]
    ]
    assert planned(document, mutations=mutations).warnings == ()


def test_a_directory_that_one_container_lacks_is_added() -> None:
    """The missing mount is added with a warning; a container with another mount at that path keeps it."""
    own = {"name": "mine", "mountPath": "/etc/cmk"}
    document = pod(cores(volumeMounts=[own]), container("two"), volumes=[{"name": "mine", "emptyDir": {}}])
    spec = mutated(document)["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["mine", "cmk-install-dir", "cmk-config-dir"]
    assert [
        {mount["mountPath"]: mount["name"] for mount in each["volumeMounts"]}["/etc/cmk"]
        for each in spec["containers"]
    ] == ["mine", "cmk-config-dir"]
    assert len(planned(document).warnings) == 2


@pytest.mark.parametrize(
    "mutations", [BUILT_IN, RESOURCES, CLUSTER_INIT], ids=["built-in", "resources", "cluster-init"]
)
def test_a_second_pass_adds_nothing(mutations: Mutations) -> None:
    """A second pass adds nothing (`mutated` plans twice)."""
    assert injected(pod(cores(), container("other")), mutations)


@table(
    "document",
    {
        "annotations null": {"metadata": {"annotations": None}, "spec": {"containers": [cores()]}},
        "metadata null": {"metadata": None, "spec": {"containers": [cores()]}},
        "no metadata": {"spec": {"containers": [cores()]}},
        "init null": {"metadata": {}, "spec": {"containers": [cores()], "initContainers": None}},
        "resources null": {
            "metadata": {},
            "spec": {"containers": [cores(), {"name": "b", "resources": None}]},
        },
        "lists null": {"metadata": {}, "spec": {"containers": [cores(env=None, volumeMounts=None)]}},
    },
)
def test_absent_and_null_parents_are_created(document: Any) -> None:
    """Absent and null parents of a patched field are created; CMK's webhook crashed on them."""
    assert injected(document)


def test_a_pod_without_spec_or_metadata_is_left_alone() -> None:
    """A pod without spec and metadata gets no patch."""
    assert planned({}).operations == ()
    assert planned({"spec": None, "metadata": None}).operations == ()


def test_the_marker_is_no_authority() -> None:
    """A pod with the marker is injected like any other, because users can write the marker."""
    result = mutated(pod(cores(), annotations=INJECTED))
    assert env(result) == [{"name": "CMK_NUM_CORES", "value": "1"}]


def test_the_built_in_default_needs_no_rights() -> None:
    """The built-in injection adds two read-only directories and a toleration, no service account and no host /proc."""
    spec = mutated(pod(cores()))["spec"]
    assert [volume["hostPath"]["path"] for volume in spec["volumes"]] == ["/opt/bin", "/etc/cmk"]
    assert all(mount["readOnly"] for mount in spec["containers"][0]["volumeMounts"])
    assert spec["tolerations"] == [
        {"key": "cmk", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    ]
    assert "serviceAccountName" not in spec


@pytest.mark.parametrize("mutations", [RESOURCES, CLUSTER_INIT], ids=["resources", "cluster-init"])
def test_host_directories_are_mounted_read_only(mutations: Mutations) -> None:
    """CMK's variant A mounts the host's /opt/bin writable; here no container can replace the host's programs."""
    result = mutated(pod(cores()), mutations=mutations)
    assert all(mount["readOnly"] for mount in result["spec"]["containers"][0]["volumeMounts"])


def test_every_injected_host_path_is_warned_about() -> None:
    """Each injected host directory is a warning, also when Pod Security will refuse the pod."""
    messages = [warning.message for warning in planned(pod(cores()), mutations=RESOURCES).warnings]
    assert [
        path
        for path in ("/proc", "/etc/cmk", "/opt/bin")
        if any(f"directory {path} is" in message for message in messages)
    ] == [
        "/proc",
        "/etc/cmk",
        "/opt/bin",
    ]
    assert len(messages) == 3


def test_a_volume_with_cmks_name_is_warned_about() -> None:
    """A pod's own volume with CMK's name stays, with a warning that names CMK's."""
    document = pod(cores(), volumes=[{"name": "cmk-install-dir", "hostPath": {"path": "/srv"}}])
    messages = [warning.message for warning in planned(document).warnings]
    assert messages[0] == "volume cmk-install-dir is the pod's own; CMK would mount host directory /opt/bin"


def test_isolate_charges_whole_cores_to_the_scheduler() -> None:
    """`isolate` on 4 CPUs takes 4 cores: the container requests 4 of corepin.io/isolated-cores."""
    result = mutated(pod(container("main", "4"), container("log"), annotations={SMT: "isolate"}))
    resources = result["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "4", "corepin.io/isolated-cores": "4"}
    assert resources["requests"] == {"corepin.io/isolated-cores": "4"}
    assert "resources" not in result["spec"]["containers"][1]


@table(
    "document, settings",
    {
        "off": (pod(container("main", "4"), annotations={SMT: "isolate"}), b"isolatedCores: false"),
        "require": (pod(container("main", "4"), annotations={SMT: "require"}), b""),
        "share": (
            pod(container("main", "4"), annotations={SMT: "isolate", "qos.gocrane.io/cpu-manager": "share"}),
            b"",
        ),
    },
)
def test_nothing_else_is_charged(document: Any, settings: bytes) -> None:
    """Only exclusive CPUs under `isolate` request isolated cores, and the operator may switch this off."""
    operations = planned(document, settings).operations
    assert [step["path"] for step in operations if "resources" in step["path"]] == []


def test_isolate_on_cmk_cores_is_not_charged_twice() -> None:
    """A CMK claim under `isolate` requests no isolated cores, because it requests cores already."""
    result = mutated(pod(cores("2"), annotations={SMT: "isolate"}))
    assert result["spec"]["containers"][0]["resources"]["limits"] == {CORES: "2"}


def test_any_fragment_of_a_pod_can_be_added() -> None:
    """A file beyond the usual keys is merged key by key into the whole object; the user's values stay."""
    mutations = load_mutations(
        b"mutations: {perPod: {metadata: {labels: {team: rt, a/b: x}}, spec: {dnsPolicy: Default, hostAliases:"
        b" [{ip: 10.0.0.1, hostnames: [a]}]}}, perContainer: {ports: [{containerPort: 80}], tty: true}}"
    )
    assert not mutations.is_typed
    document = pod(
        cores(ports=[{"containerPort": 80, "protocol": "TCP"}]), labels={"team": "own"}, dnsPolicy="None"
    )
    result = mutated(document, mutations=mutations)
    assert result["metadata"]["labels"] == {"team": "own", "a/b": "x"}
    assert result["spec"]["dnsPolicy"] == "None"
    assert result["spec"]["hostAliases"] == [{"ip": "10.0.0.1", "hostnames": ["a"]}]
    assert result["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert result["spec"]["containers"][0]["tty"] is True


def test_a_fragment_joins_with_what_the_claim_needs() -> None:
    """Resources of the file and of the claim are added to the container in one step."""
    mutations = load_mutations(b"mutations: {perContainer: {resources: {limits: {x.example/y: 1}}}}")
    document = pod(container("main", "2"), annotations={SMT: "isolate", MUTATE: "true"})
    limits = mutated(document, mutations=mutations)["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "2", "x.example/y": 1, "corepin.io/isolated-cores": "2"}


def test_a_value_of_another_shape_is_kept_with_a_warning() -> None:
    """A pod's value of another shape than the file's is kept with a warning, and the rest is added."""
    mutations = load_mutations(
        b"mutations: {perPod: {spec: {hostAliases: [{ip: 10.0.0.1}], dnsConfig: {searches: [x]}}}, perContainer: {ports: []}}"
    )
    document = pod(cores(ports="none"), hostAliases={"a": 1}, dnsConfig={"searches": ["y"]})
    plan = planned(document, mutations=mutations)
    fields = [warning.field for warning in plan.warnings]
    assert fields == ["spec.hostAliases", "spec.containers[0].ports"]
    assert mutated(document, mutations=mutations)["spec"]["dnsConfig"] == {"searches": ["y", "x"]}
