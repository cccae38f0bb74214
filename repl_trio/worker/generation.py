"""One generation: the namespace of `__main__` and the runs in it, one after the other."""

from __future__ import annotations

import _contextvars
import _thread
import builtins
import os
import sys
from time import monotonic

from ..limits import DEFAULT
from . import classes, gate, isolation, origin, source, threads, trio_run
from .arrivals import Arrivals
from .display import Display
from .history import History
from .hooks import ImportHooks
from .inspection import inspect
from .isolation import drop_orphans, isolated_import
from .namespace import Helpers
from .preview import one_line
from .result import NAMES, Result, is_exit
from .script import AsScript
from .streams import refuse_debugger, refuse_passwords
from .turn import Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Context
    from types import FrameType
    from typing import Any

    from .link import Link
    from .loop import CellLoop
    from .streams import Streams

#: The lowest recursion limit a cell can leave behind: the worker's own calls between cells need some.
RECURSION = 300
#: Rounds of cancelling a cell's asyncio tasks.
ROUNDS = 3
#: Seconds after a run in which an interrupt may still be meant for it: the time a signal may be on its way.
LATE = 1.0
_LOOP = "_repl_trio.worker.loop"


class Generation:
    """Owner of the namespace, of the loop and of what the next cell inherits from the last."""

    def __init__(self, link: Link, streams: Streams) -> None:
        self._link = link
        self._streams = streams
        module = type(sys)("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self._module = module
        self.namespace = module.__dict__
        self.history = History(DEFAULT.history_runs, DEFAULT.history_bytes)
        self._display = Display(link)
        self._turn = Turn(link)
        self._helpers = Helpers(self.history, self.namespace, self._display.front, self._turn)
        link.inspect = lambda number: inspect(number, self.namespace, self._helpers.names)
        self._hook_imports()
        self._context: Context = _contextvars.Context()
        self._arrivals = Arrivals()
        isolation.find_first(self._arrivals)
        self._future = 0
        self._loop: CellLoop | None = None
        self._ended = float("-inf")
        gate.interrupts.land = self._land
        gate.interrupts.announced = self._announced
        self._own_threads = frozenset((_thread.get_ident(), link.reader))

    def run(self, frame: Any) -> None:
        """Run one cell or file and send its result. In a child forked by the cell: end silently instead."""
        if self._loop is not None:
            self._loop.begin()
        gate.begin_run()
        self._link.begun += 1
        result = Result(frame["id"])
        self._display.begin(frame["id"])
        self._turn.begin(frame["id"], self._context)
        self._streams.unblock()
        for step in (self._perform, self._show_figures, self._retire, self._put_back):
            try:
                step(frame, result)
            except BaseException as error:  # noqa: BLE001 - a cell can break what the worker is made of; it shall be told so
                if os.getpid() != self._link.pid:
                    os._exit(1)
                result.clear(f"the worker cannot go on after this cell: {one_line(error)}")
        gate.end_run()
        self._ended = monotonic()
        self._link.send(result.frame())

    def close(self) -> None:
        """Orderly end of the loop: `finally` blocks of what is left on it run."""
        if self._loop is not None:
            try:
                self._loop.close(DEFAULT.task_grace)
            except Exception:  # noqa: BLE001 - a loop that a cell has broken; what else ends in order still shall
                gate.outcome_of(sys.excepthook, *sys.exc_info())

    def _perform(self, frame: Any, result: Result) -> None:
        if frame["path"] is not None:
            self._run_file(frame["path"], frame["argv"] or [], result)
        else:
            self._run_cell(frame["id"], frame["code"] or "", result)
        if os.getpid() != self._link.pid:
            self._streams.flush()
            os._exit(result.exit_status())

    def _run_cell(self, run_id: str, text: str, result: Result) -> None:
        self._helpers.inject(self.namespace)
        self.history.add(run_id, text)
        # "Once per location": line numbers of another cell are other places.
        self.namespace.pop("__warningregistry__", None)
        program, error = gate.outcome_of(source.compile_cell, text, origin.cell_file(run_id), self._future)
        if error is not None:
            result.fail(error)
            return
        self._future = program.flags
        if program.awaits:
            try:
                loop = self._cell_loop()
                loop.loop()
            except Exception as refused:  # noqa: BLE001 - without descriptors, or what asyncio is made of is broken
                result.fail(refused)
                return
            value, error, self._context = loop.run(program, self.namespace, self._context)
        else:
            value, error = gate.outcome_of(self._context.run, source.run_program, program, self.namespace)
        _restore_recursion()
        if error is not None:
            result.fail(error)
        elif value is not None and os.getpid() == self._link.pid:
            # In the context of the cells: numpy and decimal keep there how numbers are to look.
            self._context.run(result.show, value, self._display)
        # Its traceback holds this frame: a circle would keep all that the cell's frames hold alive.
        del error

    def _run_file(self, path: str, argv: list[str], result: Result) -> None:
        with AsScript(path, argv, self.namespace):
            program, error = gate.outcome_of(source.compile_file, path)
            if error is None:
                _value, error = gate.outcome_of(self._context.run, source.run_program, program, self.namespace)
            if is_exit(error):
                result.leave(error)
            elif error is not None:
                result.fail(error)
            _none, error = gate.outcome_of(threads.join)
            if error is not None:
                result.fail(error)

    def _show_figures(self, _frame: Any, result: Result) -> None:
        """The figures that are still open are shown at the end of a run, also of one that failed."""
        interrupt = self._context.run(self._display.close_figures)
        if interrupt is not None and result.error is None:
            result.fail(interrupt)

    def _announced(self) -> bool:
        """Whether an interrupt between runs is for the next: its frame waits, and the last run is long over.

        Soon after a run it could as well be a late one of that run, and must not hit the next.
        """
        return monotonic() - self._ended > LATE and self._link.frame_waits()

    def _land(self, frame: FrameType) -> None:
        """How an interrupt ends user code at this frame."""
        if _asyncio_loaded():
            loop = self._cell_loop()
            if loop.at_work():
                loop.interrupt(frame)
                return
        if not trio_run.deliver(frame):
            raise KeyboardInterrupt

    def _cell_loop(self) -> CellLoop:
        if self._loop is None:
            self._loop = isolated_import(_LOOP).CellLoop()
        return self._loop

    def _hook_imports(self) -> None:
        """What is done to modules when a cell imports them. Each action loads what it needs then."""
        backend = os.environ.get("MPLBACKEND")

        def adopt_matplotlib(module: Any) -> None:
            isolated_import("_repl_trio.worker.figures").adopt(self._display, backend)(module)

        def adopt_plotly(module: Any) -> None:
            isolated_import("_repl_trio.worker.plots").adopt_plotly(self._display)(module)

        def adopt_pil(module: Any) -> None:
            isolated_import("_repl_trio.worker.plots").adopt_pil(self._display)(module)

        ImportHooks(
            {
                "linecache": self.history.fill,
                "getpass": refuse_passwords,
                "pdb": refuse_debugger,
                "inspect": classes.adopt,
            },
            {"matplotlib": adopt_matplotlib, "plotly.io._renderers": adopt_plotly, "PIL.ImageShow": adopt_pil},
        ).install()

    def _retire(self, _frame: Any, result: Result) -> None:
        """End what the run left running, or say that it could not be ended."""
        _restore_recursion()
        if gate.interrupts.landed:
            drop_orphans()
            # No interrupt reaches a thread that waits for an answer.
            self._turn.end()
        self._namespace_guard()
        result.tasks_cancelled = threads.cancel_waiting()
        loop = self._cell_loop() if _asyncio_loaded() else None
        if loop is not None:
            result.tasks_cancelled += loop.retire(DEFAULT.task_grace, ROUNDS)
            loop.keep_current()
        users, result.background_threads = threads.settle(self._own_threads, DEFAULT.thread_grace)
        if loop is not None:
            result.background_tasks, stubborn = loop.left()
            if stubborn:
                result.clear("an asyncio task of this cell went on after it was cancelled three times")
        if users:
            result.clear(
                f"a thread started by this cell is still running user code ({', '.join(users[:NAMES])}); "
                "join it, or use a subprocess for work that outlives its cell"
            )
        self._arrivals.stale = True

    def _put_back(self, _frame: Any, _result: Result) -> None:
        self._streams.restore()
        self._display.end()
        self._turn.end()

    def _namespace_guard(self) -> None:
        """A cell may delete what marks the namespace as `__main__`; the next one needs it."""
        if self.namespace.get("__builtins__") is not builtins:
            self.namespace["__builtins__"] = builtins
        self.namespace.setdefault("__name__", "__main__")
        sys.modules["__main__"] = self._module


def _restore_recursion() -> None:
    """The worker's own calls behind a cell need some depth, whatever limit the cell has set."""
    if sys.getrecursionlimit() < RECURSION:
        sys.setrecursionlimit(RECURSION)


def _asyncio_loaded() -> bool:
    """Whether asyncio is there, whole: an interrupt may fall into the midst of its import."""
    spec = getattr(sys.modules.get("asyncio"), "__spec__", None)
    return "asyncio.events" in sys.modules and not getattr(spec, "_initializing", spec is None)
