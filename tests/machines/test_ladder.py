"""The ladders: from soft to hard, ending in a kill, inside the times that the contract gives."""

from __future__ import annotations

import signal
import sys

import pytest

from repl_trio.limits import DEFAULT, Limits
from repl_trio.machines import ladder
from repl_trio.machines.ladder import RUN, TREE, WORKER, Rung

HARDNESS = [ladder.SIGINT, ladder.SIGUSR1, ladder.SIGTERM, ladder.SIGKILL]


def test_interruption_is_the_contracts() -> None:
    assert [(rung.after, rung.signal, rung.target) for rung in ladder.interruption(DEFAULT)] == [
        (0.0, signal.SIGINT, WORKER),
        (0.3, signal.SIGINT, RUN),
        (1.0, signal.SIGINT, WORKER),
        (1.0, signal.SIGINT, RUN),
        (1.9, ladder.SIGUSR1, WORKER),
        (2.0, signal.SIGTERM, TREE),
        (2.25, signal.SIGKILL, TREE),
    ]


def test_shutdown_is_the_contracts() -> None:
    assert [(rung.after, rung.signal, rung.target) for rung in ladder.shutdown(DEFAULT)] == [
        (0.0, signal.SIGINT, WORKER),
        (0.0, signal.SIGINT, RUN),
        (0.8, signal.SIGTERM, TREE),
        (1.2, signal.SIGKILL, TREE),
    ]
    assert DEFAULT.shutdown_kill < DEFAULT.shutdown_bound


@pytest.mark.parametrize(
    "rungs", [ladder.interruption(DEFAULT), ladder.shutdown(DEFAULT)], ids=["interruption", "shutdown"]
)
def test_a_ladder_climbs(rungs: tuple[Rung, ...]) -> None:
    assert [rung.after for rung in rungs] == sorted(rung.after for rung in rungs)
    hardness = [HARDNESS.index(rung.signal) for rung in rungs]
    assert hardness == sorted(hardness)
    assert (rungs[-1].signal, rungs[-1].target) == (signal.SIGKILL, TREE)
    assert len({rung.name for rung in rungs}) == len(rungs)


def test_the_times_are_limits() -> None:
    limits = Limits.overridden({"ladder_children": "0.5", "shutdown_kill": "1.7"})
    assert ladder.interruption(limits)[1].after == 0.5
    assert ladder.shutdown(limits)[-1].after == 1.7


def test_the_numbers_are_the_systems() -> None:
    assert (ladder.SIGINT, ladder.SIGTERM, ladder.SIGKILL) == (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    if sys.platform == "linux":
        assert signal.SIGUSR1 == ladder.SIGUSR1


def test_the_dump_signal_is_the_callers() -> None:
    # SIGUSR1 has another number on macOS.
    assert 30 in [rung.signal for rung in ladder.interruption(DEFAULT, dump_signal=30)]
