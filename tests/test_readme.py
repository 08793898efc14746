"""Statements of the README are true: its pod, its commands, its links and its names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from corepin.cli import build_parser, main
from pinning import contract
from tests.environments.server.daemon import running

README = Path("README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\.venv/bin/corepin ([^#\n]*)", README, re.MULTILINE)


def test_the_pod_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pod of "First use" is admitted without a warning."""
    (tmp_path / "pod.yaml").write_text(README.split("```yaml\n")[1].split("```")[0])

    assert main(["validate", "-f", str(tmp_path / "pod.yaml")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/pod.yaml:1: Pod app: valid\n"


def test_commands_work(tmp_path: Path) -> None:
    """The commands of "First use" succeed as they stand, where the pod is saved as pod.yaml."""
    (tmp_path / "pod.yaml").write_text(README.split("```yaml\n")[1].split("```")[0])
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    (block,) = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "Pod app: valid" in done.stdout
    assert "NUMA node 0" in done.stdout


def test_the_picture_is_drawn_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod of "First use" on the machine that the README names."""
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "pod.yaml").write_text(README.split("```yaml\n")[1].split("```")[0])
    rows = [
        {"cpu": cpu, "node": cpu % 8 // 4, "socket": cpu % 8 // 4, "core": cpu % 8, "online": True}
        for cpu in range(16)
    ]
    (tmp_path / "machine.json").write_text(json.dumps({"cpus": rows}))

    planned = ["plan", "-f", str(tmp_path / "pod.yaml"), "--topology", str(tmp_path / "machine.json")]
    assert main(planned) == 0
    assert capsys.readouterr().out == README.split("```text\n")[1].split("```")[0]


def test_the_webhook_serves(tmp_path: Path) -> None:
    """The commands of "Running the webhook" make a certificate and serve with it, on ports that are free."""
    program = Path(sys.executable).with_name("corepin")
    issue, serve = (command.split() for command in COMMANDS if command.split()[0] in {"certs", "webhook"})
    issued = subprocess.run([program, *issue], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert issued.returncode == 0, issued.stderr

    flags = [
        word.replace("127.0.0.1:8443", "127.0.0.1:0").replace("pki/", f"{tmp_path}/pki/") for word in serve
    ]
    log = tmp_path / "log"
    with running("the webhook", [str(program), *flags, "--metrics-listen", "127.0.0.1:0"], log) as webhook:
        webhook.wait_until(lambda: '"serving"' in log.read_text())


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str) -> None:
    """Every command line parses as it stands."""
    assert build_parser().parse_args(command.split()).run


def test_there_are_commands() -> None:
    """The README has a command line of each verb that these tests check."""
    assert {command.split()[0] for command in COMMANDS} == {"validate", "inject", "plan", "certs", "webhook"}


def test_completion_knows_verbs_and_flags(tmp_path: Path) -> None:
    """Shell completion as in the README offers verbs, flags and values."""
    assert "register-python-argcomplete corepin" in README
    for typed, output in (
        ("corepin va", "validate"),
        ("corepin plan --top", "--topology"),
        ("corepin plan -o j", "json"),
    ):
        answer = tmp_path / "answer"
        asked = {"COMP_LINE": typed, "COMP_POINT": str(len(typed)), "COMP_TYPE": "9", "_ARGCOMPLETE": "1"}
        subprocess.run(
            [Path(sys.executable).with_name("corepin")],
            env={**os.environ, **asked, "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)},
            capture_output=True,
            check=True,
        )

        assert answer.read_text().strip() == output


def test_names_are_the_contracts() -> None:
    """Annotations and resources are spelled as the code spells them."""
    names = set(re.findall(r"`?([a-z-]+\.(?:corepin\.io|gocrane\.io|intel\.com)/[a-z-]+)", README))

    assert names == {
        contract.EXCLUSIVE_CORES,
        contract.CMK_MUTATE,
        contract.CRANE_CPU_MANAGER,
        f"{contract.CPU_MANAGER}/container",
        f"{contract.SMT_POLICY}/{contract.POD_SCOPE}",
        f"{contract.NUMA_POLICY}/{contract.POD_SCOPE}",
        contract.NUMA_MEMORY_POD,
        f"{contract.CORE_TYPE}/{contract.POD_SCOPE}",
        f"{contract.QUOTA_POLICY}/{contract.POD_SCOPE}",
        f"{contract.DEVICE_POLICY}/{contract.POD_SCOPE}",
        f"{contract.NOISE_POLICY}/{contract.POD_SCOPE}",
        f"{contract.IRQ_POLICY}/{contract.POD_SCOPE}",
        f"{contract.SHARED_CPUS}/{contract.POD_SCOPE}",
    }


@pytest.mark.parametrize("target", ["demo", "test", "image", "help", "e2e-smt", "soak"])
def test_targets_exist(target: str) -> None:
    """Every `make` target that the README names is in the Makefile, with its line of help."""
    assert f"make {target}" in README
    assert re.search(rf"^{target}:.* ## \S", Path("Makefile").read_text(encoding="utf-8"), re.MULTILINE)
