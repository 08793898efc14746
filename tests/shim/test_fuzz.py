"""Fuzz tests of the shim's parsers for answers and files: no out-of-bounds access, crash or endless loop."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.shim.agent import ENVIRONMENT, FakeAgent, error, ok

PARSERS = ("answer", "cpus", "json", "vcpus")
SANITIZERS = "address,undefined"
STATUS = {
    "version": 1,
    "containers": {
        "main": {"policy": "exclusive", "smtPolicy": "prefer", "cpus": "2-3", "pinned": True, "vcpus": [0]},
        "side": {
            "pinned": False,
            "refusal": {"reason": "NoRoom", "message": 'a "quoted" \\ word', "blocksStart": False},
        },
    },
    "vm": {
        "kind": "qemu",
        "vcpus": ["2", "3"],
        "oneToOne": True,
        "guest": [{"socket": 0, "core": 0, "thread": 0}, {"socket": 1, "core": 0, "thread": 0}],
        "time": "2026-01-01T00:00:00Z",
    },
}
SEEDS = {
    "answer": ok(ENVIRONMENT),
    "warned": ok("warning=helpers run elsewhere\nCMK_CPUS_ASSIGNED=1\n"),
    "refused": error("Not enough free cpu lists in pool exclusive"),
    "status": json.dumps(STATUS).encode(),
    "dense": json.dumps(STATUS, separators=(",", ":")).encode(),
    "nested": b"[" * 14 + b'{"a":[1,-2.5e3,null]}' + b"]" * 14,
    "list": b"0-3,8,17-19\n",
}


@pytest.fixture(scope="session")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the parsers with sanitizers and a random input generator."""
    program = tmp_path_factory.mktemp("fuzz") / "fuzz"
    sources = ["tests/shim/fuzz.c", *(f"shim/{name}.c" for name in PARSERS)]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]
    flags += [f"-fsanitize={SANITIZERS}", f"-fno-sanitize-recover={SANITIZERS}"]
    subprocess.run(["gcc", *flags, "-o", str(program), *sources], check=True)
    return program


@pytest.mark.parametrize("seed", range(4))
def test_parsers_bear_random_changes(fuzz: Path, tmp_path: Path, seed: int) -> None:
    """Ten thousand mutated answers, maps and lists cause no sanitizer error and no broken invariant."""
    for name, content in SEEDS.items():
        (tmp_path / name).write_bytes(content)
    files = [str(tmp_path / name) for name in SEEDS]
    done = subprocess.run(
        [str(fuzz), "200", str(seed), *files], capture_output=True, text=True, check=False, timeout=300
    )

    assert (done.returncode, done.stderr) == (0, "")


MIXED = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda kind, length, body: b"%s %d\n%s" % (kind, length, body), *(
        st.sampled_from([b"ok", b"error", b"OK", b""]), st.integers(-2, 60), st.binary(max_size=60),
    )),
    st.text("CMK_ABX=1,\n\x00\x1b", max_size=60).map(ok),
    st.text(max_size=60).map(error),
)  # fmt: skip


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=MIXED)
def test_no_answer_crashes_the_command(agent: FakeAgent, answer: bytes) -> None:
    """The command starts after a complete positive answer, and exits with 1 after any other."""
    agent.answers = [answer]
    agent.asked.clear()
    done = agent.run("isolate", "--pool=shared", "/bin/true", env={"CMK_LOCK_TIMEOUT": "0"})
    head, _, body = answer.partition(b"\n")
    is_whole = head == b"ok %d" % len(body) and b"\0" not in body

    assert done.returncode in {0, 1}
    assert (done.returncode == 0) <= is_whole
    assert (done.returncode == 1) == bool(done.stderr) or b"warning=" in body
