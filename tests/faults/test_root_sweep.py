"""What a killed root guardian leaves to the server is swept once, quickly, and beside the starts of other workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from repl_trio.limits import Limits
from repl_trio.process.guard import Guard, open_guard
from repl_trio.process.launch import Root
from repl_trio.process.reap import reap
from repl_trio.process.root import RootWatch, open_root
from repl_trio.process.start import start_worker
from tests.fakes import worker as fake

HANG = 30.0
RECORD = 5.0
"""seconds. Half of what a root gives a sweep that finds no rest; one that does takes milliseconds."""
GUARDIANS = 4
LIMITS = Limits.overridden({"guardian_clean": "8"})


@contextmanager
def root() -> Iterator[Root]:
    """A root guardian whose records the test reads by itself."""
    made = Root()
    try:
        yield made
    finally:
        for life in made.lives:
            life.control.close()
            os.waitpid(life.pid, 0)


def record(made: Root) -> dict[str, Any]:
    """The next record of the root."""
    control = made.lives[-1].control
    control.settimeout(RECORD)
    line = b""
    while not line.endswith(b"\n"):
        line += control.recv(1, socket.MSG_WAITALL)
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_sweep_of_what_is_gone_is_done_at_once() -> None:
    """Waiting for rest among processes that somebody has reaped, it would keep every start of a worker waiting."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    with subprocess.Popen(["sleep", "600"]) as child, root() as made:
        made.order({"op": "sweep", "id": 1, "pids": [gone.pid, child.pid]})
        assert record(made) == {"ev": "swept", "id": 1, "killed": 1, "left": []}
        assert child.wait(HANG) == -signal.SIGKILL
        made.order({"op": "sweep", "id": 2, "pids": [gone.pid, child.pid]})
        assert record(made) == {"ev": "swept", "id": 2, "killed": 0, "left": []}


async def test_a_cancelled_reap_has_reaped_nothing() -> None:
    """Otherwise somebody who still holds the pid for his own could signal a stranger."""
    child = subprocess.Popen(["true"])  # noqa: ASYNC220 - a child that nobody else reaps
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - it ends at once
    with trio.CancelScope() as scope:
        scope.cancel()
        await reap(child.pid)
    assert scope.cancelled_caught
    assert child.wait(0) == 0


async def _own(watch: RootWatch, folder: Path, python: str, task_status: trio.TaskStatus[Guard]) -> None:
    left = json.dumps([["child", "/dev/null"], ["frame", {}, "ready"]])
    start = start_worker(watch.root, python, str(folder), {"FAKE_START": left}, LIMITS)
    try:
        async with open_guard(start.guardian, watch, LIMITS) as guard:
            while not {*await guard.descendants()} - {guard.child_pid}:  # noqa: ASYNC110 - a start is no event
                await trio.sleep(0.01)
            task_status.started(guard)
            await guard.gone.wait()
    finally:
        start.close()


@pytest.mark.parametrize("order", ["root first", "guardians first"])
async def test_several_guardians_and_their_root_killed_at_once(tmp_path: Path, order: str) -> None:
    """Each of them asks for a sweep: none may wait for what another one's sweep has reaped."""
    python = fake.install(tmp_path)
    before = set(psutil.Process().children(recursive=True))
    with trio.fail_after(HANG):
        async with open_root(Root(), LIMITS) as watch, trio.open_nursery() as nursery:
            guards = [await nursery.start(partial(_own, watch, tmp_path, python)) for _ in range(GUARDIANS)]
            pids = [guard.pid for guard in guards]
            roots = [watch.root.lives[-1].pid]
            began = trio.current_time()
            for pid in [*roots, *pids] if order == "root first" else [*pids, *roots]:
                os.kill(pid, signal.SIGKILL)
            for guard in guards:
                await guard.gone.wait()
            # Half of the bound that one sweep may take when it finds no rest.
            assert trio.current_time() - began < LIMITS.guardian_clean / 2
            left = set(psutil.Process().children(recursive=True)) - before
            assert {process.pid for process in left} <= {life.pid for life in watch.root.lives}


async def test_a_root_killed_in_the_middle_of_a_sweep(tmp_path: Path) -> None:
    """The next one sweeps, at once: meanwhile everybody who ends waits."""
    python = fake.install(tmp_path)
    with trio.fail_after(HANG):
        async with open_root(Root(), LIMITS) as watch, trio.open_nursery() as nursery:
            guard = await nursery.start(partial(_own, watch, tmp_path, python))
            first = watch.root.lives[-1]
            os.kill(first.pid, signal.SIGKILL)
            while first in watch.root.lives:  # noqa: ASYNC110 - a death is no event here
                await trio.sleep(0.005)
            assert watch.root.order({"op": "kill", "id": 10**6})
            second = watch.root.lives[-1]
            os.kill(second.pid, signal.SIGSTOP)
            os.kill(guard.pid, signal.SIGKILL)
            while not watch._sweeping.locked():  # noqa: ASYNC110 - a lock is no event
                await trio.sleep(0.005)
            began = trio.current_time()
            os.kill(second.pid, signal.SIGKILL)
            await guard.gone.wait()
            assert trio.current_time() - began < LIMITS.guardian_clean / 2
