"""The lives of servers: one long one that is closed in order, and short ones that end in every other way."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from stress import kernel
from stress.client import Gone, Server, open_server
from stress.kernel import Footprint
from stress.record import Record
from stress.session import LATE, Session
from stress.steps import walk

HEALTH_STEP = 0.1
"""seconds between two calls of python_health while everything else goes on."""
MEMORY_STEP = 0.5
"""seconds between two looks at the server's memory."""
EXIT_BOUND = 4.0
"""seconds. From the first sign of the end to the exit: the server promises 3, the rest is for a loaded machine."""
GONE_BOUND = 5.0
"""seconds. From the server's end to that of the last process it was the reason of."""
SETTLE_BOUND = 15.0
"""seconds. Back to the start after all sessions closed; an idle thread of trio's lives for ten."""
FLAT = 1_000_000
"""bytes. By how much the server's memory may be larger in the second half of the long life than in the first."""
JUDGED = 100.0
"""seconds. A shorter life says nothing about memory: allocators and caches still fill."""

#: Few results are kept, so that the memory they take is full early: what grows afterwards is a leak.
LIMITS = ("runs_retained=4",)

Ending = Callable[[Server], Awaitable[bool]]
"""Ends a server; whether somebody is left to end what its workers had detached."""


# -- how a server may end --------------------------------------------------------------------------------------


async def end_of_stdin(server: Server) -> bool:
    """The client closes its pipe."""
    stdin = server.process.stdin
    assert stdin is not None
    await stdin.aclose()
    return True


async def sigterm(server: Server) -> bool:
    """SIGTERM with stdin open."""
    server.process.send_signal(signal.SIGTERM)
    return True


async def sigint(server: Server) -> bool:
    """SIGINT with stdin open."""
    server.process.send_signal(signal.SIGINT)
    return True


async def broken_stdout(server: Server) -> bool:
    """The client is gone and reads nothing any more."""
    for pipe in (server.process.stdout, server.process.stdin):
        assert pipe is not None
        await pipe.aclose()
    return True


async def sigkill(server: Server) -> bool:
    """SIGKILL to the server alone."""
    server.process.kill()
    return True


async def sigkill_with_root(server: Server) -> bool:
    """SIGKILL to the server and its root guardian, not to the guardians of its workers."""
    guardians = kernel.guardians_below(server.pid)
    kernel.kill_all([server.pid, *_roots(guardians)])
    return True


async def sigkill_with_guardians(server: Server) -> bool:
    """SIGKILL to the server and the guardians of its workers, not to the root, unless a step has just killed that."""
    guardians = kernel.guardians_below(server.pid)
    kernel.kill_all([server.pid, *(guardians - _roots(guardians))])
    return bool(_roots(guardians))


async def sigkill_everybody(server: Server) -> bool:
    """SIGKILL to the server, the root and the guardians: nobody is left but the next server."""
    kernel.kill_all([server.pid, *kernel.guardians_below(server.pid)])
    return False


def _roots(guardians: set[int]) -> set[int]:
    return {pid for pid in guardians if guardians & kernel.below(pid)}


ORDERLY: dict[str, Ending] = {"end of stdin": end_of_stdin, "SIGTERM": sigterm, "SIGINT": sigint}
HARD: dict[str, Ending] = {
    "broken stdout": broken_stdout,
    "server SIGKILL": sigkill,
    "server and root SIGKILL": sigkill_with_root,
    "server and guardians SIGKILL": sigkill_with_guardians,
    "all SIGKILL": sigkill_everybody,
}
ENDINGS = ORDERLY | HARD


# -- one life --------------------------------------------------------------------------------------------------


