"""`corepin agent`: its flags, and the errors for wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.config import AgentConfig, ApiFlags
from agent.kernel.machine import machine_id
from agent.local.pods_dir import PodsDir
from agent.main import _devices, reporters
from agent.metrics import Metrics
from agent.reconcile.checkpoint import Saved, StateDir
from apiserver.access import Access
from apiserver.client import Api
from corepin import cli
from corepin.flags import variable
from corepin.run.agent import _config
from pinning.planning.ledger import Ledger
from tests.agent.checkpoints import written
from tests.pinning.machines import FLAT
from webhook.config.settings import SidecarResources


def config(*arguments: str) -> AgentConfig:
    """Return the configuration of the flags."""
    return _config(cli.build_parser().parse_args(["agent", *arguments]))


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a failing command prints."""
    assert cli.main(["agent", *arguments]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("{"))
    return line


def test_flags_have_defaults_that_fit_the_daemon_set() -> None:
    """The flags' defaults are the host's directories, the first usual CRI socket and the pod's service account."""
    found = config("--node", "n1")
    assert (found.runtime, found.runtime_endpoint, found.api, found.pods_dir) == ("cri", None, None, None)
    assert (found.state_dir, found.socket) == (Path("/var/lib/corepin"), Path("/run/corepin/agent.sock"))
    assert found.listen == ("", 8081)
    assert not found.node_options.cmk_taint
    assert found.namespace == "corepin-agent"  # where `corepin cmk` looks for what agents write
    assert found.kubelet_cgroup_root == "/"


def test_nri_is_used_where_it_is() -> None:
    """The default is the usual NRI socket; the flag names another one or turns NRI off."""
    found = [config("--node", "n1", *more).nri for more in ((), ("--nri", "/run/n.sock"), ("--nri", "off"))]
    assert found == [Path("/var/run/nri/nri.sock"), Path("/run/n.sock"), None]


def test_sidecars_cost_what_the_webhook_gives_them() -> None:
    """Sidecars are charged the webhook's amounts, by default its defaults."""
    given = SidecarResources()
    assert config("--node", "n1").node_options.sidecar == (given.cpu, given.memory)
    assert config("--node", "n1", "--sidecar-resources", "1, 1Gi").node_options.sidecar == ("1", "1Gi")


def test_cmks_reports_are_written_where_that_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CMK's reports are off by default; the variable adds their reporter, and an unknown value is refused."""
    for found, expected in ((config("--node", "n1"), False), (config("--cmk-reports=on"), True)):
        api = Api(Access("https://api.test"), "tests", httpx.MockTransport(lambda _: httpx.Response(404)))
        names = {type(it).__name__ for it in reporters(found, api, PodsDir(tmp_path, tmp_path), Metrics())}
        assert ("CMKReports" in names) is expected
    assert "--cmk-reports: 'maybe' is unknown: write on or off" in failure(capsys, "--cmk-reports=maybe")


def test_environment_sets_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment variables set flags, as the downward API does for the node's name."""
    monkeypatch.setenv(variable("--node"), "from-env")
    monkeypatch.setenv(variable("--feature-gates"), "CPUManager,Sidecar")
    found = config()
    assert found.node == "from-env"
    assert found.node_options.feature_gates == {"CPUManager", "Sidecar"}


def test_sockets_and_servers_are_read() -> None:
    """A CRI endpoint may be written as the kubelet writes it; taints may be listed or repeated."""
    found = config(
        *(
            "--runtime-endpoint",
            "unix:///run/c.sock",
            "--api-server",
            "https://x",
            "--taint",
            "cmk,overcommit",
        ),
        *("--socket", "off", "--metrics-listen", "off"),
    )
    assert found.runtime_endpoint == Path("/run/c.sock")
    assert found.api == ApiFlags("https://x")
    assert found.node_options.cmk_taint
    assert found.node_options.overcommit_taint
    assert found.socket is None
    assert found.listen is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("--runtime", "docker"), "write cri or local", id="runtime"),
        pytest.param(("--runtime", "local"), "--pods-dir", id="local without pods"),
        pytest.param(("--metrics-listen", "x"), "--metrics-listen", id="address"),
        pytest.param(("--metrics-listen", ":" + "9" * 5000), "write for example :8081", id="huge port"),
        pytest.param(("--nri", "on"), "write auto, off, or a socket", id="NRI"),
        pytest.param(("--taint", "other"), "write cmk or overcommit", id="taint"),
        pytest.param(("--feature-gates", "CpuManager"), "write CPUManager or Sidecar", id="gate"),
        pytest.param(("--config", "/none.yaml"), "/none.yaml", id="config"),
        pytest.param(("--api-server", "host"), "https://HOST:6443", id="API server"),
        pytest.param(("--sidecar-resources", "200m"), "for example 200m,64M", id="sidecar without memory"),
        pytest.param(("--sidecar-resources", "0,1M"), "for example 200m,64M", id="sidecar of nothing"),
        pytest.param(("--sidecar-resources", "1,2,3"), "for example 200m,64M", id="sidecar with more"),
    ],
)
def test_wrong_flags_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """A wrong flag is one line with flag and remedy."""
    assert message in failure(capsys, *arguments)


