"""The watch over a worker's memory, with a library that tells exact numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from repl_trio.session import memory
from repl_trio.session.memory import MIB, MemoryWatch


class Worker:
    """A busy worker that holds so many bytes."""

    busy = True
    guard = SimpleNamespace(child_pid=7)

    def __init__(self) -> None:
        self.deaths: list[str] = []
        self.over = trio.Event()

    def overrun(self, death: str) -> None:
        self.deaths.append(death)
        self.over.set()


@pytest.mark.parametrize(("resident", "stopped"), [(48 * MIB, False), (48 * MIB + 1, True), (49 * MIB, True)])
async def test_the_bound_itself_is_allowed_and_a_byte_more_is_not(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, resident: int, stopped: bool
) -> None:
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=resident))
    library = SimpleNamespace(Process=lambda pid: process, NoSuchProcess=LookupError)
    monkeypatch.setattr(memory._Library, "psutil", library)
    worker = Worker()
    with trio.move_on_after(60):
        await MemoryWatch(48, 0.25).watch(worker)  # type: ignore[arg-type]  # as much of a guard as it looks at
    assert worker.over.is_set() is stopped
    assert (
        worker.deaths
        == [f"The worker used {resident // MIB} MiB of memory; its limit is 48 MiB, so it was killed"] * stopped
    )