class Life:
    """One server from its start to the proof that nothing of it is left. `folder` is removed in the end."""

    def __init__(self, folder: Path, record: Record, seed: str, sessions: int) -> None:
        self.folder = folder
        self.record = record
        self.seed = seed
        self.size = sessions
        self.sessions: list[Session] = []
        self.going = True
        self.memory: list[int] = []

    async def walk(self, session: Session) -> None:
        """The task of one session."""
        try:
            await session.open()
            await walk(session, lambda: self.going)
        except Gone:
            return

    async def watch_health(self, server: Server) -> None:
        """Ask for the server's health all the time."""
        try:
            while True:
                asked = time.monotonic()
                await server.call("python_health")
                self.record.latency("python_health", time.monotonic() - asked)
                await trio.sleep(HEALTH_STEP)
        except Gone:
            return

    async def watch_memory(self, server: Server) -> None:
        """Keep the server's resident size."""
        while True:
            self.memory.append(kernel.resident(server.pid))
            await trio.sleep(MEMORY_STEP)

    def make_sessions(self, server: Server) -> None:
        """The models, each with its own reproducible choice of steps."""
        self.sessions = [Session(server, random.Random(f"{self.seed}/{n}"), n) for n in range(self.size)]

    # -- the long one ------------------------------------------------------------------------------------------

    async def long(self, seconds: float) -> None:
        """Walk for `seconds`, close everything, and hold the server against its start."""
        async with open_server(self.folder, self.record, *LIMITS) as server:
            await self._warm_up(server)
            start = Footprint(server.pid)
            self.make_sessions(server)
            async with trio.open_nursery() as watching:
                watching.start_soon(self.watch_health, server)
                watching.start_soon(self.watch_memory, server)
                async with trio.open_nursery() as nursery:
                    for session in self.sessions:
                        nursery.start_soon(self.walk, session)
                    await trio.sleep(seconds)
                    self.going = False
                watching.cancel_scope.cancel()
            await self._close_all(server)
            await self._back_to(start, server)
            await self._look_back()
            self._judge_memory(seconds)
            await self.end(server, "end of stdin")

    async def _warm_up(self, server: Server) -> None:
        """What a server allocates once: the root guardian, the first worker, the thread that sweeps."""
        await server.call("execute_python", code="import asyncio\nawait asyncio.sleep(0)")
        await self._close_all(server)
        await trio.sleep(1.5)

    async def _close_all(self, server: Server) -> None:
        try:
            for described in (await server.call("python_session_list"))["sessions"]:
                await server.call("python_session_close", session_id=described["session_id"])
        except Gone:
            self.record.check("answers within the bound", False, f"the server is gone: {server.log[-600:]}")

    async def _back_to(self, start: Footprint, server: Server) -> None:
        """The numbers of the start come back, and nothing else runs."""
        now = start
        with trio.move_on_after(SETTLE_BOUND):
            while not server.ended.is_set():
                now = Footprint(server.pid)
                if now.within(start):
                    break
                await trio.sleep(0.05)
        words = f"{now} after {start}: {[kernel.describe(pid) for pid in kernel.below(server.pid)]}"
        self.record.check("back to the start after all sessions closed", now.within(start), words)
        self.record.remarks.append(f"footprint: {start} at the start, {now} at the end")

    def _judge_memory(self, seconds: float) -> None:
        looked = self.memory[len(self.memory) // 5 :]
        half = len(looked) // 2
        if not half:
            return
        first, second = sum(looked[:half]) / half, sum(looked[half:]) / (len(looked) - half)
        words = f"server memory: {first / 1e6:.2f} MB in the first half, {second / 1e6:.2f} MB in the second"
        tenths = [looked[len(looked) * part // 10] / 1e6 for part in range(10)] if len(looked) >= 10 else []
        words += f" ({' '.join(f'{size:.1f}' for size in tenths)})"
        self.record.remarks.append(words + ("" if seconds >= JUDGED else " (too short to be judged)"))
        if seconds >= JUDGED:
            self.record.check("memory is flat", second - first < FLAT, words)

    # -- the short ones ----------------------------------------------------------------------------------------

    async def short(self, seconds: float, ending: str) -> None:
        """Walk for `seconds`, then end the server as `ending` says, in the middle of everything."""
        async with open_server(self.folder, self.record, *LIMITS) as server:
            self.make_sessions(server)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.watch_health, server)
                for session in self.sessions:
                    nursery.start_soon(self.walk, session)
                await trio.sleep(seconds)
                self.going = False
                if ending in ORDERLY:
                    await self._count(server)
                await self.end(server, ending)
                nursery.cancel_scope.cancel()
            await self._look_back()

    async def _count(self, server: Server) -> None:
        """Let no more requests out and wait until the server has read those that are."""
        await server.result(await server.last("python_health"))

    # -- the end -----------------------------------------------------------------------------------------------

    async def end(self, server: Server, ending: str) -> None:
        """End the server and see that everything goes with it."""
        server.held = True
        family = kernel.below(server.pid) | kernel.carriers(server.cookie)
        asked = time.monotonic()
        attended = await ENDINGS[ending](server)
        with trio.move_on_after(2 * EXIT_BOUND):
            await server.process.wait()
            await server.ended.wait()
        took = time.monotonic() - asked
        status = server.process.returncode
        self.record.latency(f"exit after {ending}", took)
        self.record.step(f"end by {ending}", f"status {status}")
        wanted = -signal.SIGKILL if "SIGKILL" in ending else 0
        words = f"{ending}: status {status} after {took:.1f} s. {server.log[-400:]}"
        self.record.check("the exit is in order", status == wanted and took <= EXIT_BOUND, words)
        if not attended:
            await self._sweep()
        await self._gone(server, ending, family)
        if ending in ORDERLY:
            server.balance()
        self._read_log(server)

    async def _gone(self, server: Server, ending: str, family: set[int]) -> None:
        """Nothing that was there because of this server runs any more."""
        asked = time.monotonic()
        left = await self._wait_gone(server, family)
        self.record.latency(f"gone after {ending}", time.monotonic() - asked)
        words = f"{ending}: {', '.join(map(kernel.describe, left))}"
        self.record.check("nothing outlives its server", not left, words)
        kernel.kill_all(left)
        for session in self.sessions:
            for _, marks in session.marks:
                marks.freeze()  # whatever was answered: nobody is left who could write
        left_files = [path.name for path in (self.folder / "tmp").rglob("*")] if "SIGKILL" not in ending else []
        self.record.check("no temporary file left", not left_files, f"{ending}: {left_files}")
        self.record.check("no temporary file left", not list((self.folder / "project").iterdir()), "in the project")

    async def _wait_gone(self, server: Server, family: set[int]) -> set[int]:
        deadline = trio.current_time() + GONE_BOUND
        while True:
            # What is ours and has ended is reaped: it may be the child of a process that had no time for it.
            kernel.bury_children(spared={server.pid})
            found = kernel.below(kernel.OWN) | kernel.carriers(server.cookie) | set(filter(kernel.alive, family))
            left = found - {server.pid}
            if not left or trio.current_time() > deadline:
                return left
            await trio.sleep(0.01)

    async def _sweep(self) -> None:
        """The next server ends what nobody was left to end."""
        folder = self.folder.with_name(self.folder.name + "-next")
        async with open_server(folder, self.record, "sweep_delay=0.01") as server:
            await server.call("python_health")
            await trio.sleep(1.0)
            server.held = True
            await end_of_stdin(server)
            await server.process.wait()
        shutil.rmtree(folder)

    def _read_log(self, server: Server) -> None:
        log = server.log
        bad = [line for line in log.splitlines() if "bug" in line or "Traceback" in line or "Error" in line]
        self.record.check("no bug in the log", not bad, f"{bad[:3]} in\n{log[-1500:]}")

    async def _look_back(self) -> None:
        """The last look at every marker, long enough after the last answer."""
        await trio.sleep(min(LATE, 1.0))
        for session in self.sessions:
            session.look_back(everything=True)


async def play(folder: Path, record: Record, seed: int, seconds: float, sessions: int) -> None:
    """The whole test: a long life for most of the time, then short ones through all endings."""
    order = list(ENDINGS)
    random.Random(f"{seed}/endings").shuffle(order)
    began = time.monotonic()
    print(f"long life of {0.6 * seconds:.0f} s", flush=True)
    life = Life(folder / "long", record, f"{seed}/long", sessions)
    await life.long(0.6 * seconds)
    shutil.rmtree(folder / "long")
    number = 0
    while time.monotonic() - began < seconds:
        ending = order[number % len(order)]
        number += 1
        name = f"{seed}/{number}"
        rng = random.Random(name)
        print(f"short life {number}, ending: {ending}", flush=True)
        await Life(folder / f"short{number}", record, name, sessions).short(rng.uniform(1.0, 4.0), ending)
        shutil.rmtree(folder / f"short{number}")
