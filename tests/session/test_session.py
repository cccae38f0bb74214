"""A session's rules: who may run, in which generation, and how each run ends. No process, no real time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from repl_trio.errors import Busy, SessionClosing, StateChanged, UnknownRun, WorkerStartFailed
from repl_trio.limits import Limits
from repl_trio.session.session import Session
from repl_trio.values import CLEARED, PRESERVED, Cell
from tests.fakes.generation import Workshop
from tests.fakes.session import ENDLESS, INT, QUICK, answering, finish, on_signal, open_session

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


async def test_a_process_that_cannot_be_started_ends_the_run_alone(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    workshop.fault = OSError(11, "Resource temporarily unavailable")
    async with open_session() as (session, _):
        run = await finish(session)
        assert run.result is not None
        assert (run.result.success, run.result.error_code) == (False, "WORKER_START_FAILED")
        assert "temporarily unavailable" in (run.result.error or "")
        workshop.fault = None
        answering(workshop)
        again = await finish(session)
    assert again.result is not None
    assert again.result.success


async def test_a_worker_that_dies_between_its_start_and_its_cell_is_told(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    workshop.delay = 1.0
    async with open_session() as (session, _):
        run = await session.start(QUICK)
        await trio.sleep(0.5)
        workshop.newest.die("The worker exited with code 1")
        await run.answered.wait()
        assert run.result is not None
        assert (run.result.success, run.result.error_code) == (False, "WORKER_START_FAILED")
        assert "code 1" in (run.result.error or "")
        assert workshop.newest.runs == []


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

        async def deaf(number: int, target: str, *, since: object = None) -> int:
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
        with pytest.raises(StateChanged, match="generation 0") as refused:
            await session.start(QUICK, expected_generation=expected)
        assert refused.value.state == PRESERVED  # there never was a namespace to lose
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
