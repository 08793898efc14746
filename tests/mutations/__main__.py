"""Apply each mutation in a copy of the checkout, and run the tests of its mirrored folder that need no server.

First these folders run without a mutation: a test that fails in any case catches nothing. Then each mutation runs until
the first test that fails. It is caught by a failing test alone: a module that cannot be imported proves nothing.
Hypothesis draws the same examples in every run, so that a mutation is not caught by chance.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from tests.mutations import ROOT, mutations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.mutations import Mutation

PLAIN: Final = "not (server or runtime or node or smt or smt_cluster)"
OPTIONS: Final = "-q -x --no-header --tb=no -p no:cacheprovider --hypothesis-profile=same"
PASSED, FAILED = 0, 1  # exit codes of pytest


def main(arguments: Sequence[str]) -> int:
    """Run the mutations whose file starts with one of the arguments, or all; return 1 if one is not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", default=[""], help="files or folders of the product")
    chosen = [it for it in mutations() if it.file.startswith(tuple(parser.parse_args(arguments).paths))]
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        _copy(copy)
        caught = [
            _is_caught(copy, it) for tests in _passing(copy, chosen) for it in chosen if it.tests == tests
        ]
    print(f"{sum(caught)} of {len(chosen)} mutations are caught")
    return sum(caught) != len(chosen)


def _passing(copy: Path, chosen: Sequence[Mutation]) -> Iterator[str]:
    """Yield the folders of tests that pass without a mutation."""
    for tests in sorted({it.tests for it in chosen}):
        code, failed = _run(copy, tests)
        if code == PASSED:
            yield tests
        else:
            print(f"FAILS WITHOUT A MUTATION: {tests}: {failed or code}", flush=True)


def _copy(copy: Path) -> None:
    listed = subprocess.check_output(["git", "-C", ROOT, "ls-files", "-z"], text=True)
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)


def _is_caught(copy: Path, mutation: Mutation) -> bool:
    path = copy / mutation.file
    text = path.read_text()
    _write(path, mutation.applied(text))
    code, failed = _run(copy, mutation.tests)
    _write(path, text)
    said = {PASSED: "NOT CAUGHT", FAILED: f"caught by {failed}"}.get(code, f"ENDED WITH {code}")
    print(f"{mutation.file}: {mutation.old}  ->  {mutation.new}: {said}", flush=True)
    return code == FAILED


def _write(path: Path, text: str) -> None:
    """Write a module, and remove its bytecode: a change within a second that keeps the size is not noticed."""
    path.write_text(text)
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _run(copy: Path, tests: str) -> tuple[int, str]:
    """Return pytest's exit code, and the first test that failed."""
    command = [sys.executable, "-m", "pytest", *OPTIONS.split(), "-m", PLAIN, tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    failed = (line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith("FAILED "))
    return done.returncode, next(failed, "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
