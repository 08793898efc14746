"""CMK's mutations file: both shipped variants load unchanged; unsafe or misplaced parts are refused or fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinning.errors import BadContract
from webhook.config.mutations import BUILT_IN, load_mutations

EXAMPLES = Path(__file__).parents[3] / "examples" / "cmk"


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        (
            "mutations-resources.yaml",
            {"cmk-host-proc": "/proc", "cmk-config-dir": "/etc/cmk", "cmk-install-dir": "/opt/bin"},
        ),
        ("mutations-cluster-init.yaml", {"cmk-host-proc": "/proc", "cmk-install-dir": "/opt/bin"}),
    ],
)
def test_both_of_cmks_files_load_unchanged(name: str, paths: dict[str, str]) -> None:
    """Service account, host paths and mounts are kept; mounts of host paths become read-only."""
    mutations = load_mutations((EXAMPLES / name).read_bytes())
    assert mutations.service_account == "cmk-serviceaccount"
    assert mutations.host_paths == paths
    assert all(mount["readOnly"] for mount in mutations.per_container["volumeMounts"])
    assert mutations.is_typed


def test_the_built_in_default_is_typed() -> None:
    """The shipped default has a typed form, so that the hot path never decodes whole objects."""
    assert BUILT_IN.is_typed
    assert BUILT_IN.service_account is None


@pytest.mark.parametrize("document", [b"mutations: {}", b"mutations: {perPod: null, perContainer: null}"])
def test_an_empty_file_leaves_only_the_marker(document: bytes) -> None:
    """An empty file adds only the annotation that shows that corepin has seen the pod."""
    mutations = load_mutations(document)
    assert mutations.per_pod["metadata"] == {"annotations": {"cmk.intel.com/resources-injected": "true"}}
    assert mutations.per_container == {}


def test_an_explicit_writable_host_mount_is_made_read_only() -> None:
    """A writable mount of a host path becomes read-only: a container could replace programs of the host."""
    mutations = load_mutations(
        b"mutations: {perPod: {spec: {volumes: [{name: v, hostPath: {path: /opt}}, {name: e, emptyDir: {}}]}},"
        b" perContainer: {volumeMounts: [{name: v, mountPath: /opt, readOnly: false}, {name: e, mountPath: /e}]}}"
    )
    host, empty = mutations.per_container["volumeMounts"]
    assert host["readOnly"] is True
    assert "readOnly" not in empty


def test_the_name_of_a_service_account_beats_its_alias() -> None:
    """If a file has serviceAccountName and its alias, the name wins, as for the API server."""
    mutations = load_mutations(b"mutations: {perPod: {spec: {serviceAccount: a, serviceAccountName: b}}}")
    assert mutations.service_account == "b"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "it is empty: write `mutations:`"),
        (b"mutation: {}", "mutation"),
        (b"mutations: {perpod: {}}", "perpod"),
        (b"mutations: {perPod: {status: {}}}", "perPod.status is not part"),
        (b"mutations: {perPod: {spec: {containers: []}}}", "use perContainer"),
        (
            b"mutations: {perPod: {spec: {tolerations: {}}}}",
            "perPod.spec.tolerations: {} is not allowed: expected array",
        ),
        (
            b"mutations: {perPod: {spec: {volumes: [{hostPath: {}}]}}}",
            "perPod.spec.volumes[0].name is missing",
        ),
        (
            b"mutations: {perPod: {metadata: {annotations: {a: 1}}}}",
            "perPod.metadata.annotations[...]: {'a': 1} is not allowed: expected str, got int",
        ),
        (b"mutations: {perContainer: {image: x}}", "perContainer.image"),
        (
            b"mutations: {perContainer: {env: [{name: A}, {name: A}]}}",
            "perContainer.env[1].name 'A' appears twice",
        ),
        (
            b"mutations: {perContainer: {volumeMounts: [{name: a}]}}",
            "perContainer.volumeMounts[0].mountPath is missing",
        ),
        (b"mutations: [", "line 1"),
    ],
)
def test_a_wrong_file_is_refused_saying_where(document: bytes, message: str) -> None:
    """A mutations file that could break pods is refused when it is loaded."""
    with pytest.raises(BadContract) as refused:
        load_mutations(document)
    assert message in str(refused.value)


def test_one_volume_may_be_mounted_twice() -> None:
    """Mounts are distinguished by their path, not by their volume."""
    document = (
        b"mutations: {perContainer: {volumeMounts: [{name: a, mountPath: /x}, {name: a, mountPath: /y}]}}"
    )
    assert len(load_mutations(document).per_container["volumeMounts"]) == 2
