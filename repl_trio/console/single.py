"""One run and nothing else: a file, or the cell on a stdin that is no terminal.

```
nursery
|- signals        SIGINT interrupts the run; SIGTERM, SIGHUP and a second SIGINT end everything
|- broken         a stdout or stderr that takes nothing any more does so, too
`- sessions       the run, then its worker's end
```
"""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Callable

import trio

from ..process.named import named
from ..process.stdio import Outputs
from ..session.generation import Generation
from ..session.run import Run
from ..session.sessions import Sessions, open_sessions
from ..settings import Settings
from ..values import Cell, ExecutionResult
from .conclusion import Conclusion, of_signal
from .streams import Streams, open_streams

Conclude = Callable[[ExecutionResult, Generation | None], Conclusion]


def run_single(settings: Settings, cell: Cell, conclude: Conclude) -> int:
    """Run `cell` in a fresh worker, its output on ours byte for byte, and return the exit status.

    128 + the signal's number when one stopped it, 141 when our stdout or stderr broke (what a SIGPIPE gives). Nothing
    of the worker is left in any case.
    """
    outputs = Outputs()
    try:
        return trio.run(_run_single, settings, cell, conclude, outputs)
    except KeyboardInterrupt:
        return of_signal(signal.SIGINT)  # before the signals were received, so nothing had been started
    finally:
        outputs.release()


async def _run_single(settings: Settings, cell: Cell, conclude: Conclude, outputs: Outputs) -> int:
    with trio.open_signal_receiver(*_signals()) as received:
        async with open_streams(outputs) as streams, trio.open_nursery() as nursery:
            async with open_sessions(settings) as sessions:
                sessions.default.tap = streams
                run = sessions.default.begin(cell)
                ending = _Ending(settings, sessions, run)
                nursery.start_soon(ending.on_signal, received, name=named("hears signals"))
                nursery.start_soon(ending.on_broken, streams, name=named("hears of a broken output"))
                await run.answered.wait()
                assert run.result is not None
                conclusion = conclude(run.result, sessions.default.generation)
                # Whoever took the output away wants no traceback of the interrupt that follows from it.
                for stream, text in conclusion.lines if not streams.broken.is_set() else ():
                    streams.say(stream, text)
            await ending.flush(streams)
            nursery.cancel_scope.cancel()
    return ending.status or conclusion.status


class _Ending:
    """What may end the run, or the wait for a slow reader of its output, early. `status` is 0 unless something did."""

    def __init__(self, settings: Settings, sessions: Sessions, run: Run) -> None:
        self.status = 0
        self._limits = settings.limits
        self._sessions = sessions
        self._run = run
        self._flushing = trio.CancelScope()

    async def on_signal(self, received: AsyncIterator[int]) -> None:
        """Take signals until cancelled."""
        async for number in received:
            again = self.status != 0
            self.status = self.status or of_signal(number)
            self._flushing.deadline = trio.current_time() + self._limits.eof_drain
            if self._run.finished:
                continue
            if number == signal.SIGINT and not again:
                self._run.cancel("Ctrl-C")
            else:
                await self._sessions.shutdown()

    async def on_broken(self, streams: Streams) -> None:
        """End a run whose output nobody takes."""
        await streams.broken.wait()
        self.status = self.status or of_signal(signal.SIGPIPE)
        if not self._run.finished:
            await self._sessions.shutdown()

    async def flush(self, streams: Streams) -> None:
        """Wait for whoever reads our output, `| less` for as long as it likes; after a signal for a moment only."""
        deadline = math.inf if not self.status else trio.current_time() + self._limits.eof_drain
        with self._flushing:
            self._flushing.deadline = deadline
            await streams.drained()


def _signals() -> list[signal.Signals]:
    # An ignored SIGHUP is `nohup`'s. An ignored SIGINT is a shell's `&` and no reason to be deaf to a kill -INT.
    wanted = [signal.SIGINT, signal.SIGTERM]
    return wanted if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [*wanted, signal.SIGHUP]
