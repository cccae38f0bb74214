"""The runtime of `serve`: the composition root, and the one tree of nurseries under it.

```
root nursery                  deadline set at the first reason to end
|- signals
|- writer                     one owner of the client's pipe
|- reader                     one task and cancel scope per request
|- sessions (open_sessions)   generations and runs
`- reach (open_reach)         peers, from their first use on
```
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from ..broker.reach import Reach, open_reach
from ..errors import ReplError
from ..limits import Limits
from ..process import cookie
from ..process.launch import Root
from ..process.named import named
from ..process.pipes import BrokenPipe, PipeReader, PipeWriter
from ..process.start import WorkerStart
from ..session.sessions import Sessions, open_sessions
from ..settings import Settings
from ..wire import jsonrpc
from ..wire.framing import Oversized
from ..wire.mcp import Answer, Call, Cancel
from .arguments import BadArguments, check
from .asking import Asking
from .content import Reply
from .detail import Detail
from .dispatch import Dispatch
from .ending import BUG, CLOSED_STDIN, READS_NO_MORE, Ending, write_now
from .opening import Handover, Link
from .request import Request
from .tools import tools

_log = logging.getLogger("repl_trio.server")


class Server:
    """One client's requests, each a task with a cancel scope of its own (an `execute_python`'s is its run's).

    `leaving` is set by whatever ends the server (EOF, a signal, a broken pipe, a bug); `drain` tells how long requests
    that are already here may still take.
    """

    def __init__(
        self,
        link: Link,
        writer: PipeWriter,
        sessions: Sessions,
        reach: Reach,
        settings: Settings,
        ending: Ending,
    ) -> None:
        self.leaving = trio.Event()
        self.draining = trio.CancelScope()
        self.why = ""  # told to who waits for a run
        self._connection = link.connection
        self._decoder = link.decoder
        self._writer = writer
        self._ending = ending
        self._reads = True  # the client takes its answers, as far as is known
        self._limits = settings.limits
        self._tools = {str(tool["name"]): tool for tool in tools(settings.limits)}
        self._requests: dict[jsonrpc.RequestId, Request] = {}
        # What peers want to know comes through here to the client.
        self._asking = reach.client = Asking(link.connection, writer, self._send, settings.limits)
        detail = Detail(sessions, self._requests, writer, settings.limits, self._asking)
        self._dispatch = Dispatch(sessions, reach, settings, link.connection, self._send, detail)
        self._idle = trio.Event()

    def leave(self, drain: float, why: str, told: str = "") -> None:
        """Begin the end: requests that are here have `drain` more seconds. A later, harder reason cuts that short.

        `told`: what the runs are told, if it is not `why`.
        """
        self._ending.begin(why)
        self.draining.deadline = min(self.draining.deadline, trio.current_time() + drain)
        self.why = self.why or told or why
        self.leaving.set()

    async def keep(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a task of the root. If it fails, the one end that there is begins, and nothing is torn down."""
        try:
            await task(*arguments)
        except trio.Cancelled:
            raise
        except BaseException as error:  # memory, recursion, an interrupt: each must end in order
            bugs = error.split(trio.Cancelled)[1] if isinstance(error, BaseExceptionGroup) else error
            if bugs is None:
                raise
            self._ending.fail(bugs)
            self.leave(0.0, BUG)

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
        lines: deque[bytes | Oversized] = deque()
        try:
            while chunk := await reader.receive():
                lines += self._decoder.feed(chunk)
                while lines:
                    await self._let_client_read()
                    self._line(lines.popleft(), nursery)
        except trio.Cancelled:
            # The end came by a signal: what the client has written before it saw that is answered as well.
            for chunk in reader.drain():
                lines += self._decoder.feed(chunk)
            for line in lines:
                self._line(line, nursery)
            raise
        for line in self._decoder.finish():
            self._line(line, nursery)
        told = f"{CLOSED_STDIN}; a longer `eof_drain` waits for what still runs"
        self.leave(self._limits.eof_drain, CLOSED_STDIN, told)

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
        elif isinstance(step, jsonrpc.Response):
            self._asking.take(step)
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
            name = named(f"answers request {request.name} {call.tool}")
            nursery.start_soon(self.keep, self._answer, request, name=name)
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
            if line is None and not request.cancelled:
                what = f"the server ends ({self.why or BUG}); what this {request.call.tool} call did is not known"
                line = jsonrpc.encode_error(request.call.id, jsonrpc.INTERNAL_ERROR, what)
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
            self.leave(0.0, READS_NO_MORE)


def run(settings: Settings, link: Link, root: Root, start: WorkerStart | None, ending: Ending) -> None:
    """Run the server until there is a reason to end, and end it. Raises what has failed outside its tasks."""
    _configure_logging(settings)
    trio.run(_serve, settings, link, root, start, ending, strict_exception_groups=True)


