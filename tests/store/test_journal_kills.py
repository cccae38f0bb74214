"""SIGKILL at any moment: every call whose record was durable is in the file afterwards."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from repl_trio.store.records import COMPLETED, OUTCOME_UNKNOWN, Record

from .journals import read

DRIVER = Path(__file__).with_name("journal_driver.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seed", range(8))
def test_killed_at_any_moment_every_call_that_was_begun_is_there(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    chance = random.Random(seed)
    begun: set[int] = set()
    ended: set[int] = set()
    for _life in range(2):
        lines = run_and_kill(path, chance.randrange(1, 60))
        begun |= {int(number) for word, number in lines if word == "begun"}
        ended |= {int(number) for word, number in lines if word == "ended"}
        records = {one.id: one for one in trio.run(read_all, path)}
        assert begun <= set(records)
        assert {one.status for one in records.values()} <= {COMPLETED, OUTCOME_UNKNOWN}
        assert all(records[number].status == OUTCOME_UNKNOWN for number in begun - ended if number % 2 == 0)


def run_and_kill(path: Path, after: int) -> list[tuple[str, str]]:
    """Run the driver until it has printed some lines, and kill it; all that it has printed."""
    with subprocess.Popen(
        [sys.executable, str(DRIVER), str(path)], stdout=subprocess.PIPE, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ) as driver:
        assert driver.stdout is not None
        lines = [driver.stdout.readline() for _ in range(after)]
        driver.kill()
        lines += driver.stdout.readlines()
    words = [line.decode().split() for line in lines if line.endswith(b"\n")]
    return [(word, number) for word, number in words]


async def read_all(path: Path) -> list[Record]:
    return await read(path, journal_records="100000")
