"""A process whose threads start each other: each starts the next one after some microseconds."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int microseconds, most, stays, made;
static pthread_attr_t small;
static void *run(void *next) {
    pthread_t thread;
    usleep(microseconds);
    if (__atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST) < most)
        while (pthread_create(&thread, &small, run, next))
            usleep(100);
    if (stays)
        pause();
    return next;
}
int main(int count, char **words) {
    microseconds = atoi(words[1]), most = atoi(words[2]), stays = atoi(words[3]);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 32768);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    pthread_t first;
    pthread_create(&first, &small, run, NULL);
    puts("started");
    fflush(stdout);
    for (;;)
        pause();
}
"""


def build(folder: Path) -> Path:
    """Compile the program."""
    program = folder / "thread-chain"
    (folder / "chain.c").write_text(SOURCE)
    command = ["cc", "-O1", "-pthread", "-o", str(program), str(folder / "chain.c")]
    subprocess.run(command, check=True, capture_output=True)
    return program


@contextmanager
def running(program: Path, *, microseconds: int, threads: int, stay: bool = True) -> Iterator[int]:
    """Run a chain of so many threads, which stay or exit once they started the next one; yield its pid."""
    command = [str(program), str(microseconds), str(threads), str(int(stay))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def wait_for_threads(pid: int, count: int) -> None:
    """Wait until the process has so many threads."""
    while Path(f"/proc/{pid}/task").stat().st_nlink - 2 < count:
        os.sched_yield()


def masks(pid: int) -> set[frozenset[int]]:
    """Return the masks of a process's threads."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found.add(frozenset(os.sched_getaffinity(int(task.name))))
    return found
