"""The journal: what it remembers, what it refuses, and that it is true after every ending."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.store.journal import open_journal
from repl_trio.store.records import COMPLETED, DISPATCHED, NEXT, OUTCOME_UNKNOWN, TOOL_ERROR, Record

from .journals import HANG, LIMITS, begin, read, refused

ROOT = Path(__file__).resolve().parents[2]
STATUSES = (DISPATCHED, COMPLETED, TOOL_ERROR, OUTCOME_UNKNOWN)


@pytest.fixture(params=["in memory", "in a file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "in memory" else str(tmp_path / "journal")


async def test_a_record_says_who_where_and_how(path: str | None) -> None:
    async with open_journal(path, LIMITS) as journal:
        number = await journal.begin("run-1", "session-1", "/project", "tracker", "create_issue")
        (record,) = journal.records()
        assert record.as_json() == {
            "id": number,
            "run_id": "run-1",
            "session_id": "session-1",
            "project": "/project",
            "server": "tracker",
            "tool": "create_issue",
            "started": record.started,
            "finished": None,
            "status": DISPATCHED,
        }
        journal.finish(number, COMPLETED)
        (record,) = journal.records()
        assert record.status == COMPLETED
        assert record.finished is not None
        assert record.finished >= record.started


@pytest.mark.parametrize("first", STATUSES)
@pytest.mark.parametrize("second", STATUSES)
async def test_what_a_record_may_become(first: str, second: str) -> None:
    async with open_journal(None, LIMITS) as journal:
        number = await begin(journal)
        journal.finish(number, first)
        journal.finish(number, second)
        late = first in (DISPATCHED, OUTCOME_UNKNOWN) and second in (COMPLETED, TOOL_ERROR)
        unknown = first == DISPATCHED and second == OUTCOME_UNKNOWN
        assert journal.records()[0].status == (second if late or unknown else first)
    assert set(NEXT) == set(STATUSES)


async def test_the_oldest_finished_one_goes_first(path: str | None) -> None:
    async with open_journal(path, Limits.overridden({"journal_records": "3"})) as journal:
        first, second, third = [await begin(journal) for _ in range(3)]
        journal.finish(third, COMPLETED)
        journal.finish(second, OUTCOME_UNKNOWN)
        fourth = await begin(journal)
        assert [record.id for record in journal.records()] == [first, third, fourth]
        journal.finish(second, COMPLETED)  # a late answer to what is forgotten
        fifth = await begin(journal)
        assert [record.id for record in journal.records()] == [first, fourth, fifth]
        with pytest.raises(BrokerError, match=r"3 calls are on their way.*3 \(limit journal_records\)") as raised:
            await begin(journal)
        assert raised.value.code == "LIMIT_REACHED"
    if path is not None:
        assert [record.id for record in await read(Path(path))] == [first, fourth, fifth]


async def test_a_call_that_never_left_leaves_no_record(path: str | None) -> None:
    async with open_journal(path, LIMITS) as journal:
        first, second = await begin(journal), await begin(journal)
        journal.withdraw(first)
        journal.withdraw(first)
        journal.finish(first, COMPLETED)
        assert [record.id for record in journal.records()] == [second]
    if path is not None:
        assert [record.id for record in await read(Path(path))] == [second]


async def test_memory_alone_touches_nothing() -> None:
    async with open_journal(None, LIMITS) as journal:
        await begin(journal)
        await journal.load()
        assert journal.state == "in memory"


async def test_nothing_is_opened_before_its_first_use(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal"), LIMITS) as journal:
        assert journal.state.endswith("not opened yet")
        await trio.testing.wait_all_tasks_blocked()
    assert os.listdir(tmp_path) == []


def test_an_idle_journal_does_not_load_sqlite() -> None:
    source = (
        "import sys, trio\nfrom repl_trio.limits import Limits\nfrom repl_trio.store.journal import open_journal\n"
        "async def main():\n async with open_journal('/nowhere/x', Limits()): pass\n"
        "trio.run(main); sys.exit('sqlite3' in sys.modules)"
    )
    # Coverage keeps what it measures in SQLite.
    env = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE_")}
    assert subprocess.run([sys.executable, "-c", source], cwd=ROOT, env=env, timeout=HANG).returncode == 0


async def test_the_file_survives_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with open_journal(str(path), LIMITS) as journal:
        done, failed, left = [await begin(journal, name) for name in ("done", "failed", "left")]
        journal.finish(done, COMPLETED)
        journal.finish(failed, TOOL_ERROR)
        for name in os.listdir(tmp_path):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
    async with open_journal(str(path), LIMITS) as journal:
        await journal.load()
        assert [(one.id, one.status) for one in journal.records()] == [
            (done, COMPLETED),
            (failed, TOOL_ERROR),
            (left, OUTCOME_UNKNOWN),
        ]
        assert all(one.finished is not None for one in journal.records())
        assert await begin(journal) == left + 1
        journal.finish(left, COMPLETED)
    assert [one.status for one in await read(path)] == [COMPLETED, TOOL_ERROR, COMPLETED, OUTCOME_UNKNOWN]


def test_neither_arguments_nor_results_are_there() -> None:
    kept = ("id", "run_id", "session_id", "project", "server", "tool", "started", "finished", "status")
    assert Record.__slots__ == kept


async def test_names_that_sqlite_would_not_take(tmp_path: Path) -> None:
    async with open_journal(str(tmp_path / "journal"), LIMITS) as journal:
        await begin(journal, "\ud800" + "x" * 1_000 + "\0")
        journal.finish(await begin(journal, "a\0b"), COMPLETED)
    records = await read(tmp_path / "journal")
    assert [len(one.tool) for one in records] == [200, 3]


async def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with open_journal(str(path), LIMITS) as journal:
        await begin(journal)
    path.chmod(0o666)
    await read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_second_server_is_told_who_owns_it_and_gets_it_afterwards(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    async with open_journal(path, LIMITS) as second:
        async with open_journal(path, LIMITS) as first:
            await begin(first)
            await refused(second, rf"belongs to another server \(pid {os.getpid()} on .*, since .*--journal")
            await refused(second, "belongs to another server")
            assert second.records() == []
            await begin(first)
        assert await begin(second) == 3
        assert [one.status for one in second.records()] == [OUTCOME_UNKNOWN, OUTCOME_UNKNOWN, DISPATCHED]
        assert second.state == path
