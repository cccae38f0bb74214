"""The judge as a real process: it answers, it is ended when it does not, and nothing of it is left."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
import trio

from repl_trio.broker.tools.judge import Judge, open_judge
from repl_trio.broker.tools.validation import Validation
from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.process.launch import Root
from repl_trio.process.root import open_root

HANG = 60.0
LIMITS = Limits()
CATASTROPHIC = {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
ENDLESS: dict[str, object] = {"a": "a" * 40 + "!"}


@asynccontextmanager
async def opened(**numbers: str) -> AsyncIterator[tuple[Judge, Validation]]:
    limits = Limits.overridden(numbers)
    with trio.fail_after(HANG):
        async with open_root(Root(), limits) as watch, open_judge(watch, limits) as judge:
            yield judge, Validation(limits, judge)


def judges() -> list[psutil.Process]:
    """The processes of judges that live."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("judging" in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what other processes do is no event
        await trio.sleep(0.01)


async def test_it_starts_with_the_first_question_and_judges() -> None:
    async with opened() as (_, validation):
        assert await validation.check({"type": "object"}, {}, "s", "t") == ""
        assert judges() == []
        assert await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t") == ""
        (first,) = judges()
        with pytest.raises(BrokerError, match="/a must match the pattern"):
            await validation.check(CATASTROPHIC, {"a": "b"}, "s", "t")
        assert judges() == [first]
    assert judges() == []


async def test_a_pattern_without_end_ends_in_time_and_the_loop_goes_on() -> None:
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = trio.current_time()
            await trio.sleep(0.005)
            longest = max(longest, trio.current_time() - before)

    async with opened(judge_bound="0.5") as (_, validation), trio.open_nursery() as nursery:
        await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t")
        nursery.start_soon(beat)
        with pytest.raises(BrokerError, match=r"more than 0.5 s \(limit judge_bound\)") as raised:
            await validation.check(CATASTROPHIC, ENDLESS, "s", "t")
        assert (raised.value.code, raised.value.sent) == ("LIMIT_REACHED", "no")
        nursery.cancel_scope.cancel()
        assert await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t") == ""
    # `re` in this process would have stopped it for longer than anybody waits.
    assert longest < 5


async def test_questions_wait_for_their_turn() -> None:
    verdicts: list[bool] = []

    async def ask(judge: Judge, text: str) -> None:
        verdict = await judge.verdict(CATASTROPHIC, "2020-12", {"a": text})
        verdicts.append(bool(verdict.findings) == (text == "b"))

    async with opened() as (judge, _), trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(ask, judge, "b" if number % 3 else "a")
    assert verdicts == [True] * 40


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_judge_that_dies_is_an_error_and_the_next_one_answers(number: int) -> None:
    async with opened(judge_bound="30") as (judge, validation), trio.open_nursery() as nursery:
        await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t")
        (process,) = judges()
        nursery.start_soon(trio.to_thread.run_sync, _kill_when_busy, process, number)
        with pytest.raises(BrokerError, match="died over it"):
            await judge.verdict(CATASTROPHIC, "2020-12", ENDLESS)
        assert await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t") == ""
        assert judges() != [process]


def _kill_when_busy(process: psutil.Process, number: int) -> None:
    before = process.cpu_times().user
    while process.cpu_times().user < before + 0.05:  # it has begun
        process.cpu_percent(0.01)
    os.kill(process.pid, number)


async def test_one_that_died_between_two_questions_is_an_error_once() -> None:
    async with opened() as (_, validation):
        await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t")
        (process,) = judges()
        process.kill()
        await eventually(lambda: not judges())
        with pytest.raises(BrokerError, match="died over it"):
            await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t")
        assert await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t") == ""


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.01, 0.05, 0.1, 0.3])
async def test_cancelled_at_any_moment_nothing_is_left(seconds: float) -> None:
    async with opened(judge_bound="30") as (_, validation):
        with trio.move_on_after(seconds) as scope:
            await validation.check(CATASTROPHIC, ENDLESS, "s", "t")
        assert scope.cancelled_caught
        await eventually(lambda: not judges())
        assert await validation.check(CATASTROPHIC, {"a": "aaa"}, "s", "t") == ""
    assert judges() == []


async def test_leaving_ends_it_at_once() -> None:
    with trio.fail_after(HANG), trio.CancelScope() as scope:
        async with opened() as (judge, _), trio.open_nursery() as nursery:
            nursery.start_soon(judge.verdict, CATASTROPHIC, "2020-12", ENDLESS)
            await eventually(lambda: bool(judges()))
            scope.cancel()
    assert judges() == []


async def test_its_memory_is_bounded() -> None:
    """A thousand errors that quote a million characters each."""
    async with opened(judge_bound="30") as (judge, _):
        schema: Any = {"anyOf": [{"minProperties": 5}] * 2_000}
        with pytest.raises(BrokerError, match="died over it"):
            await judge.verdict(schema, "2020-12", {"a": "x" * 1_000_000})


async def test_one_that_does_not_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl_trio.broker.tools.judge._RUN", "import sys;sys.exit('no')")
    async with opened() as (judge, _):
        with pytest.raises(BrokerError, match="did not come up"):
            await judge.verdict({}, "2020-12", {})
    monkeypatch.setattr("repl_trio.broker.tools.judge._RUN", "import sys;sys.stdin.read()")
    async with opened(judge_start="0.3") as (judge, _):
        with pytest.raises(BrokerError, match=r"within 0.3 s \(limit judge_start\)"):
            await judge.verdict({}, "2020-12", {})


async def test_one_that_talks_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("'{}'", "'nonsense'", '\'{"id":1,"findings":[5],"broken":"","outside":""}\'', "'x'*2000000"):
        program = f"print('{{}}',flush=True);input();print({word},flush=True)"
        monkeypatch.setattr("repl_trio.broker.tools.judge._RUN", program)
        async with opened() as (judge, _):
            with pytest.raises(BrokerError, match="died over it"):
                await judge.verdict({}, "2020-12", {})


async def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("repl_trio.broker.tools.judge.start_piped", full)
    async with opened() as (judge, _):
        with pytest.raises(BrokerError, match="no process could be started"):
            await judge.verdict({}, "2020-12", {})
