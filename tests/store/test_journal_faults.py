"""The journal on files, disks and moments that are not as they should be: refused in words, never held up."""

from __future__ import annotations

import errno
import os
import random
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.store import database
from repl_trio.store.journal import open_journal
from repl_trio.store.records import COMPLETED, DISPATCHED, TOOL_ERROR, Record, Unavailable

from .journals import HANG, LIMITS, begin, read, refused

ROOT = Path(__file__).resolve().parents[2]


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def text(path: Path) -> None:
    path.write_text("These are my notes and no database at all. " * 50)


def a_strangers_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE record (mine TEXT)")
    connection.commit()
    connection.close()


def a_newer_journal(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {database.APPLICATION}")
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def a_damaged_journal(path: Path) -> None:
    made = database.Database(str(path), 256)
    made.write([Record(n, "r", "s", "p" * 3_000, "s", "t", 1.0, None, DISPATCHED) for n in range(1, 50)], [])
    made.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (a_fifo, "is not a regular file"),
        (a_folder, "is not a regular file"),
        (text, "no SQLite database; it was not changed"),
        (a_strangers_database, "a database of another program; it was not changed"),
        (a_newer_journal, "has format 99, and this version knows 1; it was not changed"),
        (a_damaged_journal, "is damaged; move it away"),
    ],
)
async def test_what_cannot_be_the_journal_is_left_alone(make: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    make(path)
    path.chmod(0o644)
    before = path.read_bytes() if path.is_file() else b""
    async with open_journal(str(path), LIMITS) as journal:
        await refused(journal, words)
        await refused(journal, words)
    assert (path.read_bytes() if path.is_file() else b"") == before
    ours = make is a_damaged_journal
    assert stat.S_IMODE(path.stat().st_mode) == (0o600 if ours else 0o644)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none/journal", "cannot be created: .*/none is no directory"),
        ("loop", "Too many levels of symbolic links"),
        ("x" * 300, "File name too long"),
    ],
)
async def test_places_that_take_no_file(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    async with open_journal(str(tmp_path / name), LIMITS) as journal:
        await refused(journal, words)


async def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def read_only(path: str, flags: int, *rest: int, **more: int) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    async with open_journal(str(tmp_path / "journal"), LIMITS) as journal:
        await refused(journal, "Read-only file system")
        monkeypatch.undo()
        await begin(journal)  # it was remounted


async def test_another_program_that_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with open_journal(str(path), LIMITS) as journal:
        await begin(journal)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM record").fetchall()
    async with open_journal(str(path), LIMITS) as journal:
        await refused(journal, "another program has it open")
        reader.close()
        await begin(journal)


async def test_a_full_disk_fails_the_call_and_not_the_ones_after_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with open_journal(str(path), Limits.overridden({"journal_records": "5000"})) as journal:
        kept = await begin(journal)
        assert journal._database is not None
        connection = journal._database._connection
        assert connection is not None
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way of running out of room
        begun = [kept]

        async def fill() -> None:
            while len(begun) < 1_000:
                begun.append(await begin(journal, "t" * 200))

        with pytest.raises(BrokerError, match="the disk is full") as raised:
            await fill()
        assert raised.value.code == "JOURNAL_UNAVAILABLE"
        assert [one.id for one in journal.records()] == begun
        assert journal.state == f"unavailable: {raised.value.message.partition(': ')[2]}"
        journal.finish(kept, COMPLETED)
        with pytest.raises(BrokerError, match="the disk is full"):
            await begin(journal, "t" * 200)
        connection.execute("PRAGMA max_page_count = 100000")
        begun.append(await begin(journal))
        assert journal.state == str(path)
    records = await read(path, journal_records="5000")
    assert [one.id for one in records] == begun
    assert records[0].status == COMPLETED


QUOTA = """
import resource, sys, trio
from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.store.journal import open_journal

async def main(path):
    async with open_journal(path, Limits()) as journal:
        try:
            await journal.begin("run", "session", "/project", "server", "tool")
        except BrokerError as error:
            print(error.code, error.sent, journal.state)

resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
trio.run(main, sys.argv[1])
"""


def test_a_quota(tmp_path: Path) -> None:
    # In a process of its own: the bound holds for every file, also for one that this output is sent to.
    command = [sys.executable, "-c", QUOTA, str(tmp_path / "journal")]
    env = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(command, cwd=ROOT, env=env, timeout=HANG, capture_output=True, text=True, check=False)
    assert re.match(
        r"JOURNAL_UNAVAILABLE no unavailable: .*(the disk is full|the disk reports an error)", done.stdout
    ), done


async def test_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_thread(*_arguments: object, **_options: object) -> object:
        raise RuntimeError("can't start new thread")

    async with open_journal(str(tmp_path / "journal"), LIMITS) as journal:
        with monkeypatch.context() as patch:
            patch.setattr("trio.to_thread.run_sync", no_thread)
            await refused(journal, "can't start new thread")
        number = await begin(journal)
        with monkeypatch.context() as patch:
            patch.setattr("trio.to_thread.run_sync", no_thread)
            await refused(journal, "can't start new thread")
        await begin(journal)
        journal.finish(number, COMPLETED)


async def test_a_python_without_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "repl_trio.store.database", None)
    async with open_journal(str(tmp_path / "journal"), LIMITS) as journal:
        await refused(journal, "this Python has no SQLite")


