"""The commands of the console: lines that begin with a colon."""

from __future__ import annotations

import difflib
import os
from collections.abc import Awaitable, Callable

import trio

from .. import __version__
from ..session import containment, standing
from ..session.run import Run
from ..session.session import Session
from ..session.sessions import Sessions
from ..session.tree import nodes

_CODE = 60  # characters of a cell's first line in `:runs`


class Commands:
    """What each command does to the default session. `quit` is set by `:quit`."""

    def __init__(self, sessions: Sessions) -> None:
        self.quit = False
        self._sessions = sessions
        self._started = trio.current_time()
        self._commands: dict[str, tuple[Callable[[], Awaitable[str]], str]] = {
            ":health": (self._health, "the session, its worker and what holds it"),
            ":runs": (self._runs, "the runs whose results are kept"),
            ":cancel": (self._cancel, "stop the active run (while a cell runs, that is Ctrl-C)"),
            ":reset": (self._reset, "end the worker now; the next cell starts a new one with an empty namespace"),
            ":tasks": (self._tasks, "what might be stuck: guardians, threads, and the nursery tree of this process"),
            ":quit": (self._quit, "leave, like Ctrl-D and exit()"),
            ":help": (self._help, "this list"),
        }

    async def run(self, line: str) -> str:
        """Carry out a command and return what it has to say."""
        word = line.split()[0]
        command = self._commands.get(word)
        if command is not None and word == line.strip():
            return await command[0]()
        if command is not None:
            return f"{word} takes nothing behind it."
        near = difflib.get_close_matches(word, self._commands, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {' '.join(self._commands)}"
        return f"There is no command {word}; {hint}"

    async def _health(self) -> str:
        session = self._sessions.default
        generation = session.generation
        uptime = trio.current_time() - self._started
        lines = [
            f"repl-trio {__version__}, pid {os.getpid()}, up {uptime:.0f} s",
            f"session {session.id} in {session.project}, generation {session.generations}",
        ]
        if session.interpreter is not None:
            version = session.python_version or "version not known yet"
            lines.append(f"Python {version}: {session.interpreter.path} ({session.interpreter.source})")
        if generation is None or not session.alive:
            lines.append("worker: none; the next cell starts one")
        else:
            lines.append(f"worker: {generation.machine.state}, pid {generation.guard.child_pid}")
            level = containment.level(subreaper=generation.guard.subreaper)
            lines.append(f"containment: {level}: {containment.details(level)}")
            lines += [f"  {fault}" for fault in generation.guard.faults]
            below = await generation.guard.descendants()
            lines += [f"processes below the guardian: {', '.join(map(str, below))}"] if below else []
        return "\n".join(lines)

    async def _runs(self) -> str:
        runs = self._sessions.default.runs
        return "\n".join(map(_run_line, runs)) if runs else "Nothing has run yet."

    async def _cancel(self) -> str:
        active = self._sessions.default.active
        if active is None or active.finished:
            return "Nothing is running; Ctrl-C stops a cell while it runs."
        active.cancel(":cancel")
        await active.answered.wait()
        return f"Run {active.id} was cancelled."

    async def _reset(self) -> str:
        session: Session = self._sessions.default
        if session.generation is None or not session.alive:
            return "There is no worker; the next cell starts one with an empty namespace."
        await session.generation.stop()
        return "The worker has ended and the namespace is gone; the next cell starts a new one."

    async def _tasks(self) -> str:
        session = self._sessions.default
        words = standing.in_words(standing.of_session(session))
        lines = [f"session {session.id}: {words or 'no worker'}", *standing.lines(self._sessions.watch)]
        return "\n".join(lines + [node.line() for node in nodes()])

    async def _quit(self) -> str:
        self.quit = True
        return ""

    async def _help(self) -> str:
        lines = [f"{name:<8} {what}" for name, (_call, what) in self._commands.items()]
        keys = "Enter runs complete code, Alt-Enter any; an empty line ends a block; Ctrl-C stops a running cell."
        return "\n".join([*lines, keys])


def _run_line(run: Run) -> str:
    code = (run.cell.code or "").strip().partition("\n")
    shown = code[0][:_CODE] + ("..." if code[2] or len(code[0]) > _CODE else "")
    outcome = run.status
    if run.result is not None:
        outcome = "ok" if run.result.success else run.result.error_code or "failed"
    return f"{run.id} generation {run.generation} {outcome} {run.elapsed_ms / 1000:.3f} s  {shown}"
