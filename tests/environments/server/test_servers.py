"""Real servers start, apply their flags, and leave no process or file."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

import pinning
from tests.environments.server.apiserver import ApiServer, KubectlFailed
from tests.environments.server.catalog import NEWEST
from tests.environments.server.daemon import DaemonFailed, plain_environment, running
from tests.environments.server.start import require_servers, start_servers
from tests.environments.waiting import until_equal

POD = """
apiVersion: v1
kind: Pod
metadata: {name: it}
spec: {containers: [{name: main, image: example.org/it}]}
"""


def processes_of(directory: Path) -> list[str]:
    """Return the processes whose command line names `directory`."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended since it was listed
            lines.append(path.read_bytes())
    return [line.decode() for line in lines if str(directory).encode() + b"/" in line]


def test_pod_is_created_and_read(apiserver: ApiServer, namespace: str) -> None:
    """API servers of both versions store a pod, and report their own version."""
    apiserver.kubectl("create", "-n", namespace, "-f", "-", input=POD)
    read = apiserver.kubectl("get", "-n", namespace, "pod/it", "-o=jsonpath={.spec.serviceAccountName}")
    assert read.stdout == "default"
    with apiserver.client() as client:
        assert client.get("/version").json()["gitVersion"].startswith(f"v{apiserver.version}.")


def test_default_namespace_takes_pods(apiserver: ApiServer) -> None:
    """The namespace `default` has its service account too."""
    assert apiserver.kubectl("create", "--dry-run=server", "-f", "-", input=POD).stdout.startswith("pod/it")


def test_users_have_the_rights_of_their_group(apiserver: ApiServer, namespace: str) -> None:
    """A user without rights is refused with kubectl's words; a member of a group has the group's rights."""
    apiserver.add_user("nobody")
    with pytest.raises(KubectlFailed, match='User "nobody" cannot list resource "pods"'):
        apiserver.kubectl("get", "pods", "-n", namespace, user="nobody")
    apiserver.add_user("root", group="system:masters")
    assert apiserver.apply(POD, user="root").stdout == "pod/it created\n"
    with pytest.raises(ValueError, match="no user 'stranger'"):
        apiserver.kubeconfig("stranger")


@pytest.mark.server
def test_second_pair_has_its_flags_and_is_gone_afterwards(tmp_path: Path) -> None:
    """A second etcd and API server run with extra flags; after the block no process and no data are left."""
    flags = ["--enable-admission-plugins=NodeRestriction,AlwaysPullImages"]
    with start_servers(extra_flags=flags, directory=tmp_path) as server:
        server.apply(POD.replace("image:", "imagePullPolicy: Never, image:"))
        policy = server.kubectl("get", "pod/it", "-o=jsonpath={.spec.containers[0].imagePullPolicy}")
        assert policy.stdout == "Always"
        assert len(processes_of(tmp_path)) == 2
    assert processes_of(tmp_path) == []
    assert not (tmp_path / "etcd").exists()
    with pytest.raises(httpx.ConnectError), server.client() as client:
        client.get("/readyz")


@pytest.mark.server
def test_bad_flag_is_shown_at_once(tmp_path: Path) -> None:
    """A server that fails at start raises its error, and etcd is stopped."""
    with (
        pytest.raises(DaemonFailed, match="no-such-flag"),
        start_servers(extra_flags=["--no-such-flag"], directory=tmp_path),
    ):
        pass
    assert processes_of(tmp_path) == []


@pytest.mark.server
def test_servers_die_with_a_killed_run(tmp_path: Path) -> None:
    """When the process that started them is killed, the servers end too."""
    require_servers()
    program = f"""
import os, pathlib, signal
from tests.environments.server.start import start_servers
with start_servers({NEWEST!r}, directory=pathlib.Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    assert (tmp_path / "admin.kubeconfig").exists()
    until_equal("servers that outlived their starter", lambda: len(processes_of(tmp_path)), 0)


def test_servers_know_how_often_to_collect_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers inherit GOGC and GOMAXPROCS from the environment, but no proxy."""
    for name in ("GOGC", "GOMAXPROCS", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "400")
    assert plain_environment().keys() & {"GOGC", "GOMAXPROCS", "HTTPS_PROXY"} == {"GOGC", "GOMAXPROCS"}


def test_a_program_of_corepin_is_that_of_the_tests(tmp_path: Path) -> None:
    """Tests start the programs of their own checkout, even if the Python environment belongs to another checkout."""
    log_file = tmp_path / "log"
    code = "import pinning; print(*pinning.__path__)"
    with running("python", [sys.executable, "-SP", "-c", code], log_file) as daemon:
        assert daemon.process.wait() == 0, log_file.read_text()
    assert log_file.read_text().split() == [str(Path(pinning.__file__).parent)]
