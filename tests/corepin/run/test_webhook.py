"""`corepin webhook`: its flags, and the errors for wrong ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from corepin import cli
from corepin.flags import listed, variable
from corepin.run.webhook import _options
from tests.webhook.mounted import Mounted, new_ca, pair
from webhook.server.listener import Address


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a failing command prints."""
    assert cli.main(["webhook", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = (line for line in printed.err.splitlines() if not line.startswith("{"))
    return line


def test_flags_have_defaults_that_fit_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the webhook listens on all interfaces, reads mounted files, and accepts any client."""
    for flag in ("--listen", "--tls-cert", "--client-ca", "--client-name", "--config", "--mutations"):
        monkeypatch.delenv(variable(flag), raising=False)
    found = _options(cli.build_parser().parse_args(["webhook"]))

    assert (found.listen, found.metrics_listen) == (Address("", 8443), Address("", 8080))
    assert found.tls.certificate == Path("/etc/corepin/tls/tls.crt")
    assert (found.tls.client_ca, found.client_names) == (None, frozenset())
    assert found.config.optional
    assert found.mutations.optional


def test_environment_sets_flags_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables set flags, flags override them, and an empty variable is ignored."""
    monkeypatch.setenv("COREPIN_LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("COREPIN_METRICS_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("COREPIN_CLIENT_CA", "/ca")
    monkeypatch.setenv("COREPIN_CLIENT_NAME", "a, b,")
    monkeypatch.setenv("COREPIN_CONFIG", "")
    monkeypatch.setenv("COREPIN_MUTATIONS", "/m")
    found = _options(cli.build_parser().parse_args(["webhook", "--listen", "[::1]:3"]))

    assert (found.listen, found.metrics_listen) == (Address("::1", 3), Address("127.0.0.1", 2))
    assert (found.tls.client_ca, found.client_names) == (Path("/ca"), frozenset({"a", "b"}))
    assert found.config.optional
    assert not found.mutations.optional  # the flag names this file, so it must exist
    assert listed("--client-name", ["c"]) == {"c"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "8443"), "--listen: '8443' is not HOST:PORT"),
        (
            ("--body-limit", "20Mi"),
            "--body-limit: '20Mi' is not a number of MiB from 1 to 1024: write for example 20",
        ),
        (("--body-limit", "0"), "--body-limit: '0' is not a number of MiB"),
        (("--metrics-listen", "a:99999"), "--metrics-listen: 'a:99999' is not HOST:PORT"),
        (
            ("--listen", ":" + "9" * 5000),
            f"--listen: ':{'9' * 59}' is not HOST:PORT: write for example :8443",
        ),
        (("--client-name", "a"), "--client-name needs --client-ca"),
        (("--config", "/absent"), "/absent does not exist"),
        (("--tls-cert", "/absent"), "/absent does not exist"),
        (("--check-config", "--mutations", "/absent"), "/absent does not exist"),
    ],
)
def test_mistakes_are_one_clear_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """A wrong flag is one line with exit code 2."""
    assert failure(capsys, *arguments).startswith(f"corepin webhook: {message}")


@pytest.mark.parametrize("flag", ["--config", "--mutations", "--tls-cert", "--tls-key", "--client-ca"])
def test_missing_file_is_the_first_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    """Nothing is logged before the one line that says which file is missing."""
    ca = new_ca()
    files = {name: tmp_path / name for name in ("tls.crt", "tls.key")}
    for name, content in pair(ca).items():
        files[name].write_bytes(content)
    pair_flags = ("--tls-cert", str(files["tls.crt"]), "--tls-key", str(files["tls.key"]))

    assert cli.main(["webhook", *pair_flags, flag, "/absent"]) == 2
    message = "corepin webhook: /absent does not exist: create it, or name another file\n"
    assert capsys.readouterr() == ("", message)


def test_a_port_in_use_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port in use is one line with the address."""
    secret = Mounted(tmp_path / "tls", pair(new_ca()))
    with Address("127.0.0.1", 0).bind() as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = (
            "--tls-cert",
            str(secret / "tls.crt"),
            "--tls-key",
            str(secret / "tls.key"),
            "--listen",
            listen,
        )

        message = f"cannot listen on {listen} (Address already in use): name another address"
        assert failure(capsys, *flags) == f"corepin webhook: {message}"


def test_check_config_reports_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good file is ok, an absent optional one means the defaults; nothing is served."""
    config = tmp_path / "config.yaml"
    config.write_text("isolatedCores: false\n")

    assert cli.main(["webhook", "--check-config", "--config", str(config)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{config}: ok"


def test_check_config_into_a_full_disk_is_one_line() -> None:
    """An output that cannot be written is one line, without a traceback."""
    script = f"exec {sys.executable} -c 'from corepin.cli import main; exit(main())' webhook --check-config >/dev/full"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)

    message = "corepin webhook: standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (2, message)


def test_check_config_names_file_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown key fails --check-config with file and key."""
    config = tmp_path / "config.yaml"
    config.write_text("isolatedCore: false\n")

    message = failure(capsys, "--check-config", "--config", str(config))

    assert message.startswith(f"corepin webhook: {config}: ")
    assert "isolatedCore" in message


@pytest.mark.parametrize(
    ("address", "shown"),
    [(Address("", 1), ":1"), (Address("a", 0), "a:0"), (Address("::1", 65535), "[::1]:65535")],
)
def test_addresses_are_shown(address: Address, shown: str) -> None:
    """IPv6 addresses are shown in brackets."""
    assert str(address) == shown


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_addresses_are_bound(host: str) -> None:
    """An empty host binds every interface."""
    with Address(host, 0).bind() as bound:
        assert bound.getsockname()[1] > 0


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    """`corepin --version` prints name and version."""
    with pytest.raises(SystemExit) as done:
        cli.main(["--version"])

    assert done.value.code == 0
    assert capsys.readouterr().out.startswith("corepin 0.")


def test_help_shows_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag of the webhook but --check-config names its environment variable."""
    with pytest.raises(SystemExit):
        cli.main(["webhook", "--help"])

    printed = capsys.readouterr().out
    for flag in (
        "--listen",
        "--tls-cert",
        "--tls-key",
        "--client-ca",
        "--client-name",
        "--config",
        "--mutations",
    ):
        assert variable(flag) in printed


def test_command_starts_without_what_it_does_not_need() -> None:
    """Building the parser does not import the server and certificate libraries, which are slow to load."""
    heavy = {"fastapi", "uvicorn", "prometheus_client", "cryptography", "jsonpatch"}
    script = f"import sys; from corepin import cli; cli.build_parser(); print({heavy} & sys.modules.keys())"

    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert printed == "set()\n"
