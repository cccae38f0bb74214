"""The runtime of `serve`: the composition root, and the one tree of nurseries under it.

```
root nursery                  deadline set at the first signal or EOF
|- signals
|- writer                     one owner of the client's pipe
|- reader                     one task and cancel scope per request
`- sessions (open_sessions)   generations and runs
```
"""

from __future__ import annotations

import logging
import os
import signal
from functools import partial

import trio

from ..errors import ReplError
from ..limits import Limits
from ..process.pipes import BrokenPipe, PipeReader, PipeWriter
from ..process.start import WorkerStart
from ..session.sessions import Sessions, open_sessions
from ..settings import Settings
from ..wire import jsonrpc
from ..wire.framing import Oversized
from ..wire.mcp import Answer, Call, Cancel
from .arguments import BadArguments, check
from .content import Reply
from .dispatch import Dispatch
from .opening import Handover, Link
from .request import Request
from .tools import tools

_log = logging.getLogger("repl_trio.server")


class Server:
    """One client's requests, each a task with a cancel scope of its own (an `execute_python`'s is its run's).

    `leaving` is set by whatever ends the server (EOF, a signal, a broken pipe); `drain` tells how long requests that
    are already here may still take.
    """

    def __init__(self, link: Link, writer: PipeWriter, sessions: Sessions, settings: Settings) -> None:
        self.leaving = trio.Event()
        self.draining = trio.CancelScope()
        self.why = ""  # told to who waits for a run
        self._connection = link.connection
        self._decoder = link.decoder
        self._writer = writer
        self._reads = True  # the client takes its answers, as far as is known
        self._limits = settings.limits
        self._tools = {str(tool["name"]): tool for tool in tools(settings.limits)}
        self._dispatch = Dispatch(sessions, settings, link.connection, self._send)
        self._requests: dict[jsonrpc.RequestId, Request] = {}
        self._idle = trio.Event()

    def leave(self, drain: float, why: str) -> None:
        """Begin the end: requests that are here have `drain` more seconds. A later, harder reason cuts that short."""
        self.draining.deadline = min(self.draining.deadline, trio.current_time() + drain)
        self.why = self.why or why
        self.leaving.set()

    async def idle(self) -> None:
        """Wait until every request that is here has been answered."""
        while self._requests:
            self._idle = trio.Event()
            await self._idle.wait()

    async def receive(self, reader: PipeReader, handover: Handover, nursery: trio.Nursery) -> None:
        """Read requests until EOF, starting with what the opening exchange handed over."""
        if handover.call is not None:
            self._accept(handover.call, nursery)
        for line in handover.lines:
            self._line(line, nursery)
        while chunk := await reader.receive():
            for line in self._decoder.feed(chunk):
                await self._let_client_read()
                self._line(line, nursery)
        for line in self._decoder.finish():
            self._line(line, nursery)
        self.leave(self._limits.eof_drain, "the client closed stdin; a longer `eof_drain` waits for what still runs")

    async def _let_client_read(self) -> None:
        """Wait a moment for a client that has much to read.

        Answers to calls that came in one write are made faster than any client reads: a few images would be too much
        for the bound on unread bytes. One that does not read at all is waited for once: its end must not go unnoticed.
        """
        unread = self._writer.unread
        if not unread:
            self._reads = True
        elif unread > self._limits.answers_ahead and self._reads:
            with trio.move_on_after(self._limits.eof_drain) as scope:
                await self._writer.flushed()
            self._reads = not scope.cancelled_caught

    def _line(self, line: bytes | Oversized, nursery: trio.Nursery) -> None:
        step = self._connection.receive(line)
        if isinstance(step, Call):
            self._accept(step, nursery)
        elif isinstance(step, Answer):
            self._send(step.line)
        elif isinstance(step, Cancel) and step.id in self._requests:
            self._requests[step.id].cancel()

    def _accept(self, call: Call, nursery: trio.Nursery) -> None:
        """Check a call and start its task, or refuse it at once."""
        tool = self._tools.get(call.tool)
        if tool is None:
            known = ", ".join(self._tools)
            refused = f"/params/name: unknown tool {call.tool[:100]!r}; known: {known}"
            return self._send(jsonrpc.encode_error(call.id, jsonrpc.INVALID_PARAMS, refused))
        if call.id in self._requests:
            refused = "a request with this id is still in flight"
            return self._send(jsonrpc.encode_error(call.id, jsonrpc.INVALID_REQUEST, refused))
        if len(self._requests) >= self._limits.requests and not self._dispatch.answers_at_once(call):
            refused = f"{len(self._requests)} requests are in flight; the limit `requests` is {self._limits.requests}"
            return self._send(jsonrpc.encode_error(call.id, jsonrpc.INVALID_REQUEST, refused))
        try:
            check(tool, call.arguments)
        except BadArguments as error:
            return self._send(jsonrpc.encode_error(call.id, jsonrpc.INVALID_PARAMS, error.reason))
        request = Request(call)
        try:
            refusal = self._dispatch.begin(request)
        except BadArguments as error:
            return self._send(jsonrpc.encode_error(call.id, jsonrpc.INVALID_PARAMS, error.reason))
        except Exception:  # noqa: BLE001 - as in _line_for
            return self._send(self._bug(call))
        if refusal is not None:
            return self._send(self._encode(call, refusal))
        self._requests[call.id] = request
        if request.run is None or not request.rests_on_run:
            nursery.start_soon(self._answer, request)
        elif request.run.finished:
            self._settle(request)
        else:
            request.run.when_answered = partial(self._settle, request)
        return None

    def _settle(self, request: Request) -> None:
        """Answer a request whose run has ended, in the step that read the result: no task has to wake first."""
        try:
            line = self._encode(request.call, self._dispatch.finished(request))
        except Exception:  # noqa: BLE001 - as in _line_for
            line = self._bug(request.call)
        self._finish(request, None if request.cancelled else line)

    async def _answer(self, request: Request) -> None:
        """The task of one request: exactly one answer, or none when the client cancelled it."""
        line: bytes | None = None
        try:
            with request.scope:
                line = await self._line_for(request)
        finally:
            self._finish(request, line)

    def _finish(self, request: Request, line: bytes | None) -> None:
        del self._requests[request.call.id]
        if not self._requests:
            self._idle.set()
        if line is not None:
            self._send(line)

    async def _line_for(self, request: Request) -> bytes:
        call = request.call
        try:
            return self._encode(call, await self._dispatch.reply(request))
        except BadArguments as error:
            return jsonrpc.encode_error(call.id, jsonrpc.INVALID_PARAMS, error.reason)
        except ReplError as error:
            return jsonrpc.encode_error(call.id, jsonrpc.INTERNAL_ERROR, error.message)
        except Exception:  # noqa: BLE001 - the request boundary: a bug of ours must not take the other requests down
            return self._bug(call)

    def _bug(self, call: Call) -> bytes:
        _log.exception("bug in %s", call.tool)
        what = f"a bug in repl-trio stopped this {call.tool} call; what it changed is not known, python_health tells"
        return jsonrpc.encode_error(call.id, jsonrpc.INTERNAL_ERROR, what)

    def _encode(self, call: Call, reply: Reply) -> bytes:
        blocks: list[jsonrpc.Params] = [{"type": "text", "text": reply.text}, *reply.images]
        return self._connection.encode_tool_result(call, blocks, reply.structured, is_error=reply.is_error)

    def _send(self, line: bytes) -> None:
        try:
            self._writer.send_now(line)
        except BrokenPipe:
            self.leave(0.0, "the client's pipe broke")