class Hanging:
    """A database on a disk that does not answer until `released`."""

    Unavailable = Unavailable

    def __init__(self, where: str) -> None:
        self.where = where
        self.released = threading.Event()
        self.recovered: list[Record] = []

    def Database(self, _path: str, _keep: int) -> Hanging:
        self._wait("open")
        return self

    def write(self, *_rows: object) -> None:
        self._wait("write")

    def close(self) -> None:
        self._wait("close")

    def _wait(self, where: str) -> None:
        if self.where == where:
            assert self.released.wait(HANG)


@pytest.mark.parametrize("where", ["open", "write", "close"])
async def test_a_disk_that_hangs_holds_nobody_up(where: str) -> None:
    hanging = Hanging(where)
    begun = trio.current_time()
    async with open_journal("journal", Limits.overridden({"journal_wait": "0.2", "journal_close": "0.2"})) as journal:
        journal._library = hanging
        if where == "close":
            await begin(journal)
        else:
            with pytest.raises(BrokerError, match=r"did not answer within 0.2 s \(limit journal_wait\)"):
                await begin(journal)
            assert journal.records() == []
    assert trio.current_time() - begun < HANG / 2
    hanging.released.set()


async def test_cancelled_at_any_moment_there_is_a_record_or_none(tmp_path: Path) -> None:
    """What was begun is in the file, and what was not begun is not: a call that was never made must not be unknown."""
    path = tmp_path / "journal"
    begun: list[int] = []
    cancelled = 0
    chance = random.Random(7)
    async with open_journal(str(path), LIMITS) as journal:
        begun.append(await begin(journal))

        async def call() -> None:
            nonlocal cancelled
            with trio.move_on_after(chance.uniform(0, 0.004)) as scope:
                begun.append(await begin(journal))
            cancelled += scope.cancelled_caught

        for _ in range(25):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(call)
        assert sorted(one.id for one in journal.records()) == sorted(begun)
    assert len(begun) + cancelled == 101
    assert cancelled
    assert sorted(one.id for one in await read(path)) == sorted(begun)


async def test_leaving_while_everything_is_cancelled_keeps_the_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with trio.CancelScope() as scope:
        async with open_journal(str(path), LIMITS) as journal:
            number = await begin(journal)
            scope.cancel()
            journal.finish(number, TOOL_ERROR)
            await trio.lowlevel.checkpoint()
    assert [one.status for one in await read(path)] == [TOOL_ERROR]


async def test_many_at_once_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    write = database.Database.write

    def counted(self: database.Database, records: list[Record], forgotten: list[int]) -> None:
        writes.append(len(records))
        write(self, records, forgotten)

    monkeypatch.setattr(database.Database, "write", counted)
    async with open_journal(str(tmp_path / "journal"), LIMITS) as journal, trio.open_nursery() as nursery:
        for _ in range(32):
            nursery.start_soon(begin, journal)
    assert sum(writes) >= 32
    assert len(writes) <= 4


MOUNTS = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:26 / /home rw shared:1 - nfs4 server:/home rw
31 30 8:2 / /home/local\\040disk rw - xfs /dev/sdb rw
32 22 0:27 / /mnt/w rw - ext4 /dev/sdc rw
33 22 0:28 / /mnt/w rw - fuse.sshfs host: rw
odd line
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/var/journal", "ext4"),
        ("/homeless/journal", "ext4"),
        ("/home/me/journal", "nfs4"),
        ("/home/local disk/journal", "xfs"),
        ("/mnt/w/journal", "fuse.sshfs"),
    ],
)
def test_file_systems(place: str, kind: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert database._file_system(place, str(mounts)) == kind
    assert database._file_system(place, str(tmp_path / "none")) == ""


async def test_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_file_system", lambda _path: "nfs4")
    async with open_journal(str(tmp_path / "journal"), LIMITS) as journal:
        await refused(journal, r"on a network file system \(nfs4\), whose locks do not hold; name a local file")
    assert os.listdir(tmp_path) == []
