"""The root guardian from its first start to the end of the server: hear what it reports, and clean up after its death.

Its wire is in `docs/guardian.md`. It tells when a guardian has ended and nothing of it is left. If it is killed, its
guardians live on, as children of this process, which is a child subreaper as well: what is then left behind by a
guardian that is killed, too, is swept by the next root, and reaped here.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from ..limits import Limits
from ..wire import jsontext
from ..wire.framing import LineDecoder, Oversized
from .launch import Life, Root
from .named import named
from .pending import Pending
from .reap import reap

_ROUNDS = 5  # sweeps after one death: what is swept may leave children of its own
_CONTINUE_STEP = 0.25  # seconds between two SIGCONTs to a root that owes an answer: somebody may have stopped it


class RootWatch:
    """What is known of the root guardian and its forks.

    `guardians` are the pids of living guardians, whoever their parent is now; `open_guard` keeps the set.
    """

    def __init__(self, root: Root, limits: Limits) -> None:
        self.root = root
        self.guardians: set[int] = set()
        self.pending = Pending()  # what is waited for from the root, or from the kernel after a guardian's end
        self.refused: dict[int, str] = {}  # why there is no guardian, by the number of its fork
        self.faults: set[str] = set()  # of the system, as guardians have told: each is logged once
        self._limits = limits
        self._forked: dict[int, trio.Event] = {}
        self._ended: dict[int, trio.Event] = {}
        self._swept: dict[int, trio.Event] = {}
        self._sweeps = 0
        self._sweeping = trio.Lock()
        self._sweeper: Life | None = None  # the root that was last told to sweep
        self._deaf = False  # what roots report is not heard any more
        self._began = trio.Event()
        root.began = self._notice

    def _notice(self) -> None:
        self._began.set()

    async def run(self, scope: trio.CancelScope) -> None:
        """Follow each life, until `scope` is cancelled. It is shielded: guardians are waited for in every ending."""
        try:
            with scope:
                await self._follow_all()
        finally:
            # Nobody hears a root any more: let nobody wait for what it would report.
            self._deaf = True
            for events in (self._forked, self._ended, self._swept):
                for event in events.values():
                    event.set()

    async def _follow_all(self) -> None:
        async with trio.open_nursery() as nursery:
            followed: set[int] = set()
            while True:
                self._began = trio.Event()
                for life in self.root.lives:
                    if life.pid not in followed:
                        followed.add(life.pid)
                        nursery.start_soon(self._follow, life, name=named(f"hears root guardian {life.pid}"))
                await self._began.wait()

    async def forked(self, number: int) -> bool:
        """Wait for the guardian of this fork; False when it does not come. A root that does not answer is given up."""
        with self.pending.wait("a guardian to be forked"):
            forked = await self._answer(self._event(self._forked, number), self._limits.guardian_ack)
        if not forked:
            self.root.give_up()
        return forked

    async def ended(self, number: int, pid: int | None) -> None:
        """Wait until the guardian of this fork has been reaped and nothing that it left behind is there any more."""
        with self.pending.wait(f"the end of guardian {pid}"):
            reported = await self._answer(self._event(self._ended, number), self._limits.guardian_clean)
        if not reported:
            self.root.give_up()  # what it had to end becomes ours, and the next root's to sweep
        if pid is not None:
            with trio.move_on_after(self._limits.guardian_ack):
                await reap(pid)  # if its root was killed it is our child
            self.guardians.discard(pid)
        if not any(number in life.forks for life in self.root.lives):
            await self._sweep()

    async def _answer(self, event: trio.Event, seconds: float) -> bool:
        """Wait for what the root owes; False when it does not come.

        A stopped root would leave what a killed guardian had to end, so it is continued, again and again.
        """
        deadline = trio.current_time() + seconds
        while not event.is_set() and trio.current_time() < deadline:
            if self.root.lives:
                os.kill(self.root.lives[-1].pid, signal.SIGCONT)  # ours until it is reaped
            with trio.move_on_at(min(deadline, trio.current_time() + _CONTINUE_STEP)):
                await event.wait()
        return event.is_set()

    def forget(self, number: int) -> None:
        """Nobody will ask for this fork any more."""
        for life in self.root.lives:
            life.forks.discard(number)
        self._forked.pop(number, None)
        self._ended.pop(number, None)

    async def _follow(self, life: Life) -> None:
        decoder = LineDecoder(self._limits.frame_bytes)
        while chunk := await _receive(life):
            for line in decoder.feed(chunk):
                self._record(line)
        await reap(life.pid)
        life.control.close()
        self.root.lives.remove(life)
        if life is self._sweeper:
            # It will report no sweep any more: whoever waits for one, with everybody else behind, asks the next root.
            for swept in self._swept.values():
                swept.set()
        await self._sweep()
        for number in life.forks:
            self._event(self._forked, number).set()
            self._event(self._ended, number).set()

    def _record(self, line: bytes | Oversized) -> None:
        try:
            record = jsontext.loads(line.decode("utf-8", "replace")) if isinstance(line, bytes) else None
        except jsontext.NotJSON:
            record = None
        number = record.get("id") if type(record) is dict else None
        if type(record) is not dict or type(number) is not int:
            self.root.give_up()  # no root of ours speaks like this
        elif record.get("ev") == "swept":
            self._event(self._swept, number).set()
        elif any(number in life.forks for life in self.root.lives):
            # What comes after `forget` would pile up, a little for each worker there has ever been.
            events = self._forked if record.get("ev") == "forked" else self._ended
            self._event(events, number).set()
            error = record.get("error")
            if type(error) is str:
                # There is no guardian, and so no record of its end.
                self.refused[number] = error
                self._event(self._ended, number).set()

    def _event(self, events: dict[int, trio.Event], number: int) -> trio.Event:
        event = events.setdefault(number, trio.Event())
        if self._deaf:
            event.set()
        return event

    async def _sweep(self) -> None:
        """End the children of this process that are neither roots nor guardians: what a killed root had to look after.

        A new root does it, because walking process trees is its business; reaping them is ours. One sweep at a time:
        several guardians end together, and the second of two sweeps would look for what the first has reaped.
        """
        async with self._sweeping:
            for _round in range(_ROUNDS):
                orphans = self._orphans()
                if not orphans or not await self._order_sweep(orphans):
                    return
                for pid in orphans:
                    with trio.move_on_after(self._limits.guardian_ack):
                        await reap(pid)

    async def _order_sweep(self, orphans: list[int]) -> bool:
        """Have a root end these processes, and wait for it; False when there is no root that could."""
        self._sweeps += 1
        number = self._sweeps
        if not self.root.order({"op": "sweep", "id": number, "pids": orphans}):
            return False
        self._sweeper = self.root.lives[-1]
        with self.pending.wait(f"a sweep of {len(orphans)} processes"):
            await self._answer(self._event(self._swept, number), self._limits.guardian_clean)
        self._swept.pop(number, None)
        return True

    def _orphans(self) -> list[int]:
        ours = {life.pid for life in self.root.lives} | self.guardians
        return [pid for pid in _children() if pid not in ours]


def _children() -> list[int]:
    """The pids of this process's children, by whichever thread they were started."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has ended
            path = f"/proc/self/task/{thread}/children"
            with open(path, encoding="ascii") as listing:
                found += map(int, listing.read().split())
    return found


async def _receive(life: Life) -> bytes:
    while True:
        await trio.lowlevel.wait_readable(life.control)
        try:
            return life.control.recv(65_536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        except OSError:
            return b""


@asynccontextmanager
async def open_root(root: Root, limits: Limits) -> AsyncIterator[RootWatch]:
    """Own the root guardian, whichever life it is in: after the context there is none.

    It is told to leave by the end of its socket, after all guardians have ended; one that does not is killed. Shielded:
    a cancelled owner cleans up as well.
    """
    watch = RootWatch(root, limits)
    following = trio.CancelScope(shield=True)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run, following, name=named("hears of new root guardians"))
            try:
                yield watch
            finally:
                root.began = None
                following.cancel()
    finally:
        # Not before those that read the sockets have ended.
        for life in root.lives:
            life.control.close()
            os.kill(life.pid, signal.SIGCONT)  # ours until it is reaped; a stopped one would not see the end
            with trio.move_on_after(limits.guardian_ack, shield=True) as scope:
                await reap(life.pid)
            if scope.cancelled_caught:
                os.kill(life.pid, signal.SIGKILL)  # ours until it is reaped
                with trio.move_on_after(limits.guardian_ack, shield=True):
                    await reap(life.pid)
        root.lives.clear()
