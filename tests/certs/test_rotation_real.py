"""The rotation against a real API server, with real webhook processes behind its Service."""

from __future__ import annotations

import base64
import logging
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from certs import material
from certs.cluster import Change, ClusterError, Conflict
from certs.material import CA_CERT, CA_KEY, LEAF_CERT, LEAF_KEY, OLD_CERTS, SHOWN
from certs.rotation import Rest, Wait
from tests.certs.live import END_SECONDS, NAMESPACE, ROTATOR, SECRET, Live, live
from tests.certs.load import load
from tests.environments import plain_http
from tests.environments.cluster.registered import wait_until
from tests.environments.server.daemon import free_port
from tests.environments.server.start import start_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from certs.rotator import Rotator
    from tests.certs.load import Load
    from tests.environments.server.apiserver import ApiServer

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.server
ROUTING = "--enable-aggregator-routing=true"  # there is no kube-proxy
PODS_A_SECOND = 50.0
NOTICED = 100  # pods, created in the two seconds that the API server needs to see a change


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Return an API server that calls the endpoints of Services itself."""
    with start_servers(extra_flags=[ROUTING], directory=tmp_path_factory.mktemp("servers")) as started:
        yield started


@pytest.fixture(scope="module")
def served(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return a cluster whose replicas serve the first certificate, with a namespace for pods."""
    with live(server, tmp_path_factory.mktemp("replicas")) as cluster:
        server.create_namespace("load")
        cluster.serve()
        yield cluster


def bring(served: Live) -> None:
    """Update the replicas' Secret volumes, and wait until each serves the new leaf."""
    secret = served.cluster.secret()
    leaf = material.read(secret).leaf.certificate
    assert leaf is not None
    for replica in served.replicas:
        replica.bring(secret)
    wait_until("replicas show the new leaf", lambda: set(served.probe().values()) == {material.der(leaf)})


def bundles(served: Live) -> set[bytes]:
    """Return the caBundles of all webhook entries."""
    return {pem for configuration in served.cluster.configurations() for pem in configuration.bundles}


def rotate(served: Live, rotator: Rotator, noticed: Callable[[], None]) -> Iterator[str]:
    """Run a rotation to its end; yield the reason before each wait, so that the test can act."""
    for _ in range(9):
        step = rotator.settle()
        if not isinstance(step, Wait):
            assert isinstance(step, Rest)
            return
        yield step.reason
        noticed()
        if step.until:
            served.clock.move_to(step.until)
        else:
            bring(served)
    raise AssertionError(step)


@contextmanager
def away(served: Live, load: Load) -> Iterator[None]:
    """Remove the second replica as if its pod was deleted, and restart it after the block."""
    replica = served.replicas[1]
    served.route_past(replica)
    load.wait_for(NOTICED)
    replica.stop()
    yield
    replica.start()
    served.route_to(replica)
    load.wait_for(NOTICED)


def test_first_issue_serves_pods(served: Live) -> None:
    """From an empty Secret a certificate is issued, its CA is published in every entry, and a pod is mutated."""
    data = served.cluster.secret().data

    assert set(data) == {LEAF_CERT, LEAF_KEY, CA_CERT, CA_KEY}
    assert bundles(served) == {data[CA_CERT]}
    assert {"CARotationStarted", "CAPublished", "CertificateIssued"} <= served.reasons()
    with load(served.api, "load", PODS_A_SECOND) as running:
        wait_until("the API server took notice", lambda: running.admitted > 0)


def test_three_rotations_under_load_fail_no_pod(served: Live) -> None:
    """Three rotations of CA and leaf, each with a restart of a replica, fail none of the pods created in the meantime."""
    before = {served.cluster.secret().data[CA_CERT]}
    with load(served.api, "load", PODS_A_SECOND) as running:
        for number in range(3):
            served.annotate("certs.corepin.io/rotate=ca")
            for index, _ in enumerate(rotate(served, served.rotator(), lambda: running.wait_for(NOTICED))):
                if index == number:  # at another step of each rotation
                    with away(served, running):
                        served.rotator().settle()
            before.add(served.cluster.secret().data[CA_CERT])

    logger.info("%d pods, slowest %.2f s", running.admitted, running.slowest)
    assert running.failures == []
    assert len(before) == 4
    assert bundles(served) == {served.cluster.secret().data[CA_CERT]}
    assert {"CARotated", "ReplicaSilent"} <= served.reasons()


def test_leaf_renewal_keeps_the_ca(served: Live) -> None:
    """A deleted leaf is issued again by the trusted CA, and pods are admitted throughout."""
    before = served.cluster.secret().data
    served.cluster.write_secret(Change({LEAF_CERT: None}, {}), served.cluster.secret().version)

    with load(served.api, "load", PODS_A_SECOND) as running:
        assert isinstance(served.rotator().settle(), Rest)
        bring(served)
        running.wait_for(20)

    after = served.cluster.secret().data
    assert running.failures == []
    assert after[LEAF_CERT] != before[LEAF_CERT]
    assert after[CA_CERT] == before[CA_CERT]


