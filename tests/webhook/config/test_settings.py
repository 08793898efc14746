"""The configuration file: defaults, and refusals that name key, value and remedy."""

from __future__ import annotations

import pytest

from pinning.errors import BadContract
from pinning.kubevirt.review import KubeVirtSettings
from webhook.config.settings import Settings, load_settings
from webhook.rules.vms import is_kubevirt, kubevirt_settings


@pytest.mark.parametrize("document", [b"", b"# nothing\n", b"{}", b"sidecarLimits: launcher"])
def test_an_empty_file_means_the_defaults(document: bytes) -> None:
    """Unset keys have the shipped defaults: sidecar limits for launchers, both feature gates on."""
    settings = load_settings(document)
    assert settings == Settings()
    assert settings.gates == {"Sidecar", "CPUManager"}
    assert settings.threads_per_core == ()


def test_every_key_is_read() -> None:
    """The file of the operator guide sets each value."""
    settings = load_settings(
        b"""
feature-gates: "Sidecar"
sidecarLimits: "claims"
sidecarResources: {cpu: 100m, memory: 128Mi}
isolatedCores: false
nodeShapes:
- {name: compute, cores: 32, threadsPerCore: 2, reservedCores: 2}
kubevirt:
  serviceAccounts: [virt]
  architecture: arm64
  rolloutStrategy: Stage
  maxCpuSockets: 8
  cpuRequest: 200m
  evenParity: true
"""
    )
    assert settings.gates == {"Sidecar"}
    assert (settings.node_shapes[0].free_cores, settings.threads_per_core) == (30, (2,))
    assert kubevirt_settings(settings) == KubeVirtSettings(
        "arm64", live_update=False, max_cpu_sockets=8, cpu_request="200m", even_parity=True
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"sidecarLimit: off", "sidecarLimit: the key is unknown (value False): did you mean sidecarLimits?"),
        (b"bogus: 1", "bogus: the key is unknown (value 1): known keys are feature-gates, sidecarLimits"),
        (b"sidecarLimits: some", "sidecarLimits: 'some' is not allowed: write one of claims, launcher, off"),
        (b"sidecarLimits: on", "sidecarLimits: True is not allowed: write one of claims, launcher, off"),
        (b"sidecarLimits: claims\nsidecarLimits: off", "line 2: key 'sidecarLimits' appears twice"),
        (b"feature-gates: Sidecars", "Sidecars is unknown; known are CPUManager, Sidecar"),
        (b"sidecarResources: {cpu: lots}", "sidecarResources.cpu: 'lots'"),
        (b"sidecarResources: {memory: 0}", "sidecarResources.memory: 0 must be more than 0"),
        (
            b"gate: true",
            "gate: it is on, and gateImage is not set: write corepin's image as your nodes pull it",
        ),
        (b"gate: corepin", "gate: 'corepin' is not allowed: expected bool, got str"),
        (b"gateImage: 'a b'", "gateImage: 'a b' has blanks: write corepin's image"),
        (b"gateResources: {cpu: 0}", "gateResources.cpu: 0 must be more than 0"),
        (b"gateResources: {memory: lots}", "gateResources.memory: 'lots'"),
        (b"kubevirt: {cpuRequest: x}", "kubevirt.cpuRequest"),
        (
            b"kubevirt: {architecture: mips}",
            "kubevirt.architecture: 'mips' is not allowed: write one of amd64, arm64, s390x",
        ),
        (b"nodeShapes: [{name: a, cores: 0}]", "nodeShapes[0].cores: 0 is not allowed: expected int >= 1"),
        (b"nodeShapes: [{name: a, cores: 2, reservedCores: 2}]", "nodeShapes[a]: reservedCores 2 of 2 cores"),
        (
            b"nodeShapes: [{name: a, cores: 2}, {name: b, cores: 2}, {name: a, cores: 4}]",
            "nodeShapes[2].name: 'a' is the name of nodeShapes[0] too: give each kind of node a name of its own",
        ),
        (b"nodeShapes: [{cores: 2}]", "nodeShapes[0].name is missing: add it"),
        (b"[1, 2]", "the file: [1, 2] is not allowed: write a mapping of feature-gates, sidecarLimits"),
        (
            b"kubevirt: {serviceAccounts: [a, 1]}",
            "kubevirt.serviceAccounts[1]: 1 is not allowed: expected str, got int",
        ),
        (b"nodeShapes: [{name: true, cores: 2}]", 'expected str, got bool: put it in quotes, e.g. "true"'),
        (b"nodeShapes: " + b"x" * 100, f"nodeShapes: '{'x' * 56}... is not allowed: expected array, got str"),
        (b"kubevirt: {5: 6}", "kubevirt.5: the key is unknown"),
        (b"a: [", "line 1"),
        (b"\xff\xfe\x00", "YAML"),
        (b"a: b: c", "line 1"),
        (
            b"isolatedCores: true\n---\nisolatedCores: false",
            "line 3: a second document begins here: remove it",
        ),
    ],
)
def test_a_wrong_file_is_refused_saying_where(document: bytes, message: str) -> None:
    """The message names the key or the line, and the value or what is expected."""
    with pytest.raises(BadContract) as refused:
        load_settings(document)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_off_needs_no_quotes() -> None:
    """A bare `off`, which YAML 1.1 reads as false, is the value off."""
    assert load_settings(b"sidecarLimits: off").sidecar_limits == "off"


def test_a_merge_key_may_stand_beside_another() -> None:
    """Two merge keys `<<` are no duplicate key."""
    settings = load_settings(b"sidecarResources: {<<: {cpu: 1}, <<: {memory: 2}}")
    assert settings.sidecar_resources.cpu == 1


def test_a_deeply_nested_file_is_refused() -> None:
    """A deeply nested file is refused without a crash."""
    with pytest.raises(BadContract):
        load_settings(b"[" * 100_000)


@pytest.mark.parametrize(
    ("username", "expected"),
    [
        ("system:serviceaccount:kubevirt:kubevirt-controller", True),
        ("system:serviceaccount:other-namespace:kubevirt-handler", True),
        ("system:serviceaccount:kubevirt:default", False),
        ("kubevirt-controller", False),
        ("system:serviceaccount:", False),
        ("", False),
    ],
)
def test_kubevirts_accounts_are_known_in_any_namespace(username: str, expected: bool) -> None:
    """Only a service account of one of the configured names counts as KubeVirt."""
    assert is_kubevirt(username, Settings()) is expected
