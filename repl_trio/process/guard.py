"""The server's side of a guardian: start one, hand it a command, talk to it, see it end.

`launch` is synchronous and fast (one `posix_spawn`, one `sendmsg`), so the opening exchange can call it before trio is
imported and the child boots on the other core meanwhile. `open_guard` adopts the launch and owns it from then on. The
wire is described in `docs/guardian.md`.
"""

from __future__ import annotations

import logging
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
from .named import named
from .pending import Pending
from .reap import reap
from .root import RootWatch

_FAULTS, _FAULT = 8, 400  # sentences, characters

_log = logging.getLogger("repl_trio.process")


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
        self.subreaper = False  # whether everything that detaches itself comes back to the guardian
        self.faults: list[str] = []  # what the system withholds from it, each with its fix
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
        self._asked = Pending()
        self._began = trio.current_time()
        self._ending: float | None = None  # since when nothing but the end is to come

    @property
    def pending(self) -> tuple[str, float] | None:
        """What is waited for from the guardian, and since when on trio's clock; None when nothing is."""
        asked = self._asked.oldest()
        if asked is not None or self.gone.is_set():
            return asked
        if self._ending is not None:
            return "the end of everything below it", self._ending
        return None if self.started.is_set() else ("its start", self._began)

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
        self._end_begins()
        self._send({"op": "stop", "id": 0})
        if self._process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGCONT)  # somebody may have stopped it

    def give_up(self) -> None:
        """End a guardian that does not answer: its death kills the child (parent-death signal). `gone` follows."""
        if self.gone.is_set():
            return
        self._end_begins()
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
            with self._asked.wait(_in_words(operation)), trio.move_on_after(self._limits.guardian_ack) as scope:
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

    def _end_begins(self) -> None:
        if self._ending is None:
            self._ending = trio.current_time()

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
                self._end_lone_child()
                if self._number is not None:
                    # A guardian that was killed could end nothing: the root does, and says when nothing is left.
                    await self._watch.ended(self._number, self.pid)
        finally:
            self._release()
            self.gone.set()

    def _end_lone_child(self) -> None:
        """End the child of a guardian that was killed, where neither a parent-death signal nor a root does."""
        if self.subreaper or self.clean is not None or self.exit_code is not None or self.child_pid is None:
            return
        with suppress(OSError):  # it has ended
            # It leads its session until its end: a stranger with its pid hardly would.
            if os.getsid(self.child_pid) == self.child_pid:
                os.killpg(self.child_pid, signal.SIGKILL)

    def _release(self) -> None:
        """The guardian will say nothing any more: let nobody wait for it."""
        self._silent = True
        self._end_begins()
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
            self._end_begins()
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
        faults = record.get("faults")
        self.faults = [str(fault)[:_FAULT] for fault in faults[:_FAULTS]] if type(faults) is list else []
        for fault in self.faults:
            if fault not in self._watch.faults:
                self._watch.faults.add(fault)
                _log.warning("containment: %s", fault)
        self.started.set()


def _in_words(operation: dict[str, object]) -> str:
    number = operation.get("sig")
    if not isinstance(number, int):
        return "its list of processes"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    target = operation["to"]
    return f"the acknowledgement of {name} to {'worker' if target == 'child' else target}"


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
            nursery.start_soon(guard._listen, listening, name=named("hears its guardian"))
            try:
                if launch.number is not None:
                    await watch.forked(launch.number)
                    guard.error = guard.error or watch.refused.pop(launch.number, None)
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
