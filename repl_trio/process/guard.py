"""The server's side of a guardian: start one, hand it a command, talk to it, see it end.

`launch` is synchronous and fast (one `posix_spawn`, one `sendmsg`), so the opening exchange can call it before trio is
imported and the child boots on the other core meanwhile. `open_guard` adopts the launch and owns it from then on. The
wire is described in `docs/guardian.md`.
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
from .launch import Launch
from .moment import Moment
from .reap import reap
from .root import RootWatch


class Guard:
    """A guardian and the child it owns.

    `child_pid` is None until `started`. `exited` is set by the child's exit record, `gone` when the guardian has
    reported that nothing is left (`clean`) or has itself ended (`clean` stays None: it was killed).
    """

    def __init__(self, launch: Launch, watch: RootWatch, limits: Limits) -> None:
        self.pid = launch.pid  # of a fork of the root: known with `started`
        self._number = launch.number
        self._watch = watch
        self._process: int | None = None  # its pidfd
        self.child_pid: int | None = None
        self.error: str | None = None  # why the command could not be executed
        self.exit_code: int | None = None
        self.clean: dict[str, object] | None = None
        self.subreaper = False
        self.started = trio.Event()
        self.exited = trio.Event()
        self.gone = trio.Event()
        self._socket = launch.control
        self._limits = limits
        self._decoder = LineDecoder(limits.frame_bytes)
        self._waiting: dict[int, trio.Event] = {}
        self._answers: dict[int, dict[str, object]] = {}
        self._next_id = 1
        self._silent = False  # the socket has ended

    async def signal(self, number: int, target: str, *, since: Moment | None = None) -> int:
        """Send a signal to `child`, `group`, `run` or `tree`; how many processes got it.

        `since` says when a run began and goes with `run`. Returns after the guardian has acknowledged, so that whatever
        is sent to the child afterwards arrives after the signal. 0 also when the guardian is gone. One that does not
        answer in `guardian_ack` seconds is given up (`give_up`): an order that it still holds could hit a later run.
        """
        operation: dict[str, object] = {"op": "signal", "sig": number, "to": target}
        if since is not None:
            operation |= {"since": since.ticks, "after": since.newest}
        answer = await self._ask(operation)
        count = answer.get("n") if answer else None
        return count if type(count) is int else 0

    async def descendants(self) -> list[int]:
        """The pids of everything alive below the child. Empty when the guardian does not answer."""
        answer = await self._ask({"op": "ps"})
        pids = answer.get("pids") if answer else None
        found: list[int] = []
        for entry in pids if type(pids) is list else []:
            pid = entry[0] if type(entry) is list and entry else entry
            if type(pid) is int:
                found.append(pid)
        return found

    def stop(self) -> None:
        """Ask for the end of everything, without waiting: `gone` tells when it is done."""
        self._send({"op": "stop", "id": 0})

    def give_up(self) -> None:
        """End a guardian that does not answer: its death kills the child (parent-death signal). `gone` follows."""
        if self.gone.is_set():
            return
        with suppress(ProcessLookupError):
            if self._process is not None:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            elif self._number is not None:
                self._watch.root.send({"op": "kill", "id": self._number})
            elif self.pid is not None:
                os.kill(self.pid, signal.SIGKILL)  # ours until it is reaped, so the pid is no stranger's

    async def _ask(self, operation: dict[str, object]) -> dict[str, object] | None:
        if self._silent:
            return None
        number, self._next_id = self._next_id, self._next_id + 1
        answered = self._waiting[number] = trio.Event()
        try:
            self._send({**operation, "id": number})
            with trio.move_on_after(self._limits.guardian_ack) as scope:
                await answered.wait()
            if scope.cancelled_caught:
                self.give_up()
                with trio.move_on_after(self._limits.guardian_ack):
                    await self.gone.wait()
            return self._answers.pop(number, None)
        finally:
            del self._waiting[number]

    def _send(self, operation: dict[str, object]) -> None:
        line = jsontext.dumps(operation).encode("ascii") + b"\n"
        try:
            sent = self._socket.send(line, socket.MSG_DONTWAIT)
        except OSError:
            sent = 0  # the guardian is gone (its record follows) or stopped with a full socket
        if sent != len(line) and not self.gone.is_set():
            # Half an operation would make the next one garbage. EOF is an order too: the guardian kills and leaves.
            self._shut()

    def close(self) -> None:
        """Close what is held of the guardian. It sees the end of its lifeline."""
        self._socket.close()
        if self._process is not None:
            os.close(self._process)
            self._process = None
        if self._number is not None:
            self._watch.forget(self._number)

    def _shut(self) -> None:
        with suppress(OSError):  # already disconnected
            self._socket.shutdown(socket.SHUT_WR)

    async def _listen(self, scope: trio.CancelScope) -> None:
        """Read records until the guardian's end, then release everybody who waits.

        `scope` is shielded and its owner's to cancel: the last record must be heard when everything else is cancelled.
        """
        try:
            with scope:
                while chunk := await self._receive():
                    if not all(self._record(line) for line in self._decoder.feed(chunk)):
                        break  # no guardian of ours speaks like this: closing the lifeline ends whatever it is
                self._release()
                if self._number is not None:
                    # A guardian that was killed could end nothing: the root does, and says when nothing is left.
                    await self._watch.ended(self._number, self.pid)
        finally:
            self._release()
            self.gone.set()

    def _release(self) -> None:
        """The guardian will say nothing any more: let nobody wait for it."""
        self._silent = True
        self._shut()
        self.exited.set()
        self.started.set()
        for event in self._waiting.values():
            event.set()

    async def _receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(65_536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    def _record(self, line: bytes | Oversized) -> bool:
        """Take one record; False for what is none."""
        try:
            record = jsontext.loads(line.decode("utf-8", "replace")) if isinstance(line, bytes) else None
        except jsontext.NotJSON:
            record = None
        if type(record) is not dict:
            return False
        event = record.get("ev")
        if event == "spawned":
            self._spawned(record)
        elif event in ("signalled", "ps"):
            number = record.get("id")
            if type(number) is int and number in self._waiting:
                self._answers[number] = record
                self._waiting[number].set()
        elif event == "exit":
            code = record.get("code")
            self.exit_code = code if type(code) is int else None
            self.exited.set()
        elif event == "clean":
            self.clean = record
        return True

    def _spawned(self, record: dict[str, object]) -> None:
        pid, error, guardian = record.get("pid"), record.get("error"), record.get("guardian")
        if self._number is not None and type(guardian) is int:
            self.pid = guardian
            self._watch.guardians.add(guardian)
            with suppress(OSError):  # it has ended; its socket says so next
                self._process = os.pidfd_open(guardian)
        self.child_pid = pid if type(pid) is int else None
        self.error = error if type(error) is str else None
        self.subreaper = record.get("subreaper") is True
        self.started.set()


@asynccontextmanager
async def open_guard(launch: Launch, watch: RootWatch, limits: Limits) -> AsyncIterator[Guard]:
    """Own a launched guardian: inside the context it lives, after it everything below it is gone.

    Leaving stops it: an orderly `stop` for `guardian_clean` seconds, then it is given up; the guardian process itself
    is reaped by pid in every case, by its parent. Shielded: a cancelled owner cleans up as well.
    """
    guard = Guard(launch, watch, limits)
    listening = trio.CancelScope(shield=True)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard._listen, listening)
            try:
                if launch.number is not None:
                    await watch.forked(launch.number)
                yield guard
            finally:
                with trio.move_on_after(limits.guardian_clean, shield=True):
                    if not guard.gone.is_set():
                        guard.stop()
                        await guard.gone.wait()
                guard.give_up()
                listening.cancel()
    finally:
        guard.close()
        if launch.pid is not None:
            with trio.move_on_after(limits.guardian_ack, shield=True):
                await reap(launch.pid)
