"""From a checked call to its reply: what each tool does."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypedDict

import trio

from .. import __version__
from ..broker.reach import Reach
from ..errors import ReplError, SessionRequired, UnknownRun
from ..process.named import named
from ..session import containment, standing
from ..session.run import Run
from ..session.session import Session
from ..session.sessions import Sessions
from ..settings import Settings
from ..values import Cell
from ..wire.jsonrpc import Params
from ..wire.mcp import Call, Connection
from . import artifacts, content, peers
from .arguments import BadArguments
from .content import Reply
from .described import describe, describe_run, line_of, quietness
from .detail import Detail
from .request import Request
from .sizes import FRAMEWORK, cost, within

#: Tools whose refusals look like a run's result, because that is what their callers read.
_RUN_TOOLS = ("execute_python", "python_start", "python_run")
_BEGINNING_TOOLS = ("execute_python", "python_start")


class Dispatch:
    """The tools over the session layer. `send` puts a line on the wire without waiting (progress notifications)."""

    def __init__(
        self,
        sessions: Sessions,
        reach: Reach,
        settings: Settings,
        connection: Connection,
        send: Callable[[bytes], None],
        detail: Detail,
    ) -> None:
        self._sessions = sessions
        self._reach = reach
        self._settings = settings
        self._limits = settings.limits
        self._connection = connection
        self._send = send
        self._detail = detail
        self._opened = trio.current_time()
        # Answered in the step that read the call, because no waiting is needed: a cell behind a cancel finds it done.
        self._at_once: dict[str, Callable[[Call], Reply]] = {
            "python_cancel": self._cancel,
            "python_health": self._health,
            "python_session_list": self._list,
            "artifact_list": partial(artifacts.listed, sessions, settings.limits),
            "artifact_read": partial(artifacts.read, sessions, settings.limits),
        }
        self._tools: dict[str, Callable[[Call], Awaitable[Reply]]] = {
            "python_session_open": self._open,
            "python_session_inspect": self._inspect,
        }

    def answers_at_once(self, call: Call) -> bool:
        """Whether a call needs no place among the requests in flight: health answers whatever else is going on."""
        return call.tool in self._at_once

    def begin(self, request: Request) -> Reply | None:
        """Do what a request asks for as far as it goes without waiting; a reply is its answer.

        Cells begin, runs are cancelled and sessions close in the order in which they were asked for, and a warm cell
        loses no scheduler step. None: the rest is `reply`'s. Raises `BadArguments`, with nothing done.
        """
        call = request.call
        try:
            if call.tool in self._at_once:
                return self._at_once[call.tool](call)
            if call.tool == "python_run":
                request.session, request.run = self._find_run(call)
            elif call.tool == "python_session_close":
                request.session = self._session(call)
                self._sessions.forget(request.session)
            elif call.tool in _BEGINNING_TOOLS:
                session = self._session_of_run(call)
                if not session.clearing:
                    request.run = session.begin(self._cell(call), **_conditions(call))
        except ReplError as error:
            return self._refusal(call, error)
        return None

    async def reply(self, request: Request) -> Reply:
        """Carry out a call. Raises `BadArguments`, with nothing done; refusals are replies with `error_code`.

        Cancelled: an `execute_python` cancels its run; every other call leaves things as they are.
        """
        call = request.call
        try:
            if call.tool in _BEGINNING_TOOLS:
                return await self._run_cell(request)
            if request.session is not None and request.run is not None:
                return await self._run(call, request.session, request.run)
            if request.session is not None:
                return await self._close(request.session)
            return await self._tools[call.tool](call)
        except ReplError as error:
            return self._refusal(call, error)

    async def _run_cell(self, request: Request) -> Reply:
        call = request.call
        try:
            if request.run is None:
                session = self._session_of_run(call)
                request.run = await session.start(self._cell(call), **_conditions(call))
            if call.tool == "execute_python":
                await self._wait_for(request.run, _seconds(call.arguments.get("wait")), call)
        except BaseException:  # only to undo: a cancel arrives bare or in a group, by where it strikes
            request.cancel()
            raise
        # Also what was refused before it began (a cell over the frame limit) is told at once.
        return self.finished(request) if request.run.finished else self._started(request.run)

    def _refusal(self, call: Call, error: ReplError) -> Reply:
        session_id = call.arguments.get("session_id")
        named = session_id if isinstance(session_id, str) else None
        return content.refusal(error, named, run_shaped=call.tool in _RUN_TOOLS)

    # -- runs --------------------------------------------------------------------------------------------------

    def finished(self, request: Request) -> Reply:
        """The reply for a request whose run has ended."""
        assert request.run is not None
        return content.finished(request.run, self._limits)

    def _started(self, run: Run) -> Reply:
        return content.started(run, _generation(self._sessions.get(run.session_id), run))

    def _session_of_run(self, call: Call) -> Session:
        if call.modern and call.arguments.get("session_id") is None:
            raise SessionRequired(
                f"{call.tool} needs a session_id in protocol 2026-07-28; take it from python_health. Nothing was run."
            )
        return self._session(call)

    def _cell(self, call: Call) -> Cell:
        code, timeout = call.arguments["code"], _seconds(call.arguments.get("timeout"))
        assert isinstance(code, str)
        return Cell(code, self._limits.timeout_default if timeout is None else timeout)

    async def _run(self, call: Call, session: Session, run: Run) -> Reply:
        after = call.arguments.get("after")
        if isinstance(after, str) and not content.check_cursor(after):
            raise BadArguments("/params/arguments/after", "is no cursor; take it from `next` of an earlier reply")
        cursor = after if isinstance(after, str) else None
        await self._wait_for(run, _seconds(call.arguments.get("wait")) or 0.0, call)
        if run.finished:
            return content.finished(run, self._limits, cursor)
        return content.progress(run, _generation(session, run), cursor, self._limits)

    def _cancel(self, call: Call) -> Reply:
        session = self._session(call)
        run = session.active
        if call.arguments.get("run_id") is not None:
            session, run = self._find_run(call)
        if run is None or run.finished:
            which = f"Run {run.id} is finished" if run is not None else "Nothing is running"
            structured: Params = {"cancel_requested": False, "session_id": session.id}
            if run is not None:
                structured |= {"run_id": run.id, "status": run.status}
            return Reply(f"{which} in session {session.id}; nothing was cancelled.", structured)
        run.cancel("python_cancel")
        structured = {"cancel_requested": True, "run_id": run.id, "session_id": session.id, "status": run.status}
        return Reply(f"Cancel of run {run.id} requested; python_run tells how it ends.", structured)

    def _find_run(self, call: Call) -> tuple[Session, Run]:
        """The run a call names; a run id alone is enough, in whichever session it is."""
        run_id = call.arguments.get("run_id")
        if isinstance(run_id, str) and call.arguments.get("session_id") is None:
            for session in self._sessions.all:
                if any(run.id == run_id for run in session.runs):
                    return session, session.run(run_id)
            raise UnknownRun(f"No open session has a run {run_id[:80]!r}; each keeps its newest results only.")
        session = self._session(call)
        return session, session.run(run_id if isinstance(run_id, str) else None)

    async def _wait_for(self, run: Run, wait: float | None, call: Call) -> None:
        """Wait until `run` is answered, at most `wait` seconds (None: without end). Tells progress if it is wanted."""
        if call.progress_token is not None and not run.answered.is_set() and wait != 0:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell_progress, run, call, name=named(f"tells progress of run {run.id}"))
                await _answered(run, wait)
                nursery.cancel_scope.cancel()
        else:
            await _answered(run, wait)

    async def _tell_progress(self, run: Run, call: Call) -> None:
        while True:
            line = run.last_line()[: self._limits.progress_line]
            elapsed = trio.current_time() - run.accepted
            message = f"{elapsed:.0f} s{': ' + line if line else ''}"
            self._send(self._connection.encode_progress(call, round(elapsed, 3), message))
            await trio.sleep(self._limits.progress_interval)

    # -- sessions ----------------------------------------------------------------------------------------------

    def _session(self, call: Call) -> Session:
        session_id = call.arguments.get("session_id")
        return self._sessions.get(session_id if isinstance(session_id, str) else None)

    async def _open(self, call: Call) -> Reply:
        given = {key: value for key, value in call.arguments.items() if isinstance(value, str)}
        if (name := given.get("name")) is not None and not name.strip():
            raise BadArguments("/params/arguments/name", "must not be empty")
        memory = call.arguments.get("max_memory_mib")
        session = await self._sessions.open(
            name, given.get("project"), given.get("python"), int(memory) if isinstance(memory, int | float) else None
        )
        described = self._describe(session)
        text = (
            f"Session {session.id} ({session.name}) is open in {session.project} with Python "
            f"{session.python_version} ({described['python']})."
        )
        return Reply(text, described)

    def _list(self, call: Call) -> Reply:
        described, lines = self._described()
        return Reply("\n".join(lines), {"sessions": described})

    async def _inspect(self, call: Call) -> Reply:
        session = self._session(call)
        described = self._describe(session)
        described["runs"] = [describe_run(run) for run in session.runs]
        lines = [line_of(described), f"{len(session.runs)} retained run(s)"]
        if call.arguments.get("include_namespace") is True:
            lines += self._show_names(await session.names(), described)
        return Reply("\n".join(lines), described)

    def _show_names(self, found: tuple[list[tuple[str, str]], int] | None, described: Params) -> list[str]:
        """Put names into `described` as far as a result holds them, the newest first to stay; a line for each."""
        if found is None:
            return ["the namespace cannot be read now: the worker is busy in code that holds its interpreter"]
        names, total = found
        newest: list[Params] = [{"name": name, "type": kind} for name, kind in reversed(names)]
        shown = within(newest, self._limits.result_bytes // 4)[::-1]
        described |= {"namespace": shown, "namespace_total": total}
        lines = [f"{entry['name']}: {entry['type']}" for entry in shown] or ["the namespace is empty"]
        return lines + ([f"and {total - len(shown)} older names"] if total > len(shown) else [])

    async def _close(self, session: Session) -> Reply:
        # Whoever asked may go away: a session that is half closed helps nobody.
        with trio.move_on_after(self._limits.close_bound, shield=True):
            await self._sessions.close(session)
        return Reply(f"Session {session.id} is closed.", {"closed": True, "session_id": session.id})

    # -- health ------------------------------------------------------------------------------------------------

    def _health(self, call: Call) -> Reply:
        detail = call.arguments.get("detail") is True
        sessions, lines = self._described(detail=detail)
        limits = self._limits
        broker = peers.described(self._reach, self._projects(), limits)
        contained, faults = self._containment()
        lines += [f"containment: {fault}" for fault in faults]
        structured: Params = {
            "server": {
                "name": "repl-trio",
                "version": __version__,
                "pid": os.getpid(),
                "python": f"{sys.version.split()[0]} ({sys.executable})",
                "uptime_s": round(trio.current_time() - self._opened, 3),
                "protocol": self._connection.version,
                "client": self._connection.client,
            },
            "sessions": sessions,
            "limits": {name: getattr(limits, name) for name in limits.names()},
            "broker": broker,
            "containment": contained,
            "execution": "trusted-local: cells run with the user's own rights, crash isolation, no sandbox",
        }
        head = f"repl-trio {__version__}, pid {os.getpid()}, healthy. {len(self._sessions.all)} session(s):"
        lines = [head, *lines, *peers.lines(broker)]
        if detail:
            report, more = self._detail.report(limits.result_bytes - FRAMEWORK - cost([structured, *lines]))
            structured |= report
            lines += more
        return Reply("\n".join(lines), structured)

    def _projects(self) -> list[str]:
        """The projects of the open sessions, the server's own first."""
        return list(dict.fromkeys([self._settings.project, *(session.project for session in self._sessions.all)]))

    def _containment(self) -> tuple[Params, list[str]]:
        """The level in force, and what the system withholds from guardians."""
        guards = [session.generation.guard for session in self._sessions.all if session.generation is not None]
        level = containment.level(subreaper=all(guard.subreaper for guard in guards) if guards else None)
        known: Params = {"level": level, "details": containment.details(level)}
        faults = sorted({fault for guard in guards for fault in guard.faults})
        return (known | {"faults": faults} if faults else known), faults

    def _described(self, *, detail: bool = False) -> tuple[list[Params], list[str]]:
        """The open sessions as far as a result holds them, and a line for each.

        In `detail` also those that are being closed, and those first that wait for something if not all of them fit.
        """
        sessions = [*self._sessions.all, *(self._sessions.closing if detail else ())]
        everything = [
            self._describe(session) | ({"detail": standing.of_session(session)} if detail else {})
            for session in sessions
        ]
        room = self._limits.result_bytes * (9 if detail else 8) // 20
        shown = within(everything, room)
        if detail and len(shown) < len(everything):
            shown = within(sorted(everything, key=quietness), room)
        lines = list(map(line_of, shown))
        if len(shown) < len(everything):
            lines.append(f"and {len(everything) - len(shown)} more sessions, whose long paths do not fit")
        return shown, lines

    def _describe(self, session: Session) -> Params:
        return describe(session, default=session is self._sessions.default)


async def _answered(run: Run, wait: float | None) -> None:
    if wait is None:
        await run.answered.wait()
    elif wait > 0:
        with trio.move_on_after(wait):
            await run.answered.wait()


def _generation(session: Session, run: Run) -> int:
    """The generation a run is in, or will be in while its worker starts."""
    return run.generation or session.generations + (not session.alive)


class _Conditions(TypedDict):
    reset: bool
    expected_generation: int | None


def _conditions(call: Call) -> _Conditions:
    """Under which conditions a call wants its cell to run."""
    expected = call.arguments.get("expected_generation")
    return {
        "reset": call.arguments.get("reset") is True,
        "expected_generation": int(expected) if isinstance(expected, int | float) else None,
    }


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
