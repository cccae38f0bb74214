"""Cells in any order: the server agrees with a plain dict, to the byte, whatever came before.

Twice the same steps: a Hypothesis state machine, which shrinks what it finds, and a plain loop, which also watches the
server's memory. The long forms run 10,000 cells each:

    scripts/test -m slow -rP tests/e2e/test_random_cells.py
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.e2e.client import Client
from tests.e2e.random_cells import DEATHS, ENDLESS, WAYS, ModelledSession, Value

NAMES = tuple(f"name_{letter}" for letter in "abcde")
PIECES = ("print", "stderr", "low", "child")
CELLS = 10_000
"""cells of each long form."""
PARTS = 20
"""tests that the machine's cells are spread over: each stays far below the bound of a test."""
WARM_UP = 50
"""cells before the server's memory counts."""
GROWTH = 1_000_000
"""bytes. What the server may hold more in the second half than in the first, on average."""
LOOKS = 25
"""cells between two looks at the server's memory."""

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\n"), max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
).filter(lambda value: value is not None)
names = st.sampled_from(NAMES)


class Cells(RuleBasedStateMachine):
    """The steps of a `ModelledSession` in any order."""

    client: Client
    cells = 0

    @initialize()
    def open(self) -> None:
        self.session = ModelledSession(self.client)

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.session.close()
            type(self).cells += self.session.cells
        self.client.check()

    @invariant()
    def nothing_is_answered_twice(self) -> None:
        assert not self.client.unclaimed(), self.client.unclaimed()

    @rule(name=names, value=values)
    def assign(self, name: str, value: Value) -> None:
        self.session.assign(name, value)

    @rule(name=names)
    def read(self, name: str) -> None:
        self.session.read(name)

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.session.delete(name)

    @rule()
    def everything(self) -> None:
        self.session.everything()

    @rule(name=names, value=values, text=texts)
    def fail(self, name: str, value: Value, text: str) -> None:
        self.session.fail(name, value, text)

    @rule(status=st.integers(1, 255))
    def leave(self, status: int) -> None:
        self.session.leave(status)

    @rule(step=st.sampled_from([ModelledSession.misspell, ModelledSession.empty, ModelledSession.fork]))
    def small(self, step: Callable[[ModelledSession], None]) -> None:
        step(self.session)

    @rule(name=names, value=values)
    def wait_for_it(self, name: str, value: Value) -> None:
        self.session.wait_for_it(name, value)

    @rule(count=st.integers(1, 5))
    def leave_tasks(self, count: int) -> None:
        self.session.leave_tasks(count)

    @rule(parts=st.lists(st.tuples(st.sampled_from(PIECES), texts), min_size=1, max_size=6))
    def write(self, parts: list[tuple[str, str]]) -> None:
        self.session.write(parts)

    @rule(lines=st.integers(100, 20_000))
    def flood(self, lines: int) -> None:
        self.session.flood(lines)

    @rule(text=texts)
    def shell(self, text: str) -> None:
        self.session.shell(text)

    @rule(name=names, value=values)
    def thread(self, name: str, value: Value) -> None:
        self.session.thread(name, value)

    @rule(text=texts)
    def spoil_streams(self, text: str) -> None:
        self.session.spoil_streams(text)

    @rule(lines=st.integers(1, 40))
    def pages(self, lines: int) -> None:
        self.session.pages(lines)

    @rule(right=st.booleans())
    def expect(self, *, right: bool) -> None:
        self.session.expect(right=right)

    @rule(name=names, value=values)
    def reset(self, name: str, value: Value) -> None:
        self.session.reset(name, value)

    @rule(
        way=st.sampled_from(sorted(WAYS)),
        what=st.sampled_from(sorted(ENDLESS)),
        name=names,
        value=values,
        moment=st.floats(0, 0.05),
    )
    def stop(self, way: str, what: str, name: str, value: Value, moment: float) -> None:
        self.session.stop(way, what, name, value, moment)

    @rule(how=st.sampled_from(sorted(DEATHS)))
    def die(self, how: str) -> None:
        self.session.die(how)

    @rule()
    def killed(self) -> None:
        self.session.killed()


