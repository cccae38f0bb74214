"""The model of one session: what must be true of its namespace, and every result held against it."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import trio

from stress import cells, kernel
from stress.cells import Marks
from stress.client import Gone, Message, Server
from stress.record import Record

LATE = 4.0
"""seconds. A marker file is looked at again this long after its run was answered."""

ROOT_DEATH = 2.0
"""seconds. A worker that is started this long after its root guardian was killed may fail to start."""

#: Why a cell may not have run that nobody has cancelled: something was killed while its worker started.
NOT_RUN = {"WORKER_START_FAILED", "INTERPRETER_BROKEN"}


class Session:
    """One session as its only client knows it.

    `generation` is the newest that was seen, `dead` whether it is known to be over, `disturbed` whether something was
    killed since, so that it may be, `doomed` whether that was the worker itself. `kept` are the children that completed
    runs left, by pid, with their generation.
    """

    def __init__(self, server: Server, rng: random.Random, number: int) -> None:
        self.server = server
        self.record: Record = server.record
        self.rng = rng
        self.number = number
        self.id = ""
        self.generation = 0
        self.dead = True
        self.disturbed = False
        self.doomed = False
        self.planted: str | None = None
        self.kept: dict[int, int] = {}
        self.began = 0.0  # when the newest cell was sent
        self.marks: list[tuple[float, Marks]] = []
        self._files = count()
        self._plants = count()

    def __str__(self) -> str:
        return f"session {self.number} ({self.id})"

    # -- opening and closing -----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open a session, or take the default one for number 0. Raises `Gone`."""
        self.generation, self.dead, self.disturbed, self.doomed, self.planted = 0, True, False, False, None
        self.kept.clear()
        self.id = ""
        while not self.id:
            self.began = trio.current_time()
            if self.number == 0:
                sessions = (await self.server.call("python_health"))["sessions"]
                self.id = next(session["session_id"] for session in sessions if session["default"])
                return
            opened = await self.server.call("python_session_open", name=f"stress {self.number}")
            self.id = opened.get("session_id", "")
            if not self.id:
                code = opened.get("error_code")
                self.record.step("session open", str(code))
                # A start that was under way when the root guardian was killed has a right to fail.
                ago = trio.current_time() - self.server.root_killed
                if code == "SESSION_CLOSING":
                    raise Gone
                words = f"{self} does not open, {ago:.1f} s after a root was killed: {opened.get('error')}"
                if not self.record.check("state claims are true", self._root_was_killed, words):
                    raise Gone

    @property
    def _root_was_killed(self) -> bool:
        """Whether a start that began with the newest cell may have met a root guardian that somebody killed."""
        return self.server.root_killed > self.began - ROOT_DEATH

    # -- files -------------------------------------------------------------------------------------------------

    def new_marks(self, kind: str = "") -> Marks:
        """The file for the next cell."""
        path: Path = self.server.folder / "marks" / f"{self.number}-{next(self._files)}"
        return Marks(path, kind)

    def freeze(self, marks: Marks) -> None:
        """Its run was answered. The first thing to do after the answer."""
        marks.freeze()
        self.marks.append((trio.current_time() + LATE, marks))

    def look_back(self, *, everything: bool = False) -> None:
        """Look for late markers of runs that were answered a while ago."""
        now = trio.current_time()
        due = [marks for when, marks in self.marks if everything or when <= now]
        self.marks = [(when, marks) for when, marks in self.marks if not everything and when > now]
        for marks in due:
            found = f"{self}, {marks.kind}: {marks.late!r} after the answer; the cell began with {marks.lines[:3]}"
            if self.record.check("no late marker", not marks.late, found):
                marks.path.unlink(missing_ok=True)

    # -- results -----------------------------------------------------------------------------------------------

    def plant(self) -> tuple[str, str]:
        """Source that plants a new value, and the value."""
        value = f"{self.number}.{next(self._plants)}"
        return f"planted = {value!r}\n", value

    def take(self, result: Message, *, reset: bool = False) -> str:
        """Hold a result against the model and move the model on; the outcome in words."""
        code = result.get("error_code")
        told = f"{self}: {_short(result)}; before: {self._state()}"
        if result["status"] == "refused":
            self.record.step("refused", str(code))
            return f"refused {code}"
        if not result["generation"]:
            fair = code in ("CANCELLED", "SESSION_CLOSING") or (code in NOT_RUN and self._root_was_killed)
            fair = fair or (code in NOT_RUN and self.disturbed)
            self.record.check("state claims are true", fair, f"the cell did not run, nobody knows why. {told}")
            if reset or result["state"] == "cleared":
                # Cancelled while an earlier worker's end was awaited: that goes on.
                self._over(told, at_once=False)
            return f"not run {code}"
        self._take_generation(result, told, reset=reset)
        if result["state"] == "cleared":
            self._over(told, at_once=True)
            self.disturbed = self.doomed = False
        elif not self.disturbed:
            self._children_live(told)
        return f"{code or 'done'} {result['state']}"

    def _take_generation(self, result: Message, told: str, *, reset: bool) -> None:
        truth = self.record.check
        number = result["generation"]
        if result["state_reset"]:
            truth("state claims are true", number > self.generation, f"a new namespace in no new generation. {told}")
            wanted = self.dead or self.disturbed or reset
            truth("state claims are true", wanted, f"the namespace was lost and nobody had said so. {told}")
            self._over(told, at_once=True)
            self.generation, self.dead, self.disturbed, self.doomed = number, False, False, False
        else:
            # A cell that reaches a worker which is being killed dies with it.
            impossible = self.dead or reset or (self.doomed and result["success"])
            same = number == self.generation and not impossible
            truth("state claims are true", same, f"not reset, but it is another namespace. {told}")

    def _over(self, told: str, *, at_once: bool) -> None:
        """The generation is over: so are its children."""
        self.dead, self.planted = True, None
        if not at_once:
            return
        for pid in list(self.kept):
            ended = not kernel.alive(pid)
            words = f"{kernel.describe(pid)} of generation {self.kept[pid]} outlives its worker. {told}"
            self.record.check("kept children end with their worker", ended, words)
            del self.kept[pid]

    def _children_live(self, told: str) -> None:
        if self.server.held:
            return  # it may have ended its workers meanwhile
        for pid in list(self.kept):
            words = f"{pid} of generation {self.kept[pid]} is gone. {told}"
            if not self.record.check("kept children live as long as their worker", kernel.alive(pid), words):
                del self.kept[pid]

    def _state(self) -> str:
        flags = [name for name in ("dead", "disturbed") if getattr(self, name)]
        return f"generation {self.generation} {' '.join(flags)} planted {self.planted}"

    def check_value(self, truth: object, what: str) -> None:
        """Check what a result says, but for one of a server that was told to end: that cancels what runs."""
        self.record.check("values are right", truth or self.server.held, what)

    def closed(self, told: str) -> None:
        """The session was closed: nothing of it is left."""
        self._over(told, at_once=True)

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, code: str, tool: str = "execute_python", **arguments: object) -> Message:
        """Run a cell to its end. Raises `Gone`."""
        self.began = trio.current_time()
        return await self.server.call(tool, code=code, session_id=self.id, **arguments)

    async def finished(self, run_id: str | None = None) -> Message:
        """Wait for the end of a run, the latest without an id; its result. Raises `Gone`."""
        while True:
            arguments = {"run_id": run_id, "session_id": self.id, "wait": 20}
            found = await self.server.call("python_run", **arguments)
            if found["status"] in ("finished", "refused"):
                return found

    async def worker(self) -> int | None:
        """The pid of the worker, None when there is none."""
        sessions = (await self.server.call("python_health"))["sessions"]
        pids = [session.get("worker_pid") for session in sessions if session["session_id"] == self.id]
        return pids[0] if pids else None

    async def check_namespace(self, name: str) -> None:
        """Run a quick cell and hold its value and the namespace against the model."""
        body, outcome = cells.QUICK[name]
        marks = self.new_marks()
        plant, planted = self.plant() if self.rng.random() < 0.3 else ("", self.planted)
        before = self.generation
        result = await self.run(cells.quick(marks, plant + body))
        self.freeze(marks)
        told = self.take(result)
        self.record.step(f"quick {name}", told)
        if told.startswith(("not run", "refused", "WORKER_DIED")):
            return
        expected = planted if plant or result["generation"] == before else None
        value = result.get("value")
        right = result["success"] and value == [expected, outcome]
        self.check_value(right, f"{self}: {value} is not {[expected, outcome]}. {_short(result)}")
        self.planted = expected


def _short(result: Message) -> str:
    shown = {key: result[key] for key in result if key in _TOLD}
    return str(shown)[:900]


_TOLD = ("run_id", "status", "generation", "success", "state", "state_reset", "error_code", "error", "elapsed_ms")

__all__ = ["Gone", "Session"]
