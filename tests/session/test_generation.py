"""A generation over a real guardian, real pipes, and a worker that misbehaves."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from repl_trio.errors import InterpreterBroken, LimitReached, WorkerStartFailed
from repl_trio.limits import Limits
from repl_trio.machines import generation as table
from repl_trio.process.launch import Root
from repl_trio.process.root import open_root
from repl_trio.process.start import start_worker
from repl_trio.session.generation import Generation
from repl_trio.session.lifetime import open_generation
from repl_trio.session.run import Run
from repl_trio.values import CANCELLED, PRESERVED, Cell
from tests.fakes import worker as fake

HANG = 60.0
"""seconds. Beyond every wait of a test here."""
SHORT = {"worker_start": "10", "write_stall": "0.3", "guardian_ack": "1", "stop_grace": "0.3", "stop_kill": "0.2"}
Step = list[Any]


@asynccontextmanager
async def open_fake(
    folder: Path, *start: Step, habits: str = "", limits: dict[str, str] | None = None
) -> AsyncIterator[Generation]:
    """A generation whose worker takes these steps instead of being ready. Nothing of it is left afterwards."""
    numbers = Limits.overridden({**SHORT, **(limits or {})})
    env = {"FAKE_HABITS": habits}
    if start:
        env["FAKE_START"] = json.dumps(start)
    before = psutil.Process().children(recursive=True)
    with trio.fail_after(HANG):
        root = Root()
        started = start_worker(root, fake.install(folder), str(folder), env, numbers)

        async def _own(task_status: trio.TaskStatus[Generation]) -> None:
            async with open_generation(1, started, watch, numbers) as generation:
                task_status.started(generation)
                await generation.ending.wait()

        async with open_root(root, numbers) as watch, trio.open_nursery() as nursery:
            generation = await nursery.start(_own)
            yield generation
            generation.leave()
    assert generation.gone.is_set()
    assert generation.machine.state == table.GONE
    assert psutil.Process().children(recursive=True) == before


def accept(generation: Generation, *steps: Step, padding: int = 0) -> Run:
    """Give the worker a cell, as a session does."""
    code = fake.script(*steps, ["nothing", "x" * padding]) if padding else fake.script(*steps)
    run = Run(f"r{generation.runs + 1}", "s1", Cell(code, 60.0), Limits())
    generation.begin(run)
    run.machine.advance("ready")
    return run


async def answered(generation: Generation, *steps: Step) -> Run:
    run = accept(generation, *steps)
    await run.answered.wait()
    return run


async def died(generation: Generation, run: Run) -> str:
    """Wait for the end of a worker under its run; the sentence that tells how."""
    await generation.dead.wait()
    await run.arrived.wait()
    assert run.reply is None
    assert not generation.alive
    return generation.death


# -- becoming ready --------------------------------------------------------------------------------------------


async def test_a_worker_that_is_ready_is_idle(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        assert generation.problem is None
        assert generation.alive
        assert generation.machine.state == table.IDLE
        assert generation.python_version == "3.10.99"


@pytest.mark.parametrize(
    ("steps", "kind", "words"),
    [
        ([["frame", {"reason": "it is Tuesday"}, "refused"]], InterpreterBroken, "it is Tuesday"),
        ([["frame", {"version": 2}, "ready"], ["hang"]], WorkerStartFailed, "version 2"),
        ([["frame", {"pid": "1"}, "ready"], ["hang"]], WorkerStartFailed, "pid has a wrong type"),
        ([["frame", {"more": 1}, "ready"], ["hang"]], WorkerStartFailed, "more"),
        ([["raw", "not json\n"], ["hang"]], WorkerStartFailed, "protocol"),
        ([["raw", "\x00\xff\n"], ["hang"]], WorkerStartFailed, "protocol"),
        ([["raw", "x" * 1000, 1100], ["raw", "\n"], ["hang"]], WorkerStartFailed, "protocol"),
        ([["result"], ["hang"]], WorkerStartFailed, "nobody waits"),
        ([["write", 2, "the reason\n"], ["exit", 3]], WorkerStartFailed, "the reason"),
        ([["exit", 3]], WorkerStartFailed, "code 3"),
        ([["kill", 9]], WorkerStartFailed, "SIGKILL"),
        ([["close", 3], ["hang"]], WorkerStartFailed, "link"),
    ],
)
async def test_what_does_not_become_ready_is_a_problem_in_words(
    tmp_path: Path, steps: list[Step], kind: type[Exception], words: str
) -> None:
    async with open_fake(tmp_path, *steps) as generation:
        assert type(generation.problem) is kind
        assert words in generation.problem.message
        assert not generation.alive


async def test_a_silent_worker_is_given_up_after_the_bound(tmp_path: Path) -> None:
    async with open_fake(tmp_path, ["hang"], limits={"worker_start": "0.3"}) as generation:
        assert isinstance(generation.problem, WorkerStartFailed)
        assert "0.3 s" in generation.problem.message


async def test_a_program_that_cannot_be_executed_is_a_problem(tmp_path: Path) -> None:
    limits = Limits.overridden(SHORT)
    root = Root()
    started = start_worker(root, str(tmp_path / "missing"), str(tmp_path), {}, limits)
    with trio.fail_after(HANG):
        opened = open_root(root, limits)
        async with opened as watch, open_generation(1, started, watch, limits) as generation:
            assert isinstance(generation.problem, InterpreterBroken)
            assert "missing" in generation.problem.message


# -- running ---------------------------------------------------------------------------------------------------


async def test_a_result_finishes_its_run(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        first = await answered(generation, ["result", {"value": 2, "has_value": True, "return_value": "2"}])
        assert first.result is not None
        assert (first.result.success, first.result.value, first.result.state) == (True, 2, PRESERVED)
        assert first.result.state_reset
        second = await answered(generation, ["result"])
        assert second.result is not None
        assert not second.result.state_reset
        assert second.finished


async def test_every_byte_before_the_result_belongs_to_its_run(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        for number in range(30):
            size = number * 1_500
            run = await answered(generation, ["write", 1, "o", size], ["write", 2, "e", number], ["result"])
            assert (run.stdout.total, run.stderr.total) == (size, number)


async def test_a_flood_is_read_and_bounded(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        run = await answered(generation, ["write", 1, "0123456789" * 100_000, 20], ["result"])
        assert run.stdout.total == 20_000_000
        assert len(run.stdout.render()[0]) < 51_000


async def test_output_after_the_result_comes_with_the_next_run_and_is_marked(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        late: list[Step] = [["write", 1, "late\n"], ["write", 2, "err\n"], ["touch", str(tmp_path / "written")]]
        await answered(generation, ["write", 1, "one\n"], ["result"], ["wait"], *late)
        await generation.guard.signal(signal.SIGINT, "child")
        while not (tmp_path / "written").exists():  # noqa: ASYNC110 - another process announces nothing
            await trio.sleep(0.005)
        run = await answered(generation, ["write", 1, "two\n"], ["result"])
        assert run.stdout.render()[0].startswith("[output since the last run]\nlate\n[end of it]\n")
        assert run.stdout.render()[0].endswith("two\n")
        assert "err" in run.stderr.render()[0]
        assert (await answered(generation, ["result"])).stdout.total == 0


async def test_output_after_the_result_of_a_stopped_run_is_that_runs_until_it_is_answered(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        run = accept(generation, ["write", 1, "one\n"], ["result"], ["wait"], ["write", 1, "late\n"], ["hang"])
        run.stop_reason = CANCELLED
        run.machine.advance("stop")
        await run.arrived.wait()
        run.machine.advance("result")
        await generation.guard.signal(signal.SIGINT, "child")
        while run.stdout.total < len("one\nlate\n"):
            await trio.sleep(0.005)
            generation.drain()
        run.finish("cleared", PRESERVED)
        assert run.stdout.render()[0] == "one\nlate\n"


async def test_a_cell_over_the_frame_limit_is_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    async with open_fake(tmp_path, limits={"frame_bytes": "4096"}) as generation:
        with pytest.raises(LimitReached, match="4096"):
            accept(generation, ["write", 1, "x" * 4096])
        assert (await answered(generation, ["result"])).result is not None
        assert generation.runs == 1


# -- misbehaving under a run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([["raw", "}{\n"], ["hang"]], "protocol"),
        ([["result", {"id": "r99"}], ["hang"]], "nobody waits"),
        ([["result", {"success": 1}], ["hang"]], "success has a wrong type"),
        ([["result", {"surprise": 1}], ["hang"]], "surprise"),
        ([["frame", {}, "ready"], ["hang"]], "ready frame after ready"),
        ([["frame", {}, "unheard-of"], ["hang"]], "unknown frame kind"),
        ([["raw", "x" * 1000, 1100], ["raw", "\n"], ["hang"]], "protocol"),
        ([["raw", '{"frame":"result"}\n'], ["hang"]], "missing"),
        ([["raw", "[" * 100_000 + "\n"], ["hang"]], "protocol"),
        ([["exit", 0]], "code 0"),
        ([["kill", 11]], "SIGSEGV"),
        ([["close", 3], ["hang"]], "closes descriptors"),
        ([["raw", '{"frame":"res'], ["exit", 4]], "code 4"),
    ],
)
async def test_a_worker_that_breaks_its_word_is_ended_and_said_so(
    tmp_path: Path, steps: list[Step], words: str
) -> None:
    async with open_fake(tmp_path) as generation:
        run = accept(generation, ["write", 1, "before\n"], *steps)
        assert words in await died(generation, run)
        assert run.stdout.render()[0] == "before\n"


async def test_a_second_result_ends_the_worker_and_leaves_the_first_one_alone(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        run = await answered(generation, ["result", {"return_value": "good"}], ["result", {"return_value": "evil"}])
        await generation.dead.wait()
        assert run.result is not None
        assert run.result.return_value == "good"
        assert "nobody waits" in generation.death


async def test_an_idle_worker_that_speaks_is_ended(tmp_path: Path) -> None:
    async with open_fake(tmp_path, ["frame", {}, "ready"], ["result", {"id": "r1"}]) as generation:
        await generation.dead.wait()
        assert "nobody waits" in generation.death


async def test_a_worker_that_does_not_take_its_cell_is_ended(tmp_path: Path) -> None:
    # More than a pipe holds, and nobody reads.
    async with open_fake(tmp_path, ["frame", {}, "ready"], ["hang"]) as generation:
        run = accept(generation, ["result"], padding=400_000)
        await generation.deliver()
        assert "0.3 s" in await died(generation, run)


async def test_last_words_come_with_the_death(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        run = accept(generation, ["words", "Fatal Python error: line 7\n"], ["kill", 6])
        assert "SIGABRT" in await died(generation, run)
        assert "line 7" in generation.last_words()


# -- looking ---------------------------------------------------------------------------------------------------


async def test_names_of_a_worker_that_does_not_answer_are_none(tmp_path: Path) -> None:
    async with open_fake(tmp_path, limits={"guardian_ack": "0.2"}) as generation:
        assert await generation.names() is None
        assert generation.alive
        assert (await answered(generation, ["result"])).result is not None


async def test_names_come_as_the_worker_lists_them(tmp_path: Path) -> None:
    frame = {"id": "1", "names": [["a", "int"], ["b", "str"]], "total": 7}
    async with open_fake(tmp_path) as generation:
        run = accept(generation, ["frame", frame, "namespace"], ["wait"], ["result"])
        assert await generation.names() == ([("a", "int"), ("b", "str")], 7)
        await generation.guard.signal(signal.SIGINT, "child")
        await run.answered.wait()


# -- the end ---------------------------------------------------------------------------------------------------


async def test_a_stop_in_order_is_the_workers_own_exit(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        await generation.stop()
        assert generation.guard.exit_code == 0
        assert generation.ordered
        assert generation.gone.is_set()
        await generation.stop()


@pytest.mark.parametrize(
    ("ignored", "code"), [((), -signal.SIGTERM), ((signal.SIGTERM,), -signal.SIGKILL)], ids=["TERM", "KILL"]
)
async def test_a_worker_that_does_not_leave_is_made_to(tmp_path: Path, ignored: tuple[int, ...], code: int) -> None:
    async with open_fake(
        tmp_path, ["ignore", *map(int, ignored)], ["frame", {}, "ready"], habits="deaf to shutdown"
    ) as generation:
        await generation.stop()
        assert generation.guard.exit_code == code


async def test_what_the_worker_left_is_gone_after_a_stop(tmp_path: Path) -> None:
    note = tmp_path / "child"
    async with open_fake(tmp_path) as generation:
        await answered(generation, ["child", str(note)], ["result"])
        child = psutil.Process(int(note.read_text()))
        assert child.is_running()
        await generation.stop()
        assert not child.is_running()


async def test_leaving_the_context_ends_a_worker_in_the_middle_of_a_cell(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        accept(generation, ["ignore", 2, 15], ["hang"])
    assert generation.guard.exit_code == -signal.SIGKILL


async def test_a_cancelled_owner_leaves_nothing_either(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with open_fake(tmp_path) as generation:
            accept(generation, ["ignore", 2, 15], ["hang"])
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert generation.gone.is_set()


async def test_a_killed_guardian_takes_its_worker_along_and_is_named(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        run = accept(generation, ["hang"])
        assert generation.guard.child_pid is not None
        worker = psutil.Process(generation.guard.child_pid)
        assert generation.guard.pid is not None
        os.kill(generation.guard.pid, signal.SIGKILL)
        assert "guardian" in await died(generation, run)
        await trio.to_thread.run_sync(worker.wait, 10)


async def test_a_guardian_that_does_not_answer_is_given_up_with_its_worker(tmp_path: Path) -> None:
    # An order that it still holds would otherwise reach a later run.
    async with open_fake(tmp_path, limits={"guardian_ack": "0.3", "guardian_clean": "0.5"}) as generation:
        run = accept(generation, ["wait"], ["result", {"interrupted": True}])
        assert generation.guard.pid is not None
        os.kill(generation.guard.pid, signal.SIGSTOP)
        assert await generation.guard.signal(signal.SIGINT, "child") == 0
        assert generation.gone.is_set()
        assert "guardian" in await died(generation, run)
