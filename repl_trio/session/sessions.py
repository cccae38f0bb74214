"""All sessions of one server: the default one and those a client opened."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ..errors import (
    InterpreterBroken,
    LimitReached,
    ProjectNotFound,
    ReplError,
    SessionClosing,
    UnknownSession,
    WorkerStartFailed,
)
from ..process.launch import Root
from ..process.named import named
from ..process.root import RootWatch, open_root
from ..process.start import WorkerStart
from ..settings import Settings
from ..values import CallTool
from .lifetime import open_generation
from .session import Session, Surroundings


class Sessions:
    """The open sessions, by id. Ids carry a random token of this server, so that an id of an earlier server names
    nothing here instead of another namespace."""

    def __init__(self, nursery: trio.Nursery, watch: RootWatch, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._token = os.urandom(3).hex()
        self._named = {"r": 0, "a": 0}
        self._opened = 0
        self._surroundings = Surroundings(nursery, watch, settings.limits, settings.environment, self._next_id)
        self._sessions: dict[str, Session] = {}
        self._probing = 0  # sessions on their way
        self._closing: list[Session] = []  # forgotten, but not over
        self.default = self._new_default()

    @property
    def watch(self) -> RootWatch:
        """The root guardian, below which others start processes as well."""
        return self._surroundings.watch

    @property
    def all(self) -> tuple[Session, ...]:
        """The open sessions, oldest first."""
        return tuple(self._sessions.values())

    @property
    def closing(self) -> tuple[Session, ...]:
        """The sessions that no call reaches any more and that have not ended yet."""
        return tuple(session for session in self._closing if not session.over)

    def get(self, session_id: str | None) -> Session:
        """An open session, the default one without an id. Raises `UnknownSession`."""
        if session_id is None:
            return self.default
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession(
                f"There is no open session {session_id[:80]!r}. python_session_list names the open ones; ids do not "
                "survive a restart of the server."
            )
        return session

    async def open(
        self, name: str | None, project: str | None, python: str | None, memory_mib: int | None = None
    ) -> Session:
        """Open a session, its interpreter probed by starting a worker with it and ending that again.

        Raises `LimitReached`, `ProjectNotFound` or `InterpreterBroken`; no session was opened then.
        """
        if self._surroundings.shutting_down:
            raise SessionClosing("The server is going away; no session was opened.")
        taken = len(self._sessions) + self._probing
        if taken >= self._limits.sessions:
            raise LimitReached(
                f"{taken} sessions are open and the limit `sessions` is {self._limits.sessions}. "
                "Close one with python_session_close."
            )
        session = self._new(name, self._directory(project), python or self._settings.python)
        session.memory_mib = self._settings.memory_mib if memory_mib is None else memory_mib
        self._probing += 1
        try:
            await self._probe(session)
        finally:
            self._probing -= 1
        if self._surroundings.shutting_down:
            raise SessionClosing("The server is going away; no session was opened.")
        # Only now can others see it: a session whose probe fails never was.
        self._sessions[session.id] = session
        return session

    def forget(self, session: Session) -> None:
        """Take a session out, so that no further call reaches it; `close` then ends it. A default one is replaced."""
        if self._sessions.pop(session.id, None) is not None:
            self._closing.append(session)
        session.closing = True
        if session is self.default:
            self.default = self._new_default()

    async def close(self, session: Session) -> None:
        """Stop a session's run and worker and forget it. The default session is followed by a new, empty one."""
        if session.id in self._sessions:
            self.forget(session)
        await session.close("its session was closed")
        self._closing = list(self.closing)

    async def shutdown(self, why: str = "the server is shutting down") -> None:
        """Cancel all runs and stop all workers, in parallel, on the short ladder. `why` is told to who waits."""
        self._surroundings.shutting_down = True
        async with trio.open_nursery() as nursery:
            for session in self.all:
                nursery.start_soon(session.close, why, name=named(f"closes session {session.id}"))

    def reach(self, peers: CallTool) -> None:
        """From here on, `peers` answers what cells ask of the servers of their projects."""
        self._surroundings.peers = peers

    def adopt(self, start: WorkerStart) -> None:
        """Give the default session a worker that was started ahead of the runtime."""
        self.default.head_start = start

    def _new(self, name: str | None, project: str, python: str | None) -> Session:
        self._opened += 1
        session_id = f"s{self._opened}-{self._token}"
        return Session(session_id, name or session_id, project, python, self._surroundings)

    def _new_default(self) -> Session:
        session = self._new("default", self._settings.project, self._settings.python)
        session.memory_mib = self._settings.memory_mib
        self._sessions[session.id] = session
        return session

    def _directory(self, project: str | None) -> str:
        if project is None:
            return self._settings.project
        if "\0" in project:
            raise ProjectNotFound("A path has no NUL characters. No session was opened.")
        path = os.path.realpath(os.path.join(self._settings.project, os.path.expanduser(project)))
        if not os.path.isdir(path) or not os.access(path, os.R_OK | os.X_OK):
            raise ProjectNotFound(f"{project[:500]} is no directory that can be entered. No session was opened.")
        return path

    async def _probe(self, session: Session) -> None:
        interpreter = session.choose_interpreter()
        try:
            start = self._surroundings.start_worker(interpreter.path, session.project)
        except OSError as error:
            raise WorkerStartFailed(f"No process could be started ({error}). No session was opened.") from None
        problem: ReplError | None = None
        version = None
        with trio.move_on_after(self._limits.probe_bound) as scope:
            async with open_generation(0, start, self._surroundings.watch, self._limits) as probe:
                problem, version = probe.problem, probe.python_version
        if problem is not None or scope.cancelled_caught:
            why = problem.message if problem else f"{interpreter.path}: no answer in {self._limits.probe_bound:g} s."
            raise InterpreterBroken(f"{why} No session was opened.")
        session.python_version = version

    def _next_id(self, letter: str) -> str:
        self._named[letter] += 1
        return f"{letter}{self._named[letter]}-{self._token}"


@asynccontextmanager
async def open_sessions(settings: Settings, root: Root | None = None) -> AsyncIterator[Sessions]:
    """Own all sessions and the root guardian: inside the context they live, after it no worker is left.

    `root` is one that may have been started before. Leaving shuts the sessions down within `shutdown_bound`; what is
    not gone by then is cancelled, and ended by its guardians.
    """
    async with open_root(root or Root(), settings.limits) as watch, trio.open_nursery() as nursery:
        sessions = Sessions(nursery, watch, settings)
        try:
            yield sessions
        finally:
            with trio.move_on_after(settings.limits.shutdown_bound, shield=True):
                await sessions.shutdown()
            nursery.cancel_scope.cancel()
