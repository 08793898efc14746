"""A session with `make try`: its output, the commands of its tour, and what remains after its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from demo.cluster.tour import LAST_LINE
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUPS = Path("/sys/fs/cgroup")
SECONDS = 600.0  # half a minute on an idle machine


@dataclass
class Session:
    """A running `make try`."""

    process: subprocess.Popen[str]
    inner: int  # the process that has the cluster: the child of the one that was started
    printed: str

    @property
    def commands(self) -> list[str]:
        """The commands of the tour, to be copied."""
        lines = [line.strip() for line in self.printed.splitlines() if "  # " in line]
        return [line.partition("  # ")[0].strip() for line in lines]

    @property
    def page(self) -> str:
        """The address of its page."""
        (found,) = re.findall(r"http://127\.0\.0\.1:\d+/", self.printed)
        return str(found)

    @property
    def folder(self) -> Path:
        """The folder in which `make try` keeps all of its files."""
        found = re.search(r"/\S*corepin-try-[^/\s]+", self.printed)
        assert found
        return Path(found[0])

    def type(self, command: str) -> str:
        """Run a command after the printed line with KUBECONFIG; return its output."""
        (exported,) = re.findall(r"export KUBECONFIG=\S+ PATH=\S+", self.printed)
        script = f"{exported} && {command}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def until_shown(self, command: str, words: str) -> str:
        """Type a command until it shows some words; return all that it shows then."""
        return until(words, lambda: text if words in (text := self.type(command)) else None, SECONDS)

    def traces(self) -> list[str]:
        """Return its remains: processes, mounts, cgroups, network namespaces, interfaces and files."""
        names = rf"\bcorepin-(?:test-)?{self.inner}-|\bcp{self.inner}x"
        own = re.compile(rf"{re.escape(str(self.folder))}|{names}")
        shown = [*self._processes(), *Path("/proc/self/mounts").read_text().splitlines()]
        shown += [
            str(path) for path in (*CGROUPS.glob("*"), *CGROUPS.glob("*/*"), *Path("/run/netns").glob("*"))
        ]
        shown += [str(path) for path in (*Path("/sys/class/net").iterdir(), self.folder) if path.exists()]
        return [line for line in shown if own.search(line)]

    @staticmethod
    def _processes() -> Iterator[str]:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")

    def interrupt(self) -> int:
        """Press Ctrl-C, which reaches the whole group of the terminal; return the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(SECONDS)


@contextmanager
def session(*flags: str) -> Iterator[Session]:
    """Run the session until the block ends; yield once it is ready."""
    command = [sys.executable, "-m", "demo.cluster", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line)
                if LAST_LINE in line:
                    break
            assert LAST_LINE in "".join(lines), lines
            yield Session(process, _child_of(process.pid), "".join(lines))
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            process.wait()


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def take_the_tour(tried: Session) -> None:
    """Type the commands of the tour in their order, and see what each promises."""
    apply_web, show_map, why_web, apply_late, why_late, delete_web = tried.commands
    assert tried.type(apply_web) == "pod/web created\n"
    told = tried.until_shown(why_web, "It waits for nothing.")
    assert "the kernel keeps main on CPUs" in told
    assert "default/web/main: exclusive" in tried.until_shown(show_map, "web")
    tried.type(apply_late)
    assert "It waits for:" in tried.until_shown(why_late, "Insufficient corepin.io/isolated-cores")
    assert tried.type(delete_web).startswith('pod "web" deleted')
    tried.until_shown(why_late, "It waits for nothing.")
    assert "late" in tried.until_shown(show_map, "late")
    with httpx.stream("GET", f"{tried.page}api/pods/default/late", trust_env=False, timeout=60) as answer:
        assert any('"late"' in line for line in answer.iter_lines())
    assert " to fix, " in tried.type("kubectl corepin doctor")