def test_an_unusable_state_directory_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A state directory that cannot be made is named, with the flag's remedy."""
    (tmp_path / "file").write_text("")
    message = failure(
        capsys, "--state-dir", str(tmp_path / "file/state"), "--api-server", "https://127.0.0.1:1"
    )
    assert f"{tmp_path}/file" in message
    assert message.endswith("fix that, or name another with its flag")


def test_outside_of_a_pod_the_api_server_has_to_be_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Outside of a pod the error names the flags for the API server."""
    assert "--api-server, or --pods-dir" in failure(capsys, "--state-dir", str(tmp_path))


def test_a_second_agent_is_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A second agent is refused in one line that names the first one and a remedy."""
    folder = StateDir(tmp_path)
    message = failure(capsys, "--state-dir", str(tmp_path), "--api-server", "https://127.0.0.1:1")
    folder.close()
    assert "another corepin agent (pid" in message


def test_reset_leaves_a_checkpoint_of_a_later_version_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A reset keeps a checkpoint of a later version, whose contents it does not know."""
    held = Saved(machine_id(Path("/")), "boot", FLAT, FLAT.online, Ledger(), needs=frozenset({"pools"}))
    (tmp_path / "checkpoint.json").write_bytes(written(held))
    message = failure(capsys, "--reset", "--state-dir", str(tmp_path), "--api-server", "https://127.0.0.1:1")
    assert "the checkpoint needs pools" in message
    assert (tmp_path / "checkpoint.json").read_bytes() == written(held)


def test_a_config_that_does_not_fit_the_machine_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A configuration with CPUs that do not exist is refused before anything is written."""
    file = tmp_path / "config.yaml"
    file.write_text('reserved: "5000"\n')
    pods = tmp_path / "pods"
    pods.mkdir()
    message = failure(
        capsys,
        *("--state-dir", str(tmp_path / "state"), "--config", str(file)),
        *("--runtime", "local", "--pods-dir", str(pods), "--socket", "off", "--metrics-listen", "off"),
    )
    assert "CPUs 5000 do not exist" in message


def test_kubelet_is_asked_only_when_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kubelet is queried only if a flag or variable names it; a foreign address is refused at start."""
    assert config("--node", "n1").kubelet_url is None
    monkeypatch.setenv(variable("--kubelet-configz"), "https://10.0.0.1:10250/configz")
    assert config("--node", "n1").kubelet_url == "https://10.0.0.1:10250"
    proxied = "https://api/api/v1/nodes/n1/proxy/configz"
    assert "--kubelet-configz" in failure(capsys, "--node", "n1", "--kubelet-configz", proxied)


def test_devices_of_claims_are_looked_up_where_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off by default and without an API server; the variable of the component switches it on."""
    api: Any = object()
    assert not _devices(config("--node", "n1"), api, Metrics()).looks_up_claims
    monkeypatch.setenv("COREPIN_NEAR_DRA", "on")
    assert config("--node", "n1").near_dra
    assert not _devices(config("--node", "n1"), None, Metrics()).looks_up_claims
    assert _devices(config("--node", "n1"), api, Metrics()).looks_up_claims
    assert "--near-dra: 'yes' is unknown: write on or off" in failure(capsys, "--near-dra=yes")


def test_cpus_beside_free_devices_are_asked_for_where_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off by default: then no list of free devices is kept; the variable of the component switches it on."""
    monkeypatch.setattr("agent.kubelet.free_devices.FreeDeviceWatch.known", lambda _: {})
    assert not config("--node", "n1").node_options.near_cpus
    assert _devices(config("--node", "n1"), None, Metrics()).free() is None
    monkeypatch.setenv("COREPIN_NEAR_CPUS", "on")
    assert config("--node", "n1").node_options.near_cpus
    assert _devices(config("--node", "n1"), None, Metrics()).free() == {}
    assert "--near-cpus: 'yes' is unknown: write on or off" in failure(capsys, "--near-cpus=yes")
