"""The worker's end of the RPC: requests out, answers in, and what an interrupt or a cancelled task leaves of them.

A request is entered and sent in one shielded step, so an interrupt leaves either nothing or a request that is known;
one that is given up is told to the server. At most `rpc_pending` are with the server; more are held back here, in
order, and sent by the reader's thread as answers come. Loaded on the first use of `mcp` (`isolation.isolated_import`).
"""

from __future__ import annotations

import _signal
import _thread
import collections
import itertools
import os
import sys

from ..limits import DEFAULT
from ..wire import frames, jsontext
from . import border
from .envelope import failed, plain, refused
from .gate import interruptible, interruptible_steps, interrupts, shielded, shielded_steps
from .turn import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..wire.frames import Frame
    from .envelope import Error
    from .turn import Turn

#: The signals whose handlers, a cell's own, may raise: not in the midst of a frame.
_CLOSED = border.SIGNALS | {_signal.SIGINT}
_OVER: dict[str, Any] = {
    "code": "CALL_CANCELLED",
    "message": "The run is over or being stopped",
    "sent": "unknown",
    "server": None,
    "tool": None,
    "artifact": None,
}


class _Request:
    """One `rpc`, from its frame to its answer. `wake` tells who waits; it is called once, on any thread."""

    __slots__ = ("error", "gone", "line", "number", "op", "run_id", "sent", "text", "wake")

    def __init__(self, number: int, run_id: str, op: str, line: bytes, wake: Callable[[], object]) -> None:
        self.number = number
        self.run_id = run_id
        self.op = op
        self.line = line
        self.wake = wake
        self.gone: Callable[[], bool] = lambda: False  # whether who waits has been cancelled, and does not know it yet
        self.sent = False
        self.text: str | None = None
        self.error: dict[str, Any] | None = None


class Exchange:
    """The requests of the current run. Any thread may ask that carries the run's context."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._link = turn.link
        self._numbers = itertools.count(1)
        self._lock = _thread.RLock()
        self._requests: dict[int, _Request] = {}
        self._held: collections.deque[_Request] = collections.deque()
        self._out = 0  # how many are with the server

    @property
    def pending(self) -> int:
        """How many requests wait for their answers."""
        return len(self._requests)

    def ask(self, op: str, params: dict[str, Any]) -> Any:
        """The JSON value that answers; blocks this thread. Raises `Error`."""
        lock = _thread.allocate_lock()
        lock.acquire()
        request = self._request(op, params, lock.release)
        self._await_answer(request, lock)
        return _outcome(request)

    async def ask_async(self, op: str, params: dict[str, Any]) -> Any:
        """`ask` in a task of a running asyncio loop: the loop goes on. Cancelled here: the server is told."""
        loop = _running_loop()
        future = loop.create_future()
        request = self._request(op, params, lambda: _wake(loop, future))
        request.gone = future.cancelled
        await self._await_steps(request, future)
        return _outcome(request)

    def drop(self) -> None:
        """The run is over, or is being stopped: everything that still waits is told so."""
        with self._lock:
            left = list(self._requests.values())
            self._requests.clear()
            self._held.clear()
            self._out = 0
        for request in left:
            request.error = _OVER
            request.wake()

    def take(self, frame: Frame) -> None:
        """An answer, on the reader's thread. One that nobody waits for is dropped."""
        number: Any = frame["id"]
        with self._lock:
            request = self._requests.pop(number, None)
            if request is None:
                return
            self._out -= 1
            self._send_held()
        text, error = frame["result"], frame["error"]
        request.text = text if isinstance(text, str) else None
        request.error = error if isinstance(error, dict) else None
        request.wake()

    # -- one request -------------------------------------------------------------------------------------------

    def _request(self, op: str, params: dict[str, Any], wake: Callable[[], object]) -> _Request:
        run_id = self._run_of_caller()
        number = next(self._numbers)
        given = {key: plain(value, "" if key == "arguments" else f"/{key}") for key, value in params.items()}
        frame: Frame = {"frame": "rpc", "id": number, "run_id": run_id, "op": op, "params": given}
        try:
            line = frames.encode(frame, DEFAULT.frame_bytes)
        except frames.FrameError as error:
            raise refused("LIMIT_REACHED", f"The arguments do not fit: {error} (`frame_bytes`). Not sent.") from None
        if self._link.is_sending() or self._lock._is_owned():  # type: ignore[attr-defined]  # typeshed leaves it out
            # A finalizer, which must not wait for what goes on below it on the same stack.
            raise refused("OUTSIDE_RUN", "mcp was used by a finalizer in the midst of another request. Not sent.")
        return _Request(number, run_id, op, line, wake)

    def _run_of_caller(self) -> str:
        """The run on whose behalf this is asked. Raises `Error` for code of none, or of one that is over."""
        if os.getpid() != self._link.pid:
            raise refused(
                "OUTSIDE_RUN", "mcp cannot be used in a forked process; call it in the cell itself. Not sent."
            )
        run_id = current.get()
        if run_id is None:
            raise refused(
                "OUTSIDE_RUN",
                "mcp belongs to the run of a cell, and this thread does not carry its context: use "
                "asyncio.to_thread(...), or contextvars.copy_context().run as what the thread calls. Not sent.",
            )
        if run_id != self._turn.run_id:
            raise refused("OUTSIDE_RUN", f"mcp was used by code of run {run_id}, which is over or stopped. Not sent.")
        return run_id

    @shielded
    def _await_answer(self, request: _Request, lock: _thread.LockType) -> None:
        try:
            self._begin(request)
            _acquire(lock)
        finally:
            # Twice: a cell's own signal handler may raise at the first step of the first.
            try:
                self._finish(request)
            finally:
                self._finish(request)

    @shielded_steps
    async def _await_steps(self, request: _Request, future: Any) -> None:
        try:
            self._begin(request)
            await _resolved(future)
        finally:
            try:
                self._finish(request)
            finally:
                self._finish(request)

    def _begin(self, request: _Request) -> None:
        closed = _open_now()
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, closed)
            with self._lock:
                if request.run_id != self._turn.run_id:
                    # The run has ended since it was asked: nobody would drop this request any more.
                    raise failed(request.op, {**_OVER, "sent": "no"})
                self._requests[request.number] = request
                self._held.append(request)
                self._send_held()
        finally:
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, closed)

    def _finish(self, request: _Request) -> None:
        """Whatever happened, nobody waits any more: a request without an answer is taken back."""
        if request.number not in self._requests:
            return
        closed = _open_now()
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, closed)
            with self._lock:
                if self._requests.pop(request.number, None) is None:
                    return
                if request.sent:
                    self._out -= 1
                    self._link.send({"frame": "rpc_cancel", "id": request.number, "run_id": request.run_id})
                    self._send_held()
                elif request in self._held:
                    self._held.remove(request)
        finally:
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, closed)

    def _send_held(self) -> None:
        # Under the lock, so that no request can be taken back before it is written.
        while self._held and self._out < DEFAULT.rpc_pending:
            request = self._held.popleft()
            if request.gone():
                continue  # of many that are cancelled together each would make room for the next
            request.sent = True
            self._out += 1
            self._link.write(request.line)
            request.line = b""


