"""A session's rules: who may run, in which generation, and how each run ends. No process, no real time."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from repl_trio.errors import Busy, SessionClosing, StateChanged, UnknownRun, WorkerStartFailed
from repl_trio.limits import Limits
from repl_trio.session import session as module
from repl_trio.session.run import Run
from repl_trio.session.session import Session, Surroundings
from repl_trio.values import CLEARED, PRESERVED, Cell
from tests.fakes.generation import FakeGeneration, Workshop

INT, TERM, KILL, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, 10
ENDLESS = Cell("while True: pass", 10.0)
QUICK = Cell("1 + 1", 10.0)
HANG = 100.0
"""seconds on the mocked clock. Beyond every limit of a session."""


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop()
    monkeypatch.setattr(module, "start_worker", made.start_worker)
    monkeypatch.setattr(module, "open_generation", made.open_generation)
    return made


@asynccontextmanager
async def open_session(limits: Limits | None = None) -> AsyncIterator[tuple[Session, Surroundings]]:
    numbers = count(1)
    with trio.fail_after(HANG):
        async with trio.open_nursery() as nursery:
            surroundings = Surroundings(nursery, limits or Limits(), {}, lambda: f"r{next(numbers)}")
            session = Session("s1", "one", str(Path.cwd()), None, surroundings)
            try:
                yield session, surroundings
            finally:
                nursery.cancel_scope.cancel()


def answering(workshop: Workshop) -> None:
    """Every worker made from now on answers each cell at once."""

    def prepare(generation: FakeGeneration) -> None:
        generation.on_begin = lambda run: trio.lowlevel.current_trio_token().run_sync_soon(generation.answer)

    workshop.on_made = prepare


async def finish(session: Session, cell: Cell = QUICK, *, reset: bool = False) -> Run:
    run = await session.start(cell, reset=reset)
    await run.answered.wait()
    return run


def on_signal(generation: FakeGeneration, number: int, target: str, reaction: Callable[[], None]) -> None:
    """Make the worker react to the first such signal."""

    def react(got: int, where: str) -> None:
        if (got, where) == (number, target) and generation.runs[-1].reply is None:
            reaction()

    generation.guard.on_signal = react


# -- the ordinary run ------------------------------------------------------------------------------------------


async def test_the_first_cell_starts_a_worker_and_the_next_one_finds_it(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    answering(workshop)
    async with open_session() as (session, _):
        first = await finish(session)
        second = await finish(session)
    assert [made.number for made in workshop.made] == [1]
    assert first.result is not None
    assert second.result is not None
    assert (first.result.success, first.result.state, first.result.state_reset) == (True, PRESERVED, True)
    assert (second.result.generation, second.result.state_reset) == (1, False)
    assert workshop.newest.guard.signals == []


async def test_a_run_that_ends_by_itself_leaves_the_deadline_behind(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    answering(workshop)
    async with open_session() as (session, _):
        await finish(session, Cell("", 0.5))
        await trio.sleep(5)
        assert workshop.newest.guard.signals == []
        assert (await finish(session)).result is not None


async def test_the_time_of_a_start_is_not_taken_from_the_cell(autojump_clock: MockClock, workshop: Workshop) -> None:
    answering(workshop)
    workshop.delay = 20.0
    async with open_session() as (session, _):
        run = await finish(session, Cell("", 1.0))
    assert run.result is not None
    assert run.result.success


async def test_an_exception_of_the_cell_is_a_completed_run(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, _):
        run = await session.start(QUICK)
        await wait_all_tasks_blocked()
        workshop.newest.answer(success=False, error="ValueError: no", error_type="ValueError")
        assert run.result is not None
        assert (run.result.success, run.result.state, run.result.error_code) == (False, PRESERVED, "EXCEPTION")
        assert workshop.newest.guard.signals == []


# -- the ladder ------------------------------------------------------------------------------------------------


async def test_a_deadline_climbs_every_rung_at_its_time(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, _):
        run = await finish(session, ENDLESS)
        guard = workshop.newest.guard
    assert guard.signals == [
        (10.0, INT, "child"),
        (10.3, INT, "run"),
        (11.0, INT, "child"),
        (11.0, INT, "run"),
        (11.9, USR1, "child"),
        (12.0, TERM, "tree"),
    ]
    assert workshop.newest.stops[:1] == ["kill"]
    assert run.result is not None
    assert (run.result.error_code, run.result.state, run.result.elapsed_ms) == ("TIMEOUT", CLEARED, 12_250)
    assert "timed out" in (run.result.error or "")
    assert "10 s" in (run.result.error or "")


async def test_a_kill_names_the_line_that_was_stuck(autojump_clock: MockClock, workshop: Workshop) -> None:
    workshop.on_made = lambda made: setattr(made, "words", 'File "<repl:r1>", line 1 in <module>')
    async with open_session() as (session, _):
        run = await finish(session, ENDLESS)
    assert run.result is not None
    assert '<repl:r1>", line 1' in (run.result.error or "")


@pytest.mark.parametrize(
    ("number", "target", "elapsed"),
    [(INT, "child", 10_000), (INT, "run", 10_300), (USR1, "child", 11_900), (TERM, "tree", 12_000)],
)
async def test_the_climb_stops_where_the_worker_answers(
    autojump_clock: MockClock, workshop: Workshop, number: int, target: str, elapsed: int
) -> None:
    async with open_session() as (session, _):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        generation = workshop.newest
        on_signal(generation, number, target, lambda: generation.answer(success=False, error="KI", interrupted=True))
        await run.answered.wait()
    assert run.result is not None
    assert (run.result.state, run.result.error_code, run.result.elapsed_ms) == (PRESERVED, "TIMEOUT", elapsed)
    # The last one takes what the run started and left; nothing comes after it.
    assert generation.guard.signals[-2][1:] == (number, target)
    assert generation.guard.signals[-1][1:] == (KILL, "run")


async def test_a_cancel_is_a_deadline_that_says_who_asked(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, _):
        run = await session.start(ENDLESS)
        await trio.sleep(3)
        generation = workshop.newest
        on_signal(generation, INT, "child", lambda: generation.answer(success=False, interrupted=True, error="KI"))
        run.cancel("python_cancel")
        run.cancel("somebody else")
        assert run.status == "cancelling"
        await run.answered.wait()
    assert run.result is not None
    assert run.result.error_code == "CANCELLED"
    assert "python_cancel" in (run.result.error or "")
    assert generation.guard.signals == [(3.0, INT, "child"), (3.0, KILL, "run")]


async def test_a_result_that_crosses_its_cancel_is_kept_and_its_processes_are_not(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    async with open_session() as (session, _):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        run.cancel("python_cancel")
        workshop.newest.answer(return_value="2", value=2, has_value=True)
        await run.answered.wait()
    assert run.result is not None
    assert (run.result.success, run.result.value, run.result.state) == (True, 2, PRESERVED)
    assert [(number, target) for _, number, target in workshop.newest.guard.signals] == [(KILL, "run")]


async def test_a_result_that_comes_with_the_kill_does_not_save_the_namespace(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    async with open_session() as (session, _):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        generation = workshop.newest
        on_signal(generation, TERM, "tree", lambda: generation.die("The worker was ended by SIGTERM"))
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.state, run.result.error_code) == (CLEARED, "TIMEOUT")
        assert not session.alive


async def test_a_server_that_ends_climbs_the_short_ladder(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, surroundings):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        surroundings.shutting_down = True
        await session.close("the server is shutting down")
        assert run.result is not None
        assert run.result.elapsed_ms == 1_200
    assert workshop.newest.guard.signals == [(0.0, INT, "child"), (0.0, INT, "run"), (0.8, TERM, "tree")]


# -- the death of a worker -------------------------------------------------------------------------------------


async def test_a_worker_that_dies_under_its_cell_is_said_and_said_again(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    async with open_session() as (session, _):
        run = await session.start(QUICK)
        await wait_all_tasks_blocked()
        workshop.newest.die("The worker was ended by SIGSEGV")
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.success, run.result.state, run.result.error_code) == (False, CLEARED, "WORKER_DIED")
        assert "SIGSEGV" in (run.result.error or "")
        answering(workshop)
        second = await finish(session)
        assert second.result is not None
        assert (second.result.generation, second.result.state_reset) == (2, True)
        assert "SIGSEGV" in (second.result.lost or "")
        third = await finish(session)
        assert third.result is not None
        assert third.result.lost is None


async def test_a_reset_is_no_loss(autojump_clock: MockClock, workshop: Workshop) -> None:
    answering(workshop)
    async with open_session() as (session, _):
        await finish(session)
        run = await finish(session, reset=True)
    assert run.result is not None
    assert (run.result.generation, run.result.state_reset, run.result.lost) == (2, True, None)
    assert workshop.made[0].stops[0] == "stop"


async def test_a_worker_that_is_unfit_is_cleared(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, _):
        run = await session.start(QUICK)
        await wait_all_tasks_blocked()
        workshop.newest.answer(keep=False, success=False, error="a thread is still running")
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.state, run.result.error_code) == (CLEARED, "UNFINISHED_WORK")
        assert "thread" in (run.result.error or "")
        assert not session.alive


async def test_a_start_that_fails_ends_the_run_and_is_tried_again(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    workshop.problem = WorkerStartFailed("No worker came up. The cell did not run.")
    async with open_session() as (session, _):
        run = await finish(session)
        assert run.result is not None
        assert (run.result.success, run.result.error_code) == (False, "WORKER_START_FAILED")
        workshop.problem = None
        answering(workshop)
        again = await finish(session)
    assert again.result is not None
    # A generation that never became ready has no number.
    assert (again.result.success, again.result.generation) == (True, 1)


async def test_a_cancel_during_the_start_runs_nothing(autojump_clock: MockClock, workshop: Workshop) -> None:
    workshop.delay = 20.0
    async with open_session() as (session, _):
        run = await session.start(QUICK)
        await trio.sleep(1)
        run.cancel("python_cancel")
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.success, run.result.error_code) == (False, "CANCELLED")
        assert "did not run" in (run.result.error or "")
        assert workshop.newest.runs == []
        workshop.delay = 0.0
        answering(workshop)
        again = await finish(session)
        assert again.result is not None
        assert again.result.generation == 1


# -- one run at a time -----------------------------------------------------------------------------------------


async def test_a_second_run_is_refused_at_once_and_names_the_first(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    async with open_session() as (session, _):
        first = await session.start(ENDLESS)
        await trio.sleep(2)
        before = trio.current_time()
        with pytest.raises(Busy, match=first.id) as refused:
            await session.start(QUICK)
        assert trio.current_time() == before
        assert (refused.value.run_id, refused.value.state) == (first.id, PRESERVED)
        assert [run.id for run in session.runs] == [first.id]
        assert len(workshop.newest.runs) == 1


async def test_a_second_run_is_refused_while_the_first_one_is_starting(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    workshop.delay = 5.0
    async with open_session() as (session, _):
        first = await session.start(QUICK)
        with pytest.raises(Busy, match=first.id):
            await session.start(QUICK)


async def test_a_new_run_waits_for_the_clean_up_of_a_cancelled_one(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    async with open_session() as (session, _):
        first = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        generation = workshop.newest
        on_signal(generation, INT, "run", lambda: generation.answer(success=False, interrupted=True, error="KI"))
        first.cancel("python_cancel")
        second = await session.start(QUICK)
        assert first.finished
        assert generation.runs == [first, second]
        generation.answer()
        assert second.result is not None
        assert second.result.success


async def test_the_wait_for_a_clean_up_has_an_end(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, _):
        first = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        generation = workshop.newest

        async def deaf(number: int, target: str, *, since: int | None = None) -> int:
            await trio.sleep(60)
            return 0

        generation.guard.signal = deaf  # type: ignore[method-assign]
        first.cancel("python_cancel")
        before = trio.current_time()
        with pytest.raises(Busy, match=first.id):
            await session.start(QUICK)
        assert trio.current_time() - before == Limits().busy_wait


async def test_only_one_of_two_that_wait_gets_the_session(autojump_clock: MockClock, workshop: Workshop) -> None:
    outcomes: list[str] = []

    async def ask(session: Session) -> None:
        try:
            await session.start(QUICK)
        except Busy:
            outcomes.append("busy")
        else:
            outcomes.append("began")

    async with open_session() as (session, _):
        first = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        generation = workshop.newest
        on_signal(generation, INT, "child", lambda: generation.answer(success=False, interrupted=True, error="KI"))
        first.cancel("python_cancel")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, session)
            nursery.start_soon(ask, session)
        assert sorted(outcomes) == ["began", "busy"]
        assert len(generation.runs) == 2


# -- expected_generation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [1, 2])
async def test_a_session_that_never_started_is_generation_0(
    autojump_clock: MockClock, workshop: Workshop, expected: int
) -> None:
    answering(workshop)
    async with open_session() as (session, _):
        with pytest.raises(StateChanged, match="generation 0"):
            await session.start(QUICK, expected_generation=expected)
        assert workshop.made == []
        run = await session.start(QUICK, expected_generation=0)
        await run.answered.wait()
        assert run.generation == 1


@pytest.mark.parametrize("expected", [0, 2])
async def test_a_generation_that_does_not_match_runs_nothing(
    autojump_clock: MockClock, workshop: Workshop, expected: int
) -> None:
    answering(workshop)
    async with open_session() as (session, _):
        await finish(session)
        with pytest.raises(StateChanged, match="generation 1") as refused:
            await session.start(QUICK, expected_generation=expected)
        assert refused.value.state == PRESERVED
        run = await session.start(QUICK, expected_generation=1)
        await run.answered.wait()
    assert len(workshop.newest.runs) == 2


async def test_the_generation_is_compared_before_the_reset(autojump_clock: MockClock, workshop: Workshop) -> None:
    answering(workshop)
    async with open_session() as (session, _):
        await finish(session)
        with pytest.raises(StateChanged):
            await session.start(QUICK, reset=True, expected_generation=2)
        assert workshop.newest.alive
        run = await session.start(QUICK, reset=True, expected_generation=1)
        await run.answered.wait()
        assert run.generation == 2


async def test_a_dead_worker_is_a_mismatch(autojump_clock: MockClock, workshop: Workshop) -> None:
    answering(workshop)
    async with open_session() as (session, _):
        await finish(session)
        workshop.newest.die("The worker exited with code 0")
        with pytest.raises(StateChanged, match="generation 1 is gone") as refused:
            await session.start(QUICK, expected_generation=1)
        assert refused.value.state == CLEARED
        run = await session.start(QUICK, expected_generation=2)
        await run.answered.wait()
        assert run.generation == 2


# -- retained runs and the end ---------------------------------------------------------------------------------


async def test_the_newest_runs_are_retained_and_no_more(autojump_clock: MockClock, workshop: Workshop) -> None:
    answering(workshop)
    limits = Limits.overridden({"runs_retained": "3"})
    async with open_session(limits) as (session, _):
        runs = [await finish(session) for _ in range(3)]
        assert session.run(runs[0].id) is runs[0]
        runs.append(await finish(session))
        assert [run.id for run in session.runs] == [run.id for run in runs[1:]]
        assert session.run(None) is runs[-1]
        with pytest.raises(UnknownRun, match="3 newest"):
            session.run(runs[0].id)


async def test_a_session_without_a_run_has_no_latest_one(autojump_clock: MockClock) -> None:
    async with open_session() as (session, _):
        with pytest.raises(UnknownRun):
            session.run(None)


async def test_a_closed_session_ends_its_run_and_takes_no_other(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, _):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        generation = workshop.newest
        on_signal(generation, INT, "child", lambda: generation.answer(success=False, interrupted=True, error="KI"))
        await session.close("its session was closed")
        assert run.result is not None
        assert run.result.error_code == "CANCELLED"
        assert "closed" in (run.result.error or "")
        assert generation.stops == ["stop"]
        with pytest.raises(SessionClosing):
            await session.start(QUICK)


async def test_a_run_whose_server_stops_waiting_is_answered_all_the_same(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    async with open_session() as (session, surroundings):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        surroundings.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await run.answered.wait()
        assert run.result is not None
        assert (run.result.success, run.result.error_code) == (False, "SESSION_CLOSING")
