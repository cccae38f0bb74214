"""What `ash` does: follow a command on whatever asyncio loop runs the caller's task.

The loop is told of the pipes and of the pidfd by `add_reader`, and each time one of them is readable the task takes one
step of the work that `sh` does. No thread and no child watcher: the command is reaped by its own number, so nobody's
exit status is taken. Cancelling the task is how everything ends it early, time limits, interrupts and the end of the
cell included; its group is then killed and reaped before the task ends.

Loaded on the first call (`isolation.isolated_import`).
"""

from __future__ import annotations

import sys

from .gate import interruptible_steps, shielded_steps
from .shell import LOOK, Running, checked, flush

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from .sh import ShResult


class _Watch:
    """A command that a loop watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, running: Running, wake: asyncio.Event) -> None:
        self._loop = loop
        self._running = running
        self._wake = wake
        self._read: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Have the task woken for what there is to do."""
        for descriptor in self._running.watched():
            self._loop.add_reader(descriptor, self._wake.set)
            self._read.add(descriptor)

    @interruptible_steps
    async def follow(self, timeout: float | None) -> bool:
        """As `Running.follow`."""
        deadline = float("inf") if timeout is None else self._loop.time() + timeout
        while True:
            left = deadline - self._loop.time()
            wait = left if self._running.exit is not None else min(left, LOOK)
            self._timer = None if wait == float("inf") else self._loop.call_later(max(wait, 0.0), self._wake.set)
            await self._wake.wait()
            self._wake.clear()
            if self._timer is not None:
                self._timer.cancel()
            if self._running.step(0):
                return True
            if self._loop.time() >= deadline:
                return False
            self._forget(self._read.difference(self._running.watched()))

    def _forget(self, descriptors: set[int]) -> None:
        for descriptor in descriptors:
            self._loop.remove_reader(descriptor)
        self._read -= descriptors

    def end(self) -> None:
        """Before the descriptors are closed: a loop must not watch a number that is soon another's."""
        if self._loop.is_closed():
            return
        self._forget(set(self._read))
        if self._timer is not None:
            self._timer.cancel()


async def run(command: Any, timeout: float | None, cwd: Any, env: Any, *, check: bool) -> ShResult:
    """Run a command; see `sh.ash`."""
    loop = _loop()
    accepted = checked(command, timeout)
    flush()
    running, ended = await _run(loop, accepted, timeout, cwd, env)
    return running.result(timeout, ended=ended, check=check)


@shielded_steps
async def _run(loop: Any, command: Any, timeout: float | None, cwd: Any, env: Any) -> tuple[Running, bool]:
    """As `shell._run`."""
    wake = sys.modules["asyncio"].Event()
    running = Running(command, cwd, env)
    watch = _Watch(loop, running, wake)
    try:
        watch.start()
        ended = await watch.follow(timeout)
        running.drain()
    finally:
        try:
            watch.end()
        finally:
            running.end()
    return running, ended


def _loop() -> Any:
    """The loop that runs the caller's task. Raises RuntimeError: there may be none, or that of another library."""
    trio = getattr(sys.modules.get("trio._core._run"), "GLOBAL_RUN_CONTEXT", None)
    if getattr(trio, "runner", None) is not None:
        raise RuntimeError("ash() works on asyncio, not under Trio: use `await trio.to_thread.run_sync(sh, cmd)`")
    asyncio = sys.modules.get("asyncio")
    events = sys.modules.get("asyncio.events")
    loop = events._get_running_loop() if events is not None else None
    if loop is None or asyncio is None or asyncio.current_task(loop) is None:
        raise RuntimeError("ash() needs a task of a running asyncio loop: `await ash(cmd)`; without one, use sh(cmd)")
    return loop