async def _serve(settings: Settings, link: Link, root: Root, start: WorkerStart | None, ending: Ending) -> None:
    trio.lowlevel.current_task().name = named("serves")
    reader = PipeReader(link.pipes.receive_fd)
    writer = PipeWriter(link.pipes.send_fd, unread=settings.limits.unread_bytes)
    async with trio.open_nursery() as tasks:
        try:
            async with open_sessions(settings, root) as sessions, open_reach(settings, sessions.watch) as reach:
                sessions.reach(reach)
                if start is not None:
                    sessions.adopt(start)
                server = Server(link, writer, sessions, reach, settings, ending)
                ending.left = partial(_left, sessions)
                keep = server.keep
                tasks.start_soon(keep, writer.run, name=named("writes to the client"))
                tasks.start_soon(keep, _leave_on_signal, server, ending, name=named("hears signals"))
                tasks.start_soon(keep, _leave_on_broken_pipe, writer, server, name=named("hears of a broken pipe"))
                tasks.start_soon(keep, writer.deserted, name=named("watches whether the client reads"))
                async with trio.open_nursery() as requests:
                    requests.start_soon(keep, _sweep, settings.limits, reach, name=named("sweeps after killed servers"))
                    requests.start_soon(
                        keep, server.receive, reader, link.handover, requests, name=named("reads requests")
                    )
                    await _until_leaving(server, ending)
                    tasks.cancel_scope.deadline = trio.current_time() + ending.until(0.9)
                    await _drain(server)
                    ending.take_stock()
                    # Cancels the runs, which answers their requests; then the workers go, and the peers beside them.
                    requests.start_soon(keep, reach.shutdown, name=named("ends the peers"))
                    await sessions.shutdown(server.why)
                    # What waits for something else, a session that is being opened, is not waited for.
                    with trio.move_on_after(settings.limits.eof_drain):
                        await server.idle()
                    await reach.shutdown()
                    requests.cancel_scope.cancel()
        finally:
            ending.overdue = trio.current_time() >= tasks.cancel_scope.deadline
            # The client may take its last answers, for a moment, also when everything else has been cancelled.
            with trio.move_on_after(min(settings.limits.eof_drain, ending.until(0.95)), shield=True):
                await writer.flushed()
            ending.unread = writer.unread
            tasks.cancel_scope.cancel()


async def _until_leaving(server: Server, ending: Ending) -> None:
    try:
        await server.leaving.wait()
    finally:
        # Cancelled here, something around the sessions has failed: from now on the bound holds as well.
        ending.begin(BUG)


def _left(sessions: Sessions) -> tuple[int, int]:
    """How many runs are not finished and how many workers are not gone."""
    known = (*sessions.all, *sessions.closing)
    runs = sum(session.active is not None and not session.active.finished for session in known)
    return runs, sum(session.generation is not None and not session.generation.over.is_set() for session in known)


async def _sweep(limits: Limits, reach: Reach) -> None:
    """End what servers that were killed with all their guardians have left behind. Not beside the first cell.

    After that, load what health needs to know of the peers.
    """
    await trio.sleep(limits.sweep_delay)
    try:
        killed = await trio.to_thread.run_sync(cookie.sweep, abandon_on_cancel=True)
    except (OSError, RuntimeError) as error:
        # No descriptor or no thread left: no reason to end a server that works.
        _log.warning("could not look for what servers that are gone have left behind: %s", error)
        killed = 0
    if killed:
        _log.warning("killed %d processes that a server which is gone had left behind", killed)
    await reach.prepare()


async def _drain(server: Server) -> None:
    """Requests that were read before the end may still be answered, for a moment."""
    with server.draining:
        await server.idle()


async def _leave_on_signal(server: Server, ending: Ending) -> None:
    """The first one, which may have come while the runtime was being loaded. More change nothing."""
    await trio.lowlevel.wait_readable(ending.wake)
    _log.info("%s", ending.signal)
    server.leave(0.0, ending.signal, f"the server was told to end by {ending.signal}")


async def _leave_on_broken_pipe(writer: PipeWriter, server: Server) -> None:
    await writer.broken.wait()
    server.leave(0.0, READS_NO_MORE)


class _Stderr:
    """stderr as logging writes to it, without waiting for whoever reads it."""

    def write(self, text: str) -> None:
        write_now(text)

    def flush(self) -> None:
        """Nothing is held back."""


def _configure_logging(settings: Settings) -> None:
    """Logs go to stderr or the log file, never to stdout; a stderr that is closed, or that nobody reads, is no reason
    to fail or to wait."""
    target: logging.Handler
    target = logging.FileHandler(settings.log_file) if settings.log_file else logging.StreamHandler(_Stderr())
    target.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.raiseExceptions = False
    logger = logging.getLogger("repl_trio")
    logger.addHandler(target)
    logger.setLevel(settings.log_level.upper())
