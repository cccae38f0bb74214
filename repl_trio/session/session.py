"""A session: a named namespace that outlives its workers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial

import trio

from ..errors import Busy, ReplError, RunCancelled, SessionClosing, StateChanged, UnknownRun, WorkerStartFailed
from ..limits import Limits
from ..machines import ladder
from ..machines import run as run_table
from ..process.named import named
from ..process.pipes import PipeWriter
from ..process.root import RootWatch
from ..process.start import WorkerStart, start_worker
from ..values import CLEARED, PRESERVED, TIMEOUT, CallTool, Cell, Interpreter, Origin
from .artifacts import Artifacts, folders
from .generation import Generation, new_background
from .interpreter import choose
from .interrupt import clear, climb
from .lifetime import open_generation
from .rpc import Calls, Kept
from .run import Run
from .tap import Tap

_log = logging.getLogger("repl_trio.session")


class Session:
    """One namespace, its current worker, its runs and its artifacts.

    Owners: `nursery` (of `Sessions`) holds one task per generation and one per run. At most one run is active; a second
    one is refused at once. `head_start` is a worker that was started before the runtime was there; the first generation
    adopts it.
    """

    def __init__(
        self, session_id: str, name: str, project: str, python: str | None, surroundings: Surroundings
    ) -> None:
        self.id = session_id
        self.name = name
        self.project = project
        self.interpreter: Interpreter | None = None  # chosen on first need, then fixed for the session
        self.python_version: str | None = None  # as the newest worker, or the probe, said
        self.memory_mib = surroundings.limits.memory_mib  # a worker's, 0 for no bound
        self._python = python
        next_id = partial(surroundings.next_id, "a")
        self.artifacts = Artifacts(surroundings.limits, folders(surroundings.environment), next_id)
        self._background = new_background(surroundings.limits)
        self._awaited = False  # a cell waits for the clean-up of the active run
        self.opened = trio.current_time()
        self.generation: Generation | None = None
        self.generations = 0  # the number of the newest generation that became ready
        self.active: Run | None = None
        self.closing = False
        self.head_start: WorkerStart | None = None
        self.tap: Tap | None = None  # who follows the output of the generations that start from here on
        self._surroundings = surroundings
        self._limits = surroundings.limits
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lost: str | None = None  # how the last namespace was lost, until a run has said so

    @property
    def clearing(self) -> bool:
        """Whether a cell has to wait: for the clean-up of a run that is being stopped, or behind one that waits."""
        return self._awaited or (self.active is not None and self.active.stopping)

    # -- what can be asked -------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether there is a worker that holds the namespace."""
        return self.generation is not None and self.generation.alive

    @property
    def over(self) -> bool:
        """Whether nothing of the session is going on: no run, and no worker that lives or is being ended."""
        idle = self.active is None or self.active.finished
        return idle and (self.generation is None or self.generation.over.is_set())

    @property
    def runs(self) -> tuple[Run, ...]:
        """The retained runs, oldest first, the active one included."""
        return tuple(self._runs.values())

    def run(self, run_id: str | None) -> Run:
        """A retained run, the latest without an id. Raises `UnknownRun`."""
        if run_id is None:
            if not self._runs:
                raise UnknownRun(f"Session {self.id} has not run anything yet.")
            return next(reversed(self._runs.values()))
        found = self._runs.get(run_id)
        if found is None:
            raise UnknownRun(
                f"Session {self.id} has no run {run_id[:80]!r}; it keeps the {self._limits.runs_retained} newest."
            )
        return found

    async def names(self) -> tuple[list[tuple[str, str]], int] | None:
        """Names and types in the namespace and their count; empty without a worker, None from one that is too busy."""
        return await self.generation.names() if self.generation is not None and self.alive else ([], 0)

    # -- running -----------------------------------------------------------------------------------------------

    async def start(self, cell: Cell, *, reset: bool = False, expected_generation: int | None = None) -> Run:
        """`begin`, after waiting (at most `busy_wait` seconds) for the clean-up of a run that is being stopped."""
        if self._awaited and self.active is not None:
            raise self._busy(self.active)  # one waiting cell is enough: cells begin in the order they were sent
        if self.active is not None and self.active.stopping:
            self._awaited = True
            try:
                with trio.move_on_after(self._limits.busy_wait):
                    await self.active.answered.wait()
            finally:
                self._awaited = False
        return self.begin(cell, reset=reset, expected_generation=expected_generation)

    def begin(self, cell: Cell, *, reset: bool = False, expected_generation: int | None = None) -> Run:
        """Accept a cell and return its run, which the session leads from here on.

        Raises `Busy` while another run is active, `StateChanged`, or `SessionClosing`; nothing was run then. A warm
        worker gets the cell in this very step: no task switch on the way of an ordinary call.
        """
        if self.active is not None and not self.active.finished:
            raise self._busy(self.active)
        if self.closing:
            raise SessionClosing(f"Session {self.id} is closing; the cell was not run.", state=CLEARED)
        self._check_generation(expected_generation)
        run = Run(self._surroundings.next_id("r"), self.id, cell, self._limits, self.artifacts)
        run.reset = reset
        run.open_calls = self._open_calls
        self.active = run
        self._runs[run.id] = run
        while len(self._runs) > self._limits.runs_retained:
            self._runs.popitem(last=False)
        try:
            if not reset and self.alive:
                self._send(run, self.generation)
            self._surroundings.nursery.start_soon(self._lead, run, name=named(f"leads run {run.id}"))
        except ReplError as error:
            run.fail(error, self._state())
        except BaseException:  # only to undo: a run that nobody leads would keep the session busy for ever
            run.abandon()
            raise
        return run

    def _busy(self, active: Run) -> Busy:
        return Busy(
            f"Session {self.id} is busy with run {active.id}, for {active.elapsed_ms / 1000:.1f} s now. The new cell "
            "was not run and is not queued. Wait with python_run, stop it with python_cancel, or use another session.",
            state=PRESERVED,
            run_id=active.id,
        )

    def _check_generation(self, expected: int | None) -> None:
        if expected is None:
            return
        current = self.generations if self.alive or not self.generations else self.generations + 1
        if expected != current:
            lost = (
                "" if self.alive or not self.generations else f" The worker of generation {self.generations} is gone."
            )
            raise StateChanged(
                f"The code was not run: it expects generation {expected} of session {self.id}, and it would run in "
                f"generation {current}.{lost} Rebuild what it needs, then call again with expected_generation "
                f"{current}.",
                state=self._state(),
            )

    async def _lead(self, run: Run) -> None:
        """The driver: one task that leads a run from acceptance to its answer."""
        try:
            with run.scope:
                if run.machine.state == run_table.ACCEPTED and not await self._prepare(run):
                    return
                if self.generation is not None and self.generation.undelivered:
                    await self.generation.deliver()
                await run.arrived.wait()
            if not run.finished:
                await self._end(run)
        except Exception:  # noqa: BLE001 - a bug in one run must not take the other sessions down
            _log.exception("bug while leading run %s", run.id)
            if self.generation is not None:
                self.generation.leave()
        finally:
            if not run.finished:
                run.abandon()

    async def _prepare(self, run: Run) -> bool:
        """Find or start the worker and give it the cell; False when the run has ended instead."""
        if run.reset and self.generation is not None:
            await self.generation.stop()
        if not self.alive:
            run.machine.advance("launch")
            try:
                self.generation = await self._launch()
            except ReplError as error:
                run.fail(error, self._state())
                return False
        try:
            self._send(run, self.generation)
        except ReplError as error:
            run.fail(error, self._state())
            return False
        return True

    def _send(self, run: Run, generation: Generation | None) -> None:
        if generation is None or not generation.alive:
            how = generation.death if generation is not None else "No worker was started"
            raise WorkerStartFailed(f"{how} before it could take the cell. The cell did not run.")
        generation.begin(run)
        run.lost, self._lost = self._lost, None
        run.machine.advance("ready")
        run.scope.deadline = trio.current_time() + run.cell.timeout

    async def _end(self, run: Run) -> None:
        """Lead a run to its answer that did not end by itself: stopped, dead or unfit."""
        generation = self.generation
        if run.machine.state in (run_table.ACCEPTED, run_table.STARTING) or generation is None:
            detail = f" ({run.stop_detail})" if run.stop_detail else ""
            cancelled = RunCancelled(f"The run was cancelled before it began{detail}. The cell did not run.")
            run.fail(cancelled, self._state())
            return
        if not run.arrived.is_set():
            run.stop_reason = run.stop_reason or TIMEOUT
            run.machine.advance("stop")
            if run.calls is not None:
                await run.calls.stop(self._limits.rpc_settle)
            await climb(self._surroundings.rungs(), run, generation, self._limits.ladder_settle)
        if run.calls is not None:
            await run.calls.stop(self._limits.rpc_end)
            if run.completed and generation.alive:
                run.finish("result", PRESERVED)
                return
        kept = run.reply is not None and run.reply["keep"] and generation.alive
        if kept and run.machine.state in (run_table.RUNNING, run_table.INTERRUPTING):
            if run.machine.state == run_table.RUNNING:
                run.machine.advance("stop")  # the result crossed the cancel: what the run started goes all the same
            run.machine.advance("result")
            await clear(run, generation)
            if generation.alive:
                run.finish("cleared", PRESERVED)
                return
        await self._bury(run, generation)

    async def _bury(self, run: Run, generation: Generation) -> None:
        """The worker is dead or must die: nothing of it is left when the run is answered."""
        if run.machine.state != run_table.KILLING:
            run.machine.advance("unfit" if run.reply is not None and run.machine.accepts("unfit") else "died")
        await generation.kill()
        run.finish("cleared", CLEARED, generation.death, generation.last_words())

    def _open_calls(self, run: Run, commands: PipeWriter) -> Calls:
        """Begin to answer what a run asks of the peers."""
        origin = Origin(run.id, self.id, self.project, run.note)
        kept = Kept(self.artifacts, run.artifacts)
        calls = Calls(self._surroundings.peers, origin, commands, kept, self._limits)
        self._surroundings.nursery.start_soon(calls.serve, name=named(f"answers what run {run.id} asks of peers"))
        return calls

    # -- the worker --------------------------------------------------------------------------------------------

    def choose_interpreter(self) -> Interpreter:
        """The session's interpreter, chosen now if it was not. Raises `InterpreterBroken`."""
        if self.interpreter is None:
            self.interpreter = choose(self._python, self.project, self._surroundings.environment)
        return self.interpreter

    async def _launch(self) -> Generation:
        interpreter = self.choose_interpreter()
        if self.generation is not None:
            await self.generation.over.wait()  # two workers of one session would share its files and ports
        number = self.generations + 1
        generation: Generation | ReplError = await self._surroundings.nursery.start(
            self._own, number, interpreter, name=named(f"owns session {self.id}, generation {number}")
        )
        if isinstance(generation, ReplError):
            raise generation
        if generation.problem is not None:
            raise type(generation.problem)(f"{generation.problem.message} The cell did not run.")
        self.generations = number
        self.python_version = generation.python_version
        return generation

    async def _own(
        self, number: int, interpreter: Interpreter, task_status: trio.TaskStatus[Generation | ReplError]
    ) -> None:
        """The owner task of one generation: holds it open until its worker is dead.

        Nothing is raised here, because that would end the nursery of all sessions: what prevents the start is handed
        over as a value, and after a bug of ours this worker alone is ended, its run answered by its driver.
        """
        start, self.head_start = self.head_start, None
        try:
            start = start or self._surroundings.start_worker(interpreter.path, self.project)
        except OSError as error:
            task_status.started(WorkerStartFailed(f"No process could be started ({error}). The cell did not run."))
            return
        generation: Generation | None = None
        try:
            opened = open_generation(number, start, self._surroundings.watch, self._limits, self.tap, self._background)
            async with opened as generation:
                generation.memory.mib = self.memory_mib
                task_status.started(generation)
                if generation.problem is None:
                    await generation.ending.wait()
        except Exception:  # noqa: BLE001 - the boundary named above
            _log.exception("bug while owning generation %s of session %s", number, self.id)
            if generation is None:
                bug = "A bug in repl-trio prevented the start of a worker, see its log. The cell did not run."
                task_status.started(WorkerStartFailed(bug))
        if generation is not None and generation.problem is None and not generation.ordered:
            self._lost = generation.death

    def _state(self) -> str:
        """Of the namespace, for a run that never began: where there never was one, nothing was lost either."""
        return PRESERVED if self.alive or not self.generations else CLEARED

    # -- the end -----------------------------------------------------------------------------------------------

    async def close(self, detail: str) -> None:
        """Stop the active run and the worker; returns when nothing of the session is left."""
        self.closing = True
        try:
            if self.active is not None and not self.active.finished:
                self.active.cancel(detail)
                await self.active.answered.wait()
            if self.generation is not None:
                await self.generation.stop()
        finally:
            self.artifacts.close()
        if self.head_start is not None:
            start, self.head_start = self.head_start, None
            start.abandon()


class Surroundings:
    """What all sessions of a server share: the nursery that owns their tasks, the numbers, the environment.

    `next_id` makes the ids of runs (`r`) and artifacts (`a`) from their letter.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        watch: RootWatch,
        limits: Limits,
        environment: Mapping[str, str],
        next_id: Callable[[str], str],
    ) -> None:
        self.nursery = nursery
        self.watch = watch
        self.limits = limits
        self.environment = environment
        self.next_id = next_id
        self.peers: CallTool | None = None  # who answers what cells ask of them; set once, by who composes the server
        self.shutting_down = False

    def start_worker(self, python: str, project: str) -> WorkerStart:
        """Start a worker. Raises `OSError` when no process can be started."""
        return start_worker(self.watch.root, python, project, self.environment, self.limits)

    def rungs(self) -> tuple[ladder.Rung, ...]:
        """The ladder in force: the short one once the server is ending."""
        return ladder.shutdown(self.limits) if self.shutting_down else ladder.interruption(self.limits)
