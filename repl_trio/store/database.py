"""The journal's file: one SQLite database of one server, durable with every commit.

Blocking; `journal` calls it in a thread, one call at a time. The only file that imports `sqlite3`, and itself imported
with the first use of a journal that has a file.

A lock file beside it (`PATH.lock`) tells who the owner is, which a locked database could not. It is locked for as long
as the server lives and stays when it has ended: removing it would let two servers lock two files of that name.
"""

from __future__ import annotations

import fcntl
import math
import os
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from .records import DISPATCHED, NEXT, OUTCOME_UNKNOWN, Moved, Record, Unavailable

APPLICATION = 0x72746A31
"""How SQLite knows our files from others."""
_FORMAT = 1
_LAST = 1 << 53
"""No number of a record is larger: readers of JSON may know no larger ones exactly, and SQLite knows few more."""
_SCHEMA = """CREATE TABLE record (
    id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, session_id TEXT NOT NULL, project TEXT NOT NULL, server TEXT NOT NULL,
    tool TEXT NOT NULL, started REAL NOT NULL, finished REAL, status TEXT NOT NULL)"""
_COLUMNS = "id, run_id, session_id, project, server, tool, started, finished, status"
#: File systems whose locks or whose syncs do not do what a durable, exclusive file needs.
_NETWORK = frozenset(
    [
        "afs",
        "ceph",
        "cifs",
        "davfs",
        "fuse.ceph",
        "fuse.davfs2",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    ]
)


class Database:
    """An opened journal. Raises `Unavailable` when it cannot be opened, with everything undone.

    `keep` is how many of its records are taken over, the newest; the others are removed.
    """

    def __init__(self, path: str, keep: int) -> None:
        path = os.path.abspath(path)
        self._path = path
        self._keep = keep
        _check_place(path)
        self._lock = _own(path)
        self._connection: sqlite3.Connection | None = None
        try:
            self.recovered = self._open(path)
            self._left = _look(path)
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise Unavailable(f"the journal {path} cannot be used: {_why(error)}") from None
        except BaseException:  # only to undo
            self.close()
            raise

    def _open(self, path: str) -> list[Record]:
        _create(path)
        self._connection = _connect(path)
        _prepare(self._connection)
        # A file that was there before is closed to everybody else, once it is known to be ours.
        os.chmod(path, 0o600)
        return _recover(self._connection, self._keep)

    def write(self, records: Iterable[Record], forgotten: Iterable[int]) -> None:
        """Make this so, all of it or nothing, on disk on return. Raises `Unavailable`; nothing was changed then.

        `Moved` when the file was removed, replaced or written by somebody else: SQLite would go on in a file without a
        name, or from the pages that it remembers, and no later start would find the record.
        """
        assert self._connection is not None
        if _look(self._path) != self._left:
            raise self._moved()
        rows = [
            (
                one.id,
                one.run_id,
                one.session_id,
                one.project,
                one.server,
                one.tool,
                one.started,
                one.finished,
                one.status,
            )
            for one in records
        ]
        try:
            with self._connection as transaction:
                transaction.execute("BEGIN IMMEDIATE")
                transaction.executemany(
                    f"INSERT OR REPLACE INTO record ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
                )
                transaction.executemany("DELETE FROM record WHERE id = ?", [(number,) for number in forgotten])
        except sqlite3.Error as error:
            raise Unavailable(f"the journal could not be written: {_why(error)}") from None
        finally:
            left = _look(self._path)
            moved = left[:2] != self._left[:2]  # in this moment: what was committed may have no name
            self._left = self._left if moved else left
        if moved:
            raise self._moved()

    def _moved(self) -> Moved:
        return Moved(f"the journal {self._path} was removed or changed by something else")

    def close(self) -> None:
        """Let another server have it."""
        if self._connection is not None:
            self._connection.close()
        os.close(self._lock)


