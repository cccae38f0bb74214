"""The bound on a worker's resident memory, sampled while its cells run.

A safeguard for the machine and no security boundary: what grows and shrinks between two samples is not seen, and only
the worker itself is counted, not what it has started.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import trio

from ..process.guard import Guard

MIB = 1 << 20
_IDLE = 8  # samples without a run after which the watch rests until the next one


class Watched(Protocol):
    """What is watched: a worker and its current run."""

    guard: Guard

    @property
    def busy(self) -> bool:
        """Whether a cell runs."""

    def overrun(self, death: str) -> None:
        """The worker is over its bound: end it at once. `death`: by how much, a sentence without its full stop."""


class MemoryWatch:
    """Samples one worker's resident memory every `interval` seconds while it runs something. `mib` 0 means no bound."""

    def __init__(self, mib: int, interval: float) -> None:
        self.mib = mib
        self._interval = interval
        self._rest: trio.Event | None = None

    def wake(self) -> None:
        """A run has begun. Costs nothing while the watch is awake, as it is between the cells of a busy session."""
        if self._rest is not None:
            self._rest.set()
            self._rest = None

    async def watch(self, watched: Watched) -> None:
        """Watch until cancelled, or until the worker is over its bound."""
        idle = 0
        while True:
            if idle >= _IDLE:
                self._rest = trio.Event()
                await self._rest.wait()
                idle = 0
            await trio.sleep(self._interval)
            if not self.mib:
                return
            idle = 0 if watched.busy else idle + 1
            try:
                resident = await _resident(watched.guard.child_pid) if watched.busy else 0
            except _Unwatchable as error:
                watched.overrun(
                    f"The worker's memory cannot be watched ({error}), and its limit is {self.mib} MiB, so it was "
                    "killed. Repair the installation, or start the server with --max-memory-mib 0"
                )
                return
            if resident > self.mib * MIB and watched.busy:
                watched.overrun(
                    f"The worker used {resident // MIB} MiB of memory; its limit is {self.mib} MiB, so it was killed"
                )
                return


class _Unwatchable(Exception):
    """The system does not tell what a process holds. A bound that nobody looks after must not pass in silence."""


async def _resident(pid: int | None) -> int:
    """Resident bytes of a process; 0 when it has ended. Raises `_Unwatchable`."""
    if pid is None:
        return 0
    if _Library.psutil is None:
        try:
            # On first use and in a thread: loading it takes as long as a hundred answers.
            _Library.psutil = await trio.to_thread.run_sync(importlib.import_module, "psutil")
        except Exception as error:  # noqa: BLE001 - a broken library fails as it likes
            raise _Unwatchable(f"psutil cannot be loaded: {type(error).__name__}: {error}") from None
    psutil = _Library.psutil
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
    except Exception as error:  # noqa: BLE001 - as above
        raise _Unwatchable(f"{type(error).__name__}: {error}") from None


class _Library:
    """psutil once it is loaded whole: in `sys.modules` it is already while a thread is still loading it."""

    psutil: Any = None
