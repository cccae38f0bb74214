"""Validation that may take for ever, in a child of the server that is killed when it does.

Python's `re` holds the interpreter while it searches: a peer's pattern such as `^(a+)+$` would stop the whole server.
The child (`judging.py`) is started by the first schema that needs it, answers one question after the other, and is
owned through a guardian like every child. One that overruns its time is ended, and the next question starts another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ...errors import BrokerError
from ...limits import Limits
from ...process.guard import open_guard
from ...process.named import named
from ...process.piped import start_piped
from ...process.pipes import BrokenPipe, PipeReader, PipeWriter
from ...process.root import RootWatch
from ...wire import jsontext
from ...wire.framing import LineDecoder
from .findings import Verdict

# Without site and the caller's environment: it finds what the server finds, and nothing a project puts in the way.
_RUN = "import sys;sys.path[:]=sys.argv[1:];from repl_trio.broker.tools.judging import main;main()"


class _Life:
    """One process of the judge: a question's line goes in, the next line comes out. `over` is set to end it."""

    def __init__(self, commands: PipeWriter, replies: PipeReader, limits: Limits) -> None:
        self._commands = commands
        self._replies = replies
        self._decoder = LineDecoder(limits.frame_bytes)
        self._lines: list[object] = []
        self.over = trio.Event()

    async def ask(self, question: dict[str, object] | None) -> dict[str, object] | None:
        """Send a question, or None to wait for the first word; None when the process has ended instead."""
        if question is not None:
            try:
                await self._commands.send(jsontext.dumps(question).encode("ascii") + b"\n")
            except BrokenPipe:
                return None
        while not self._lines:
            chunk = await self._replies.receive()
            if not chunk:
                return None
            self._lines += self._decoder.feed(chunk)
        line = self._lines.pop(0)
        try:
            answer = jsontext.loads(line.decode("ascii", "replace")) if isinstance(line, bytes) else None
        except jsontext.NotJSON:
            answer = None
        return answer if isinstance(answer, dict) else None


class Judge:
    """Validates what may not be validated in the server. `open_judge` makes and owns one."""

    def __init__(self, nursery: trio.Nursery, watch: RootWatch, limits: Limits) -> None:
        self._nursery = nursery
        self._watch = watch
        self._limits = limits
        self._turn = trio.Lock()
        self._life: _Life | None = None
        self._asked = 0

    async def verdict(self, schema: object, dialect: str, arguments: object) -> Verdict:
        """The verdict on arguments. Raises `BrokerError` (LIMIT_REACHED) when there is none within `judge_bound`
        seconds, or the process has died over it. Cancelled, the process is ended: it may never finish."""
        async with self._turn:
            life = await self._living()
            self._asked += 1
            question = {"id": self._asked, "schema": schema, "dialect": dialect, "arguments": arguments}
            try:
                with trio.move_on_after(self._limits.judge_bound) as scope:
                    answer = await life.ask(question)
            except BaseException:  # only to undo
                self._end()
                raise
            if scope.cancelled_caught:
                self._end()
                raise BrokerError(
                    "LIMIT_REACHED",
                    "the arguments could not be checked: the schema, with its patterns, took more than "
                    f"{self._limits.judge_bound:g} s (limit judge_bound)",
                )
            try:
                if answer is None or answer["id"] != self._asked:
                    raise KeyError("id")
                return Verdict.from_json(answer)
            except (AttributeError, KeyError, TypeError):
                self._end()
                raise BrokerError(
                    "LIMIT_REACHED", "the arguments could not be checked: the process that checks them died over it"
                ) from None

    async def _living(self) -> _Life:
        if self._life is None:
            try:
                with trio.move_on_after(self._limits.judge_start):
                    life: _Life = await self._nursery.start(self._own, name=named("owns the judge"))
                    self._life = life
                    if await life.ask(None) is not None:
                        return life
            except OSError as error:
                raise BrokerError(
                    "LIMIT_REACHED", f"no process could be started that checks the arguments ({error})"
                ) from None
            except BaseException:  # only to undo
                self._end()
                raise
            self._end()
            raise BrokerError(
                "LIMIT_REACHED",
                "the process that checks the arguments did not come up within "
                f"{self._limits.judge_start:g} s (limit judge_start)",
            )
        return self._life

    def _end(self) -> None:
        if self._life is not None:
            self._life.over.set()
            self._life = None

    async def _own(self, *, task_status: trio.TaskStatus[_Life]) -> None:
        """Own one process until its `over`."""
        path = [entry for entry in sys.path if os.path.isabs(entry)]
        argv = [sys.executable, "-I", "-S", "-c", _RUN, *path]
        start = start_piped(self._watch.root, argv, {}, "/", self._limits)
        commands, replies, errors = PipeWriter(start.stdin), PipeReader(start.stdout), PipeReader(start.stderr)
        try:
            async with open_guard(start.guardian, self._watch, self._limits), trio.open_nursery() as nursery:
                nursery.start_soon(commands.run, name=named("asks the judge"))
                nursery.start_soon(_drain, errors, name=named("drops the stderr of the judge"))
                life = _Life(commands, replies, self._limits)
                task_status.started(life)
                await life.over.wait()
                nursery.cancel_scope.cancel()
        finally:
            commands.close()
            replies.close()
            errors.close()


async def _drain(errors: PipeReader) -> None:
    """A traceback must not fill the pipe; what it says is nobody's."""
    while await errors.receive():
        pass


@asynccontextmanager
async def open_judge(watch: RootWatch, limits: Limits) -> AsyncIterator[Judge]:
    """Own a judge; inside the context nothing is started before the first question, after it nothing is left."""
    async with trio.open_nursery() as nursery:
        judge = Judge(nursery, watch, limits)
        try:
            yield judge
        finally:
            judge._end()
            nursery.cancel_scope.cancel()
