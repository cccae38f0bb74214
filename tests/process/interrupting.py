"""Workers that are interrupted: made ready, hit in the midst of a cell, and looked at afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.process.worker_driver import Answer, WorkerDriver

SETUP = """
import asyncio, subprocess, sys, time, threading, queue, socket
mark = 41
class SlowRepr:
    def __repr__(self):
        while True: pass
class SlowText(Exception):
    def __str__(self):
        while True: pass
async def spin():
    while True: await asyncio.sleep(0)
async def busy():
    while True: pass
"""


def prepared(python: str, cwd: Path) -> WorkerDriver:
    driver = WorkerDriver(python, cwd)
    driver.ready()
    assert driver.cell(SETUP).success
    return driver


def interrupted(worker: WorkerDriver, code: str) -> Answer:
    """Run a cell, interrupt it once it says that it runs, or a little later, when it usually is in the midst of it."""
    run_id = worker.start(code if "'running'" in code else f"print('running')\n{code}")
    worker.wait_output("running\n")
    worker.pause(0.01)
    worker.interrupt()
    answer = worker.answer(run_id)
    assert answer.interrupted
    return answer


def lives_on(worker: WorkerDriver) -> None:
    """The namespace, the loop, and cells of both kinds are as if nothing had been."""
    assert worker.cell("mark + 1").value == 42
    after = worker.cell("await asyncio.sleep(0)\nawait asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))")
    assert (after.value, after.interrupted, after.stderr) == ([1, 2], False, "")


def insist(worker: WorkerDriver) -> None:
    """The second signal of the ladder, to the worker alone."""
    os.kill(worker.pid, signal.SIGURG)