def _look(path: str) -> tuple[int, ...]:
    """What changes when the file does; empty when there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _recover(connection: sqlite3.Connection, keep: int) -> list[Record]:
    """The newest records, oldest first; what an earlier server left on its way has an unknown outcome from now on."""
    with connection as transaction:
        transaction.execute("BEGIN IMMEDIATE")
        transaction.execute(
            "UPDATE record SET status = ?, finished = ? WHERE status = ?", (OUTCOME_UNKNOWN, time.time(), DISPATCHED)
        )
        newest = "SELECT id FROM record ORDER BY id DESC LIMIT ?"
        transaction.execute(f"DELETE FROM record WHERE id NOT IN ({newest})", (keep,))
    return [_record(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM record ORDER BY id")]


def _record(row: tuple[Any, ...]) -> Record:
    """A record of the file. Raises `Unavailable` for one that this program has not written."""
    number, *names, started, finished, status = row
    times = [time for time in (started, finished) if time is not None]
    if (
        number not in range(1, _LAST)
        or not all(isinstance(name, str) for name in names)
        or started is None
        or not all(isinstance(time, float) and math.isfinite(time) for time in times)
        or status not in NEXT
    ):
        raise Unavailable(f"the file given with --journal is damaged (its record {number}); move it away")
    return Record(*row)


def _check_place(path: str) -> None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            raise Unavailable(f"the journal {path} cannot be created: {folder} is no directory") from None
    except OSError as error:
        raise Unavailable(f"the journal {path} cannot be used: {_why(error)}") from None
    else:
        # Opening a FIFO would wait for somebody on its other end.
        if not stat.S_ISREG(status.st_mode):
            raise Unavailable(f"the journal {path} is not a regular file")
    kind = _file_system(path)
    if kind in _NETWORK:
        raise Unavailable(
            f"the journal {path} is on a network file system ({kind}), whose locks do not hold; "
            "name a local file with --journal"
        )


def _file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that holds `path`; "" where the system does not tell."""
    place = os.path.realpath(path)
    best, kind = -1, ""
    with suppress(OSError), open(mounts, encoding="utf-8", errors="surrogateescape") as listing:
        for line in listing:
            before, _, after = line.partition(" - ")
            point = before.split()[4].encode().decode("unicode_escape") if len(before.split()) > 4 else ""
            below = point == "/" or place == point or place.startswith(f"{point}/")
            # The last mount at a point covers those before it.
            if point and below and len(point) >= best:
                best, kind = len(point), after.split()[0] if after.split() else ""
    return kind


def _own(path: str) -> int:
    """The descriptor of the locked lock file. Raises `Unavailable`, naming the owner when there is one."""
    name = f"{path}.lock"
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise Unavailable(f"the journal {path} cannot be used: its lock file {name}: {_why(error)}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        started = time.strftime("%Y-%m-%d %H:%M:%S %z")
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"pid {os.getpid()} on {socket.gethostname()}, since {started}\n".encode(), 0)
    except BlockingIOError:
        owner = os.pread(lock, 300, 0).decode("utf-8", "replace").strip()
        os.close(lock)
        raise Unavailable(
            f"the journal {path} belongs to another server ({owner or 'which does not say who it is'}); end that one, "
            "or give this one a journal of its own with --journal"
        ) from None
    except OSError as error:
        os.close(lock)
        raise Unavailable(f"the journal {path} cannot be used: its lock file {name}: {_why(error)}") from None
    return lock


def _create(path: str) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600))


def _connect(path: str) -> sqlite3.Connection:
    # trio's threads come and go; there is one call at a time. No busy wait of SQLite's: nothing can end it.
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection) -> None:
    """Check that the file is a journal, or make an empty one. A stranger's database is left as it is."""
    application = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION and (tables or application or version):
        raise Unavailable("the file given with --journal is a database of another program; it was not changed")
    if application == APPLICATION and version != _FORMAT:
        raise Unavailable(
            f"the file given with --journal has format {version}, and this version knows {_FORMAT}; it was not changed"
        )
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    # A rollback journal that is overwritten and synced: with DELETE a commit could be undone by a power failure, and
    # WAL has a race that commonly linked versions of SQLite do not have mended.
    connection.execute("PRAGMA journal_mode = PERSIST")
    connection.execute("PRAGMA synchronous = FULL")
    if sys.platform == "darwin":
        connection.execute("PRAGMA fullfsync = ON")
    if not tables:
        with connection as transaction:
            transaction.execute("BEGIN IMMEDIATE")
            transaction.execute(_SCHEMA)
            transaction.execute(f"PRAGMA application_id = {APPLICATION}")
            transaction.execute(f"PRAGMA user_version = {_FORMAT}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _why(error: BaseException) -> str:
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno else "it failed"
    reasons = {
        sqlite3.SQLITE_BUSY: "another program has it open",
        sqlite3.SQLITE_FULL: "the disk is full",
        sqlite3.SQLITE_READONLY: "it, or its folder, is read-only",
        sqlite3.SQLITE_NOTADB: "it is no SQLite database; it was not changed",
        sqlite3.SQLITE_CORRUPT: "it is damaged; move it away",
        sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
        sqlite3.SQLITE_IOERR: "the disk reports an error",
    }
    code = getattr(error, "sqlite_errorcode", None)
    return reasons.get(code & 0xFF if isinstance(code, int) else -1, str(error) or type(error).__name__)