@interruptible
def _acquire(lock: _thread.LockType) -> None:
    """Wait for the answer. An interrupt, and a cell's own signal handler, run in the midst of it and may raise."""
    lock.acquire()


@interruptible_steps
async def _resolved(future: Any) -> None:
    await future


def _wake(loop: Any, future: Any) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, future)
    except Exception:  # noqa: BLE001 - a closed loop, or one of a cell's own making: nobody waits there any more
        return


def _resolve(future: Any) -> None:
    if not future.done():
        future.set_result(None)


def _outcome(request: _Request) -> Any:
    if request.error is not None:
        raise failed(request.op, request.error)
    assert request.text is not None
    try:
        return jsontext.loads(request.text)
    except jsontext.NotJSON as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> Error:
    words = f"This interpreter cannot parse the answer ({error}). The call is done; its result is lost."
    made = refused("PROTOCOL_ERROR", words)
    made.sent = "done"
    return made


def _running_loop() -> Any:
    """The loop that runs the caller's task. Raises RuntimeError: there may be none, or that of another library."""
    trio = getattr(sys.modules.get("trio._core._run"), "GLOBAL_RUN_CONTEXT", None)
    if getattr(trio, "runner", None) is not None:
        raise RuntimeError(
            "mcp.acall() works on asyncio, not under Trio: use `await trio.to_thread.run_sync(lambda: mcp.call(...))`"
        )
    events = sys.modules.get("asyncio.events")
    loop = events._get_running_loop() if events is not None else None
    if loop is None:
        raise RuntimeError(
            "mcp.acall() needs a running asyncio loop: `await mcp.acall(...)`; without one, use mcp.call"
        )
    return loop


def _open_now() -> set[int]:
    """The signals whose handlers may raise in this thread."""
    if "signal" not in sys.modules or _thread.get_ident() != interrupts.thread:
        return set()
    return set(_CLOSED - _signal.pthread_sigmask(_signal.SIG_BLOCK, ()))
