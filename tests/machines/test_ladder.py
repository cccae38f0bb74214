"""The ladders: from soft to hard, ending in a kill, inside the times that the contract gives."""

from __future__ import annotations

import itertools
import signal
import sys

import pytest

from repl_trio.limits import DEFAULT, Limits
from repl_trio.machines import ladder
from repl_trio.machines.ladder import RUN, TREE, WORKER, Rung

HARDNESS = [{ladder.SIGINT, ladder.SIGURG}, {ladder.SIGUSR1}, {ladder.SIGTERM}, {ladder.SIGKILL}]


def test_interruption_is_the_contracts() -> None:
    assert [(rung.after, rung.signal, rung.target) for rung in ladder.interruption(DEFAULT)] == [
        (0.0, signal.SIGINT, WORKER),
        (0.3, ladder.SIGURG, WORKER),
        (0.3, signal.SIGINT, RUN),
        (1.0, signal.SIGINT, WORKER),
        (1.0, signal.SIGINT, RUN),
        (1.3, ladder.SIGURG, WORKER),
        (1.3, signal.SIGINT, RUN),
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
    hardness = [next(place for place, equal in enumerate(HARDNESS) if rung.signal in equal) for rung in rungs]
    assert hardness == sorted(hardness)
    assert (rungs[-1].signal, rungs[-1].target) == (signal.SIGKILL, TREE)
    assert len({rung.name for rung in rungs}) == len(rungs)


def test_the_times_are_limits() -> None:
    limits = Limits.overridden({"ladder_children": "0.5", "shutdown_kill": "1.7"})
    assert [rung.after for rung in ladder.interruption(limits)][1:3] == [0.5, 0.5]
    assert ladder.shutdown(limits)[-1].after == 1.7


def test_the_numbers_are_the_systems() -> None:
    assert (ladder.SIGINT, ladder.SIGTERM, ladder.SIGKILL) == (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    if sys.platform == "linux":
        assert (signal.SIGUSR1, signal.SIGURG) == (ladder.SIGUSR1, ladder.SIGURG)


def test_the_signals_whose_numbers_differ_are_the_callers() -> None:
    # As on macOS.
    signals = [rung.signal for rung in ladder.interruption(DEFAULT, dump_signal=30, insist_signal=16)]
    assert (signals.count(30), signals.count(16)) == (1, 2)
    assert ladder.SIGUSR1 not in signals
    assert ladder.SIGURG not in signals


def test_no_two_signals_reach_the_worker_at_about_the_same_time() -> None:
    """With a thread of the user's beside the main one the kernel could hand both to that one."""
    times = [rung.after for rung in ladder.interruption(DEFAULT) if rung.target == WORKER]
    assert all(later - earlier >= 0.25 for earlier, later in itertools.pairwise(times))
