"""Any order of what clients, deadlines and workers do: one run at a time, each answered, each answer consistent."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from repl_trio.errors import Busy
from repl_trio.session.run import Run
from repl_trio.session.session import Session
from repl_trio.values import CLEARED, PRESERVED, Cell
from tests.fakes.generation import FakeGeneration, Workshop
from tests.fakes.session import open_session

TIMEOUT = 3.0
START = 0.2
"""seconds. That a worker takes to start, if it is not there at once."""
LONGEST = 60.0
"""seconds on the mocked clock. More than a start, a deadline, a ladder and a wait for clean-up take together."""

ACTIONS = ["start", "start with reset", "cancel", "answer", "answer interrupted", "answer unfit", "die", "kill idle"]
STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.3, 1.0, 1.9, 2.0, 2.25, 3.0]), st.sampled_from(ACTIONS)),
    min_size=1,
    max_size=25,
)


class Story:
    """One session and everything that happens to it."""

    def __init__(self, session: Session, workshop: Workshop) -> None:
        self.session = session
        self.workshop = workshop
        self.accepted: list[Run] = []
        self.named: list[str | None] = []  # the runs that refusals gave as their reason

    async def start(self, *, reset: bool) -> None:
        try:
            run = await self.session.start(Cell("code", TIMEOUT), reset=reset)
        except Busy as error:
            self.named.append(error.run_id)
        else:
            self.accepted.append(run)

    @property
    def current(self) -> FakeGeneration | None:
        """The worker that has a cell it has not answered."""
        made = self.workshop.made[-1] if self.workshop.made else None
        busy = made is not None and made.alive and made.runs and made.runs[-1].reply is None
        return made if busy else None

    def act(self, action: str, nursery: trio.Nursery) -> None:
        if action.startswith("start"):
            nursery.start_soon(partial(self.start, reset=action.endswith("reset")))
        elif action == "cancel":
            if self.session.active is not None:
                self.session.active.cancel("the story says so")
        elif action == "kill idle":
            if self.workshop.made and self.current is None:
                self.workshop.newest.die("The worker was ended by SIGKILL")
        elif (worker := self.current) is not None:
            if action == "die":
                worker.die("The worker exited with code 0")
            else:
                worker.answer(
                    success=action == "answer",
                    error=None if action == "answer" else action,
                    interrupted=action.endswith("interrupted"),
                    keep=not action.endswith("unfit"),
                )

    async def play(self, steps: list[tuple[float, str]]) -> None:
        async with trio.open_nursery() as nursery:
            for pause, action in steps:
                await trio.sleep(pause)
                self.act(action, nursery)
        with trio.fail_after(LONGEST):
            for run in self.accepted:
                await run.answered.wait()


def watch(workshop: Workshop) -> None:
    """No worker is ever given a cell while another one runs, or after its end."""

    def check(generation: FakeGeneration, run: Run) -> None:
        assert generation.alive
        assert all(earlier.finished for earlier in generation.runs if earlier is not run)
        assert all(not other.alive for other in workshop.made if other is not generation)

    def prepare(generation: FakeGeneration) -> None:
        generation.on_begin = partial(check, generation)

    workshop.on_made = prepare


def judge(story: Story) -> None:
    assert set(story.named) <= {run.id for run in story.accepted}
    generations = [run.generation for run in story.accepted if run.generation]
    assert generations == sorted(generations)
    for run in story.accepted:
        result = run.result
        assert result is not None
        assert run.finished
        assert result.state in (PRESERVED, CLEARED)
        assert result.elapsed_ms <= (START + TIMEOUT + 2.25) * 1000 + 1
        if result.error_code in ("TIMEOUT", "WORKER_DIED"):
            assert run.generation
        if run.generation and result.state == CLEARED:
            assert not story.workshop.made[-1].alive or story.workshop.made[-1].number > run.generation
        assert result.success is (result.error_code is None)
    begun = [run for made in story.workshop.made for run in made.runs]
    assert len(begun) == len({run.id for run in begun})


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**16))
def test_every_order_of_events_keeps_the_rules(steps: list[tuple[float, str]], seed: int) -> None:
    workshop = Workshop()
    workshop.delay = random.Random(seed).choice([0.0, START])
    watch(workshop)

    async def main() -> None:
        async with open_session() as (session, _):
            story = Story(session, workshop)
            await story.play(steps)
            judge(story)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("repl_trio.session.session.start_worker", workshop.start_worker)
        patch.setattr("repl_trio.session.session.open_generation", workshop.open_generation)
        trio.run(main, clock=MockClock(autojump_threshold=0), strict_exception_groups=True)