def run_machine(examples: int, steps: int) -> int:
    """Run that many sessions of that many steps; the number of cells."""
    with Client() as client:

        class Machine(Cells):
            pass

        Machine.client = client
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                # Shrinking takes minutes of real cells; the steps of a failure are printed as they are.
                phases=(Phase.explicit, Phase.generate),
                suppress_health_check=list(HealthCheck),
            ),
        )
        return Machine.cells


def random_value(chance: random.Random) -> Value:
    """Some value that JSON holds exactly."""
    return chance.choice(
        (
            chance.randrange(-(2**50), 2**50),
            chance.random(),
            chance.random() < 0.5,
            random_text(chance),
            [random_text(chance), chance.randrange(9), [None, {}]],
            {random_text(chance): chance.randrange(9), "inner": {"deep": [chance.random()]}},
        )
    )


def random_text(chance: random.Random) -> str:
    """A short text of one line, of any letters."""
    return "".join(chance.choice("abc xyz'\"\\{}%é\u2028ж漢🙂\x1b\t") for _ in range(chance.randrange(20)))


def random_step(session: ModelledSession, chance: random.Random, *, kill: bool) -> None:
    """One step; rarely one that costs a worker, and with `kill` very rarely one that takes the whole ladder."""
    name, value, text = chance.choice(NAMES), random_value(chance), random_text(chance)
    draw = chance.randrange(1_000)
    if draw < 30:
        session.stop(chance.choice(sorted(WAYS)), chance.choice(sorted(ENDLESS)), name, value, 0.05 * chance.random())
    elif draw < 40:
        session.reset(name, value)
    elif draw < 46:
        session.die(chance.choice(sorted(DEATHS)))
    elif draw < 50:
        session.killed()
    elif draw < 52 and kill:
        session.never_lets_go()
    else:
        chance.choice(
            (
                lambda: session.assign(name, value),
                lambda: session.read(name),
                lambda: session.delete(name),
                session.everything,
                lambda: session.fail(name, value, text),
                lambda: session.leave(chance.randrange(1, 256)),
                session.misspell,
                session.empty,
                session.fork,
                lambda: session.wait_for_it(name, value),
                lambda: session.leave_tasks(chance.randrange(1, 5)),
                lambda: session.write([(chance.choice(PIECES), random_text(chance)) for _ in range(4)]),
                lambda: session.flood(chance.randrange(100, 9_000)),
                lambda: session.shell(text),
                lambda: session.thread(name, value),
                lambda: session.spoil_streams(text),
                lambda: session.pages(chance.randrange(1, 20)),
                lambda: session.expect(right=chance.random() < 0.5),
            )
        )()


def run_loop(cells: int, *, kill: bool) -> str:
    """Run that many random cells in one session; what the server's memory did, after it was judged."""
    chance = random.Random(cells)
    looks: list[int] = []
    with Client() as client:
        session = ModelledSession(client)
        for _cell in range(WARM_UP):
            # As much output as the retained runs will ever hold together.
            session.flood(9_000)
        while session.cells < WARM_UP + cells:
            before = session.cells
            random_step(session, chance, kill=kill)
            assert not client.unclaimed(), client.unclaimed()
            if session.cells >= WARM_UP and session.cells // LOOKS > before // LOOKS:
                looks.append(client.rss())
                client.check()
        session.everything()
    half = len(looks) // 2
    first, second = statistics.fmean(looks[:half]), statistics.fmean(looks[half:])
    told = (
        f"{cells} cells, server RSS {first / 1e6:.2f} then {second / 1e6:.2f} MB, at the end {looks[-1] / 1e6:.2f} MB"
    )
    assert second - first < GROWTH, told
    return told


def test_any_order_of_cells_agrees_with_a_dict() -> None:
    assert run_machine(6, 25) > 50


def test_hundreds_of_cells_in_one_session() -> None:
    run_loop(400, kill=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_cells_in_any_order(part: int) -> None:
    cells = 0
    while cells < CELLS // PARTS:
        cells += run_machine(10, 40)
    print(f"part {part}: {cells} cells")


@pytest.mark.slow
def test_ten_thousand_cells_in_one_session() -> None:
    print(run_loop(CELLS, kill=True))
