"""`corepin certs run`: flags, variables and refusals; tests/certs has the tests of the rotation."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta

import pytest

from certs.probe import Address
from certs.rotation import Rest, RotationSettings, Wait
from corepin.cli import main
from corepin.errors import CommandFailed
from corepin.run.certs_run import Options, _pause, add_parser, options_of


def options(*flags: str) -> Options:
    """Return the options of the flags."""
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return options_of(parser.parse_args(["run", *flags]))


def test_defaults_fit_the_manifests() -> None:
    """Without flags the rotation handles the objects of the manifests."""
    parsed = options()

    assert (parsed.namespace, parsed.secret, parsed.service) == (
        "corepin-system",
        "corepin-webhook-tls",
        "corepin-webhook",
    )
    assert parsed.replicas == (Address("corepin-webhook-replicas.corepin-system.svc", 8443),)
    assert parsed.configurations == ("zz-corepin",)
    assert (parsed.settle, parsed.interval) == (timedelta(seconds=60), timedelta(seconds=10))
    assert parsed.kubelet_sync == RotationSettings(("x",)).kubelet_sync == timedelta(seconds=90)
    assert parsed.metrics_listen is not None
    assert parsed.metrics_listen[1] == 8082


def test_flags_are_read() -> None:
    """A bare name of replicas is a Service of the namespace; addresses stay."""
    flags = ["--namespace", "n", "--replicas", "r:1", "--replicas", "10.0.0.1:2", "--settle", "1.5"]
    parsed = options(*flags, "--webhook-configurations", "b", "--metrics-listen", "off", "--once")

    assert set(parsed.replicas) == {Address("r.n.svc", 1), Address("10.0.0.1", 2)}
    assert (parsed.settle, parsed.configurations) == (timedelta(seconds=1.5), ("b",))
    assert parsed.metrics_listen is None
    assert parsed.is_once


def test_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flag has a variable; lists are separated by commas."""
    monkeypatch.setenv("COREPIN_SECRET", "s")
    monkeypatch.setenv("COREPIN_WEBHOOK_CONFIGURATIONS", "b, a")

    assert (options().secret, options().configurations) == ("s", ("a", "b"))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--settle", "-1"),
        ("--kubelet-sync", "0"),
        ("--interval", "soon"),
        ("--interval", "nan"),
        ("--replicas", "nowhere"),
        ("--metrics-listen", "8082"),
    ],
)
def test_bad_flag_is_refused(flag: str, value: str) -> None:
    """A wrong flag is refused with its name."""
    with pytest.raises(CommandFailed, match=flag):
        options(flag, value)


def test_without_a_cluster_it_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outside of a cluster and without a kubeconfig there is one clear line."""
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")

    assert main(["certs", "run", "--once", "--metrics-listen", "off"]) == 2

    assert "corepin certs: no cluster can be asked (" in capsys.readouterr().err


def test_pause_ends_with_the_wait() -> None:
    """The pause is the rest of the rotation's wait, at most the interval."""
    interval = timedelta(seconds=10)
    now = datetime.now().astimezone()

    assert _pause(Rest(), interval) == 10
    assert _pause(Wait("x", now + timedelta(hours=1)), interval) == 10
    assert 0 < _pause(Wait("x", now + timedelta(seconds=2)), interval) < 2.1
    assert 0 < _pause(Wait("x", now - timedelta(seconds=2)), interval) < 0.1