def test_write_under_an_old_version_is_a_conflict(served: Live) -> None:
    """A write with an old resourceVersion is a conflict, of the Secret and of a configuration."""
    secret, configurations = served.cluster.secret(), served.cluster.configurations()
    served.annotate("somebody=here")
    with pytest.raises(Conflict):
        served.cluster.write_secret(Change({OLD_CERTS: b"x"}, {}), secret.version)

    served.api.kubectl(
        "annotate", "--overwrite", "validatingwebhookconfiguration", "zz-corepin", "somebody=here"
    )
    (validating,) = (
        configuration for configuration in configurations if configuration.kind.startswith("validating")
    )
    with pytest.raises(Conflict):
        served.cluster.write_bundles(validating, {0: b"x"})
    assert OLD_CERTS not in served.cluster.secret().data
    assert b"x" not in bundles(served)


def test_an_edited_bundle_is_repaired(served: Live) -> None:
    """A caBundle that kubectl emptied or replaced is repaired in the next pass."""
    for value in ("null", f'"{base64.b64encode(b"garbage").decode()}"'):
        change = f'[{{"op": "replace", "path": "/webhooks/1/clientConfig/caBundle", "value": {value}}}]'
        served.api.kubectl(
            "patch", "validatingwebhookconfiguration", "zz-corepin", "--type=json", "-p", change
        )

        served.rotator().settle()

        assert bundles(served) == {served.cluster.secret().data[CA_CERT]}
    assert "CABundleRepaired" in served.reasons()


def test_rotator_may_do_nothing_else(served: Live) -> None:
    """With its RBAC rights the rotation can neither read other Secrets nor create or delete its own."""
    for verb, what in (("list", "secrets"), ("create", "secrets"), ("delete", f"secrets/{SECRET}")):
        asked = served.api.kubectl(
            "-n",
            NAMESPACE,
            "auth",
            "can-i",
            verb,
            what,
            f"--as=system:serviceaccount:{NAMESPACE}:{ROTATOR}",
            check=False,
        )
        assert asked.stdout.strip() == "no", (verb, what)


def test_missing_secret_is_an_error(served: Live) -> None:
    """A missing Secret is an error, and is never created."""
    served.cluster._secret += "-absent"
    try:
        with pytest.raises(ClusterError, match=r"40[34]"):
            served.rotator().settle()
    finally:
        served.cluster._secret = served.cluster._secret.removesuffix("-absent")


def command(served: Live, *flags: str) -> list[str]:
    """Return `corepin certs run` for these replicas."""
    replicas = [flag for replica in served.replicas for flag in ("--replicas", str(replica.address))]
    corepin = str(Path(sys.executable).with_name("corepin"))
    return [sys.executable, "-W", "error", corepin, "certs", "run", *replicas, *flags]


def test_process_rotates_until_sigterm(served: Live, tmp_path: Path) -> None:
    """`corepin certs run` begins a requested rotation, serves metrics, and exits with 0 at SIGTERM."""
    listen = f"127.0.0.1:{free_port()}"
    flags = ("--interval", "0.2", "--settle", "0.2", "--metrics-listen", listen)
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            command(served, *flags), env={"KUBECONFIG": str(served.kubeconfig)}, stderr=log
        ) as process,
    ):
        served.annotate("certs.corepin.io/rotate=ca")
        wait_until("the leaf is new", lambda: OLD_CERTS in served.cluster.secret().data)
        bring(served)
        wait_until("the wait is counted", lambda: SHOWN in served.cluster.secret().annotations)
        shown = plain_http.get(f"http://{listen}/metrics").text
        process.terminate()
        assert process.wait(END_SECONDS) == 0, (tmp_path / "log").read_text()

    assert 'corepin_certs_steps_total{step="IssueLeaf"}' in shown
    assert 'corepin_certs_replicas{shows="current"}' in shown


def test_next_process_goes_on(served: Live) -> None:
    """A new process finishes a rotation from the marks in the Secret."""
    rotator = served.rotator()
    for _ in rotate(served, rotator, lambda: None):
        pass

    assert bundles(served) == {served.cluster.secret().data[CA_CERT]}


def test_command_takes_what_steps_it_can(served: Live) -> None:
    """`corepin certs run --once` with a kubeconfig finds nothing to do, or a wait."""
    done = subprocess.run(
        command(served, "--once", "--metrics-listen", "off"),
        env={"KUBECONFIG": str(served.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (
        "nothing to do: certificates and webhook configurations agree" in done.stdout
        or "waiting" in done.stdout
    ), done.stderr
