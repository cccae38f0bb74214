"""The journal's file removed, replaced or written by something else while a server has it open, or far too large.

Whatever becomes of the file: no call is begun whose record the next server would not find.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from repl_trio.store import database
from repl_trio.store.journal import open_journal
from repl_trio.store.records import COMPLETED, OUTCOME_UNKNOWN

from .journals import LIMITS, begin, read, refused


def removed(path: Path) -> None:
    path.unlink()


def removed_with_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.mkdir()


def replaced_by_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".copy"))
    os.replace(path.with_suffix(".copy"), path)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def touched(path: Path) -> None:
    os.utime(path, ns=(0, 0))


@pytest.mark.parametrize("change", [removed, removed_with_its_folder, replaced_by_a_copy, emptied, touched])
async def test_every_record_is_in_the_file_that_the_next_server_opens(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "folder" / "journal"
    path.parent.mkdir()
    async with open_journal(str(path), LIMITS) as journal:
        journal.finish(await begin(journal, "before"), COMPLETED)
        under_way = await begin(journal, "under way")
        change(path)
        late = await begin(journal, "after")
        assert journal.state == str(path)
        copied = tmp_path / "as it was when the server was killed"
        shutil.copy(path, copied)
        journal.finish(under_way, COMPLETED)
    assert [(one.tool, one.status) for one in await read(copied)] == [
        ("before", COMPLETED),
        ("under way", OUTCOME_UNKNOWN),
        ("after", OUTCOME_UNKNOWN),
    ]
    after = {one.tool: one.status for one in await read(path)}
    assert after == {"before": COMPLETED, "under way": COMPLETED, "after": OUTCOME_UNKNOWN}
    assert late == 3


async def test_removed_in_the_midst_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    async with open_journal(str(path), LIMITS) as journal:
        await begin(journal, "one")
        looks: list[tuple[int, ...]] = []

        def look(place: str, look: Callable[[str], tuple[int, ...]] = database._look) -> tuple[int, ...]:
            looks.append(look(place))
            if len(looks) == 1:
                path.unlink()
            return looks[-1]

        with monkeypatch.context() as patch:
            patch.setattr(database, "_look", look)
            await begin(journal, "two")
    assert [one.tool for one in await read(path)] == ["one", "two"]


async def test_another_journal_in_its_place_is_left_alone_until_it_is_moved_away(tmp_path: Path) -> None:
    path, other = tmp_path / "journal", tmp_path / "other"
    for place, tool in ((path, "mine"), (other, "the other's")):
        async with open_journal(str(place), LIMITS) as journal:
            journal.finish(await begin(journal, tool), COMPLETED)
    async with open_journal(str(path), LIMITS) as journal:
        await begin(journal, "mine, too")
        os.replace(other, path)
        for _ in range(2):
            await refused(journal, "was replaced by another journal .* move that one away, or restart this server")
        os.rename(path, other)
        await begin(journal, "and this")
    assert [one.tool for one in await read(path)] == ["mine", "mine, too", "and this"]
    assert [one.tool for one in await read(other)] == ["the other's"]


async def test_something_else_in_its_place_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with open_journal(str(path), LIMITS) as journal:
        await begin(journal)
        path.write_bytes(b"no database at all " * 500)
        await refused(journal, "no SQLite database; it was not changed")
    assert path.read_bytes().startswith(b"no database at all")


def insert(path: Path, *values: object) -> None:
    """Write a record as this program does not."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"INSERT INTO record ({database._COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.close()


async def test_of_a_file_with_too_many_records_the_newest_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with open_journal(str(path), LIMITS) as journal:
        for number in range(5):
            await begin(journal, str(number))
    assert [one.tool for one in await read(path, journal_records="3")] == ["2", "3", "4"]
    assert [one.tool for one in await read(path)] == ["2", "3", "4"]


@pytest.mark.parametrize(
    "values",
    [
        ((1 << 63) - 1, "r", "s", "p", "s", "t", 1.0, 2.0, COMPLETED),
        (7, b"\xff", "s", "p", "s", "t", 1.0, 2.0, COMPLETED),
        (7, "r", "s", "p", "s", "t", float("inf"), 2.0, COMPLETED),
        (7, "r", "s", "p", "s", "t", "soon", 2.0, COMPLETED),
        (7, "r", "s", "p", "s", "t", 1.0, 2.0, "fine"),
    ],
)
async def test_a_record_that_this_program_cannot_have_written_is_damage(
    tmp_path: Path, values: tuple[object, ...]
) -> None:
    path = tmp_path / "journal"
    async with open_journal(str(path), LIMITS) as journal:
        await begin(journal)
    insert(path, *values)
    async with open_journal(str(path), LIMITS) as journal:
        await refused(journal, f"is damaged .its record {values[0]}.; move it away")
