"""How a run is stopped: which signal goes where, when, and what is told afterwards. No process, no real time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from repl_trio.limits import Limits
from repl_trio.values import CLEARED, PRESERVED
from tests.fakes.generation import Workshop
from tests.fakes.session import ENDLESS, INT, KILL, TERM, URG, USR1, finish, on_signal, open_session


async def test_a_deadline_climbs_every_rung_at_its_time(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, _):
        run = await finish(session, ENDLESS)
        guard = workshop.newest.guard
    assert guard.signals == [
        (10.0, INT, "child"),
        (10.3, URG, "child"),
        (10.3, INT, "run"),
        (11.0, INT, "child"),
        (11.0, INT, "run"),
        (11.3, URG, "child"),
        (11.3, INT, "run"),
        (11.9, USR1, "child"),
        (12.0, TERM, "tree"),
    ]
    assert workshop.newest.stops[:1] == ["kill"]
    assert run.result is not None
    assert (run.result.error_code, run.result.state, run.result.elapsed_ms) == ("TIMEOUT", CLEARED, 12_250)
    assert "timed out" in (run.result.error or "")
    assert "10 s" in (run.result.error or "")
    assert [(step.name, round(step.after, 3), step.processes) for step in run.result.steps] == [
        ("interrupt", 0.0, 1),
        ("insist", 0.3, 1),
        ("interrupt children", 0.3, 1),
        ("interrupt again", 1.0, 1),
        ("interrupt children again", 1.0, 1),
        ("insist again", 1.3, 1),
        ("interrupt children once more", 1.3, 1),
        ("dump", 1.9, 1),
        ("terminate", 2.0, 1),
        ("kill", 2.25, 1),
    ]


async def test_a_run_that_ends_by_itself_was_stopped_by_nothing(autojump_clock: MockClock, workshop: Workshop) -> None:
    async with open_session() as (session, _):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        workshop.newest.answer()
        await run.answered.wait()
    assert run.result is not None
    assert run.result.steps == ()


async def test_a_kill_names_the_line_that_was_stuck(autojump_clock: MockClock, workshop: Workshop) -> None:
    workshop.on_made = lambda made: setattr(made, "words", 'File "<repl:r1>", line 1 in <module>')
    async with open_session() as (session, _):
        run = await finish(session, ENDLESS)
    assert run.result is not None
    assert '<repl:r1>", line 1' in (run.result.error or "")


@pytest.mark.parametrize(
    ("number", "target", "elapsed"),
    [
        (INT, "child", 10_000),
        (URG, "child", 10_300),
        (INT, "run", 10_300),
        (USR1, "child", 11_900),
        (TERM, "tree", 12_000),
    ],
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


@pytest.mark.parametrize(("met", "error_code"), [(1, "TIMEOUT"), (0, None)])
async def test_a_cell_that_goes_on_after_its_command_was_interrupted_has_not_succeeded(
    autojump_clock: MockClock, workshop: Workshop, met: int, error_code: str | None
) -> None:
    """os.system takes the worker's SIGINT away, so only the signal to the command tells that the run was stopped."""
    async with open_session() as (session, _):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        generation = workshop.newest
        generation.guard.met = met
        on_signal(generation, INT, "run", lambda: generation.answer(return_value="2", value=2, has_value=True))
        await run.answered.wait()
    assert run.result is not None
    assert (run.result.success, run.result.error_code) == (error_code is None, error_code)
    assert run.result.state == PRESERVED


async def test_a_cell_that_the_worker_has_not_read_yet_can_be_stopped(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    workshop.on_made = lambda made: setattr(made, "delivery", 50.0)
    async with open_session() as (session, _):
        run = await finish(session, ENDLESS)
    assert run.result is not None
    assert (run.result.error_code, run.result.elapsed_ms) == ("TIMEOUT", 12_250)


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
        await trio.sleep(2)
        surroundings.shutting_down = True
        await session.close("the server is shutting down")
        assert run.result is not None
        assert run.result.elapsed_ms == 3_200
    assert workshop.newest.guard.signals == [(2.0, INT, "child"), (2.0, INT, "run"), (2.8, TERM, "tree")]


async def test_a_cell_that_has_just_been_sent_is_not_interrupted_before_it_can_have_begun(
    autojump_clock: MockClock, workshop: Workshop
) -> None:
    async with open_session() as (session, _):
        run = await session.start(ENDLESS)
        await wait_all_tasks_blocked()
        generation = workshop.newest
        on_signal(generation, INT, "child", lambda: generation.answer(success=False, interrupted=True, error="KI"))
        run.cancel("python_cancel")
        await run.answered.wait()
    settled = Limits().ladder_settle
    assert settled > 0
    assert generation.guard.signals == [(settled, INT, "child"), (settled, KILL, "run")]