def run(settings: Settings, link: Link, start: WorkerStart | None) -> int:
    """Run the server until its client leaves or a signal comes. Returns the exit status."""
    _configure_logging(settings)
    trio.run(_serve, settings, link, start, strict_exception_groups=True)
    return 0


async def _serve(settings: Settings, link: Link, start: WorkerStart | None) -> None:
    limits = settings.limits
    reader = PipeReader(link.pipes.receive_fd)
    writer = PipeWriter(link.pipes.send_fd, unread=limits.unread_bytes)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as root:
            root.start_soon(writer.run)
            async with open_sessions(settings) as sessions:
                if start is not None:
                    sessions.adopt(start)
                server = Server(link, writer, sessions, settings)
                async with trio.open_nursery() as requests:
                    root.start_soon(_leave_on_signal, signals, server)
                    root.start_soon(_leave_on_broken_pipe, writer, server)
                    requests.start_soon(server.receive, reader, link.handover, requests)
                    await server.leaving.wait()
                    _leave_by_force_after(limits.shutdown_bound)
                    root.cancel_scope.deadline = trio.current_time() + 0.9 * limits.shutdown_bound
                    await _drain(server)
                    # Cancels the runs, which answers their requests; then the workers go.
                    await sessions.shutdown(server.why)
                    await server.idle()
                    requests.cancel_scope.cancel()
            await _flush(writer, limits)
            root.cancel_scope.cancel()


async def _drain(server: Server) -> None:
    """Requests that were read before the end may still be answered, for a moment."""
    with server.draining:
        await server.idle()


def _leave_by_force_after(seconds: float) -> None:
    """Exit with 0 at the bound, whatever the loop does then. The end of this process closes every lifeline, and the
    guardians kill what is left."""
    signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, seconds)


async def _flush(writer: PipeWriter, limits: Limits) -> None:
    with trio.move_on_after(limits.eof_drain):
        await writer.flushed()


async def _leave_on_signal(signals: object, server: Server) -> None:
    async for number in signals:  # type: ignore[attr-defined]  # trio does not export the type
        _log.info("signal %s", number)
        server.leave(0.0, "the server was told to end by a signal")


async def _leave_on_broken_pipe(writer: PipeWriter, server: Server) -> None:
    await writer.broken.wait()
    server.leave(0.0, "the client's pipe broke")


def _configure_logging(settings: Settings) -> None:
    """Logs go to stderr or the log file, never to stdout; a stderr that is closed is no reason to fail."""
    target: logging.Handler = logging.FileHandler(settings.log_file) if settings.log_file else logging.StreamHandler()
    target.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.raiseExceptions = False
    logger = logging.getLogger("repl_trio")
    logger.addHandler(target)
    logger.setLevel(settings.log_level.upper())
