"""The conversation on a terminal: prompt, cell, prompt.

```
nursery
|- signals        SIGINT interrupts the running cell, SIGTERM and SIGHUP end the conversation
|- broken         so does a terminal that is gone
`- conversation   at any time either the prompt's thread or the streams write to the terminal
```
"""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator

import trio

from .. import __version__
from ..broker.reach import open_reach
from ..errors import ReplError
from ..process.named import named
from ..process.stdio import Outputs
from ..session.run import Run
from ..session.sessions import Sessions, open_sessions
from ..settings import Settings
from ..values import Cell
from .commands import Commands
from .conclusion import of_cell
from .streams import Streams, open_streams
from .terminal import Terminal

_FAREWELLS = ("exit()", "quit()")  # in a cell they would end nothing: what they raise is its outcome


def converse(settings: Settings) -> None:
    """Talk until Ctrl-D, `:quit`, `exit()`, SIGTERM, SIGHUP or the end of the terminal. No worker is left then."""
    terminal = Terminal(settings.environment.get("TERM"))
    outputs = Outputs()
    try:
        trio.run(_converse, settings, terminal, outputs)
    except KeyboardInterrupt:
        pass  # before the signals were received: nothing had been started
    finally:
        outputs.release()
        terminal.restore()


async def _converse(settings: Settings, terminal: Terminal, outputs: Outputs) -> None:
    trio.lowlevel.current_task().name = named("talks")
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
        async with (
            open_streams(outputs) as streams,
            open_sessions(settings) as sessions,
            open_reach(settings, sessions.watch) as reach,
        ):
            sessions.reach(reach)
            talk = _Conversation(settings, sessions, streams, terminal)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(talk.on_signal, received, nursery.cancel_scope, name=named("hears signals"))
                nursery.start_soon(
                    talk.on_broken, streams, nursery.cancel_scope, name=named("hears of a lost terminal")
                )
                await talk.hold()
                nursery.cancel_scope.cancel()


class _Conversation:
    """One user at one terminal, over the default session."""

    def __init__(self, settings: Settings, sessions: Sessions, streams: Streams, terminal: Terminal) -> None:
        self._limits = settings.limits
        self._sessions = sessions
        self._streams = streams
        self._terminal = terminal
        self._commands = Commands(sessions)
        self._run: Run | None = None
        sessions.default.tap = streams

    async def hold(self) -> None:
        """Talk until the user leaves."""
        greeting = f"repl-trio {__version__} console in {self._sessions.default.project}. :help lists the commands."
        self._streams.say("stdout", greeting)
        while not self._commands.quit:
            await self._streams.drained()
            text = await self._terminal.read()
            if text is None:
                return
            await self._take(text)

    async def _take(self, text: str) -> None:
        if text.startswith(":"):
            said = await self._commands.run(text)
            if said:
                self._streams.say("stdout", said)
        elif text.strip() in _FAREWELLS:
            await self._commands.run(":quit")
        elif text.strip():
            try:
                await self._run_cell(text)
            except ReplError as error:
                self._streams.say("stderr", error.message)

    async def _run_cell(self, code: str) -> None:
        # No time limit: whoever sits here can press Ctrl-C.
        self._run = run = await self._sessions.default.start(Cell(code, math.inf))
        await run.answered.wait()
        assert run.result is not None
        for stream, text in of_cell(run.result).lines:
            self._streams.say(stream, text)
        self._streams.end_line()

    async def on_signal(self, received: AsyncIterator[int], scope: trio.CancelScope) -> None:
        """SIGINT interrupts the running cell, the others end the conversation. Runs until cancelled."""
        async for number in received:
            if number == signal.SIGINT:
                if self._run is not None:
                    self._run.cancel("Ctrl-C")
            else:
                self._leave(scope)

    async def on_broken(self, streams: Streams, scope: trio.CancelScope) -> None:
        """End a conversation whose terminal is gone."""
        await streams.broken.wait()
        self._leave(scope)

    def _leave(self, scope: trio.CancelScope) -> None:
        self._terminal.leave()
        busy = self._run is not None and not self._run.finished
        # An idle prompt gets a moment to put the terminal in order; a run is ended with its session.
        scope.deadline = trio.current_time() + (0.0 if busy else self._limits.eof_drain)
