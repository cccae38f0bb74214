"""The journal of calls to peers: in memory always, and with `--journal` in a file that survives the server.

A call is dispatched only when its record is durable, so that after a crash every call that may have acted is known. How
it ended is written behind the answer; if that is lost, the next start says `outcome_unknown`, which is true. Without a
durable record no call: where the file fails, `begin` does (JOURNAL_UNAVAILABLE), at once or within `journal_wait`.

One task owns the file. It takes everything that has come in meanwhile into one transaction, so that thirty calls at
once wait for one sync and not for thirty.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from ..errors import BrokerError
from ..limits import Limits
from .records import DISPATCHED, NEXT, Moved, Record, Unavailable

if TYPE_CHECKING:
    from .database import Database

_NAME = 200
"""characters of each name in a record: a peer may call its tools what it likes."""


class Journal:
    """The newest `journal_records` calls. `open_journal` makes and owns one."""

    def __init__(self, path: str | None, limits: Limits) -> None:
        self.path = path
        self._limits = limits
        self._records: dict[int, Record] = {}
        self._last = 0
        self._library: Any = None
        self._database: Database | None = None
        self._taken_over = False  # the records of earlier servers are among ours
        self._thread = trio.CapacityLimiter(1)  # not trio's own: a disk that hangs must not hold what others wait for
        self._fault = ""  # why the last attempt to open or write the file failed
        self._changed: set[int] = set()  # numbers of records of which the file knows less than we do
        self._writing: set[int] = set()  # numbers of those that are being written
        self._wake = trio.Event()  # the owner has something to do
        self._attempt = trio.Event()  # set and replaced when it has done it, or failed
        self._closing = False

    @property
    def state(self) -> str:
        """What health says about it."""
        if self.path is None:
            return "in memory"
        if self._fault:
            return f"unavailable: {self._fault}"
        return self.path if self._database is not None else f"{self.path}, not opened yet"

    def records(self) -> list[Record]:
        """What is remembered, oldest first."""
        return list(self._records.values())

    async def load(self) -> None:
        """Open the file if there is one and it is not open: from then on `records` knows earlier servers' calls.

        Raises `BrokerError` (JOURNAL_UNAVAILABLE), naming the owner when another server has the file. It is tried again
        with every call, so that the end of that server, or room on the disk, needs no restart.
        """
        if self.path is not None:
            await self._until(lambda: self._database is not None)

    async def begin(self, run_id: str, session_id: str, project: str, server: str, tool: str) -> int:
        """Record that a call is about to be dispatched; durable on return. The number is for `finish`.

        Raises `BrokerError`: JOURNAL_UNAVAILABLE, or LIMIT_REACHED when every record is of a call on its way. Then, and
        when cancelled, there is no record and the call must not be made.
        """
        await self.load()
        self._make_room()
        self._last = number = self._last + 1
        self._records[number] = Record(
            number,
            _name(run_id),
            _name(session_id),
            _name(project),
            _name(server),
            _name(tool),
            time.time(),
            None,
            DISPATCHED,
        )
        if self.path is None:
            return number
        self._mark(number)
        try:
            await self._until(lambda: number not in self._changed and number not in self._writing)
        except BaseException:  # only to undo: what was never dispatched must not look as if it had been
            self._forget(number)
            raise
        return number

    def finish(self, number: int, status: str) -> None:
        """Record how a call ended: COMPLETED, TOOL_ERROR or OUTCOME_UNKNOWN. What is already known stays as it is.

        Does not wait and does not fail: the file follows, and if it cannot, the next start calls the outcome unknown.
        """
        record = self._records.get(number)
        if record is not None and status in NEXT[record.status]:
            self._records[number] = replace(record, finished=time.time(), status=status)
            self._mark(number)

    def withdraw(self, number: int) -> None:
        """Remove the record of a call that has not left after all: it must not look as if it had been dispatched."""
        self._forget(number)

    def _make_room(self) -> None:
        while len(self._records) >= self._limits.journal_records:
            oldest = next((one.id for one in self._records.values() if one.status != DISPATCHED), None)
            if oldest is None:
                raise BrokerError(
                    "LIMIT_REACHED",
                    f"{len(self._records)} calls are on their way, and the journal remembers no more than "
                    f"{self._limits.journal_records} (limit journal_records)",
                )
            self._forget(oldest)

    def _forget(self, number: int) -> None:
        self._records.pop(number, None)
        self._mark(number)

    def _mark(self, number: int) -> None:
        if self.path is not None:
            self._changed.add(number)
            self._wake.set()

    async def _until(self, done: Callable[[], bool]) -> None:
        """Wait for the owner's attempts, until one has done it or has failed."""
        if done():
            return
        with trio.move_on_after(self._limits.journal_wait):
            while True:
                attempt = self._attempt
                self._wake.set()
                await attempt.wait()
                if done():
                    return
                if self._fault:
                    raise self._unavailable(self._fault)
        raise self._unavailable(
            f"{self.path} did not answer within {self._limits.journal_wait:g} s (limit journal_wait)"
        )

    def _unavailable(self, why: str) -> BrokerError:
        return BrokerError("JOURNAL_UNAVAILABLE", f"no call is made without its record: {why}")

    async def own(self, scope: trio.CancelScope) -> None:
        """Open the file when it is needed and write what has changed, until told to close and all is written.

        `scope` is shielded and its owner's to cancel: outcomes are known when everything else is cancelled.
        """
        with scope:
            await self._serve()

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            if self._database is None and not self._closing:
                await self._open()
            if self._database is not None and self._changed and await self._write(self._database):
                await self._open()
                if self._database is not None:
                    await self._write(self._database)
            attempt, self._attempt = self._attempt, trio.Event()
            attempt.set()
            if self._closing and (self._fault or not self._changed):
                if self._database is not None:
                    await self._leave(self._database)
                return

    def close(self) -> None:
        """Have the owner write what is behind and leave the file to others."""
        self._closing = True
        self._wake.set()

    async def _open(self) -> None:
        try:
            if self._library is None:
                self._library = await self._run(importlib.import_module, f"{__package__}.database")
            opened: Database = await self._run(self._library.Database, self.path, self._limits.journal_records)
        except Unavailable as error:
            self._fault = str(error)
            return
        except ImportError as error:
            self._fault = f"this Python has no SQLite ({error})"
            return
        if not self._taken_over:
            # This server's own calls have no records yet: without the file none was begun.
            self._taken_over = True
            self._records = {record.id: record for record in opened.recovered}
            self._last = max(self._records, default=0)
        elif any(map(self._strange, opened.recovered)):
            await self._leave(opened)
            self._fault = (
                f"{self.path} was replaced by another journal while this server had it open; move that one away, or "
                "restart this server"
            )
            return
        else:
            self._changed |= set(self._records)  # all that the file knew, and what it may know no more
        self._database = opened
        self._fault = ""

    def _strange(self, record: Record) -> bool:
        """Whether a record of the file is of another journal than what is remembered here."""
        mine = self._records.get(record.id)
        if mine is None:
            return record.id not in self._changed
        return (mine.run_id, mine.started) != (record.run_id, record.started)

    async def _leave(self, database: Database) -> None:
        with suppress(Unavailable):
            await self._run(database.close)

    async def _write(self, database: Database) -> bool:
        """Write what has changed. Returns whether the file must be opened anew for that: it is not what it was."""
        self._writing, self._changed = self._changed, set()
        present = [self._records[number] for number in sorted(self._writing) if number in self._records]
        forgotten = [number for number in self._writing if number not in self._records]
        try:
            await self._run(database.write, present, forgotten)
            self._fault = ""
            return False
        except Unavailable as error:
            self._fault = str(error)
            # Not again by itself: the next call tries, and takes with it what is behind.
            self._changed |= self._writing
            if not isinstance(error, Moved):
                return False
            self._database = None
            await self._leave(database)
            return True
        finally:
            self._writing = set()

    async def _run(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Run `call` in the journal's thread. Raises what it raises, and `Unavailable` when there is no thread."""
        # Abandoned only at the end of the server: a disk that hangs must not keep it alive.
        try:
            return await trio.to_thread.run_sync(call, *arguments, limiter=self._thread, abandon_on_cancel=True)
        except RuntimeError as error:
            # The user's processes and threads are at their bound.
            raise Unavailable(f"its thread could not be started ({error})") from None


def _name(text: str) -> str:
    """What SQLite takes of a name: no lone surrogates."""
    return text[:_NAME].encode("utf-8", "replace").decode("utf-8")


@asynccontextmanager
async def open_journal(path: str | None, limits: Limits) -> AsyncIterator[Journal]:
    """Own a journal; `path` None keeps it in memory. Nothing is opened or created before its first use.

    Leaving writes what is behind, for `journal_close` seconds at most, and leaves the file to others. Shielded:
    outcomes are known when everything else is cancelled.
    """
    journal = Journal(path, limits)
    if path is None:
        yield journal
        return
    owning = trio.CancelScope(shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.own, owning, name="keeps the journal")
        try:
            yield journal
        finally:
            journal.close()
            # The owner leaves by itself when all is written.
            owning.deadline = trio.current_time() + limits.journal_close
