"""A server's session layer that kills itself at a moment: prints the pids of everything below it, then SIGKILL.

python -m tests.faults.doomed FOLDER MOMENT
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import psutil
import trio
import trio.testing

from repl_trio.process.launch import Root
from repl_trio.process.start import start_worker
from repl_trio.session.session import Session
from tests.faults.stage import HANG_ON, RESULT, Step, begin, finish, open_default, open_ready, running, settings

NAMES: Step = ["frame", {"id": "1", "names": [], "total": 0}, "namespace"]


def die() -> None:
    pids = [process.pid for process in psutil.Process().children(recursive=True)]
    os.write(1, json.dumps(pids).encode())
    os.kill(os.getpid(), signal.SIGKILL)


async def live(folder: Path, moment: str) -> None:
    async with open_default(folder) as session:
        child = ["child", str(folder / "child")]
        await finish(await begin(session, child, RESULT))
        await MOMENTS[moment](session)
    raise SystemExit("still alive")


async def ready(folder: Path) -> None:
    async with open_ready(folder):
        die()


async def execute(session: Session) -> None:
    await begin(session, HANG_ON)
    die()


async def inspect(session: Session) -> None:
    await begin(session, HANG_ON)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.names)
        await trio.testing.wait_all_tasks_blocked()
        die()


async def namespace(session: Session) -> None:
    await begin(session, NAMES, HANG_ON)
    await session.names()
    die()


async def result(session: Session) -> None:
    await finish(await begin(session, RESULT))
    die()


async def interrupt(session: Session) -> None:
    run = await begin(session, ["write", 1, "x"], HANG_ON)
    await running(run)
    run.cancel("the test says so")
    await trio.testing.wait_all_tasks_blocked()
    die()


async def shutdown(session: Session) -> None:
    assert session.generation is not None
    session.generation.leave()
    await trio.testing.wait_all_tasks_blocked()
    die()


async def reset(session: Session) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(begin_again, session))
        await trio.testing.wait_all_tasks_blocked()
        die()


async def begin_again(session: Session) -> None:
    await begin(session, RESULT)


MOMENTS = {
    "execute": execute,
    "inspect": inspect,
    "namespace": namespace,
    "result": result,
    "interrupt": interrupt,
    "shutdown": shutdown,
    "reset": reset,
}


def launch(folder: Path) -> None:
    """Start a worker without a runtime, as the opening exchange does."""
    made = settings(folder)
    assert made.python is not None
    kept = start_worker(Root(), made.python, made.project, {}, made.limits)
    # The root forks the guardian, and that one starts the worker, while nobody here listens.
    while len(psutil.Process().children(recursive=True)) < 3:
        os.sched_yield()
    die()
    del kept


if __name__ == "__main__":
    folder, moment = Path(sys.argv[1]), sys.argv[2]
    if moment == "launch":
        launch(folder)
    elif moment == "ready":
        trio.run(ready, folder)
    trio.run(live, folder, moment)
