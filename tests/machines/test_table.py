"""The state tables: every pair of state and event is known or refused, and every life comes to its end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.machines import generation, peer, run
from repl_trio.machines.table import ImpossibleEvent, Machine, Table

untimed = settings(deadline=None)
TABLES = {
    "run": (run.TABLE, run.ACCEPTED, {run.FINISHED}),
    "generation": (generation.TABLE, generation.LAUNCHING, {generation.GONE}),
    "peer": (peer.TABLE, peer.IDLE, {peer.CLOSED}),
}
each_table = pytest.mark.parametrize(("table", "start", "ends"), TABLES.values(), ids=TABLES)


def states(table: Table) -> set[str]:
    return {state for state, _ in table} | set(table.values())


def events(table: Table) -> set[str]:
    return {event for _, event in table}


def reachable(table: Table, start: str) -> set[str]:
    found, rest = {start}, [start]
    while rest:
        state = rest.pop()
        following = {after for (before, _), after in table.items() if before == state} - found
        found |= following
        rest += following
    return found


@each_table
def test_every_pair_is_known_or_refused(table: Table, start: str, ends: set[str]) -> None:
    for state in states(table):
        for event in events(table) | {"no such event"}:
            machine = Machine(table, state)
            assert machine.accepts(event) is ((state, event) in table)
            if machine.accepts(event):
                assert machine.advance(event) == machine.state == table[state, event]
            else:
                with pytest.raises(ImpossibleEvent, match=rf"'{event}' in state '{state}'"):
                    machine.advance(event)
                assert machine.state == state


@each_table
def test_every_state_can_be_reached_and_every_one_leads_to_the_end(table: Table, start: str, ends: set[str]) -> None:
    assert reachable(table, start) == states(table)
    for state in states(table):
        assert reachable(table, state) & ends, f"{state} leads nowhere"


@each_table
def test_the_end_is_the_end(table: Table, start: str, ends: set[str]) -> None:
    for state in ends:
        assert reachable(table, state) == {state}
    stuck = {state for state in states(table) if reachable(table, state) == {state}}
    assert stuck == ends


@untimed
@given(st.data())
def test_no_sequence_of_events_leaves_the_table(draw: st.DataObject) -> None:
    table, start, _ = draw.draw(st.sampled_from(list(TABLES.values())))
    machine = Machine(table, start)
    for event in draw.draw(st.lists(st.sampled_from(sorted(events(table))), max_size=20)):
        if machine.accepts(event):
            machine.advance(event)
        assert machine.state in states(table)


def walk(machine: Machine, *taken: str) -> str:
    for event in taken:
        machine.advance(event)
    return machine.state


@pytest.mark.parametrize(
    "taken",
    [
        ("ready", "result"),
        ("launch", "ready", "result"),
        ("failed",),
        ("launch", "failed"),
        ("ready", "stop", "result", "cleared"),
        ("ready", "stop", "kill", "cleared"),
        ("ready", "stop", "unfit", "cleared"),
        ("ready", "stop", "died", "cleared"),
        ("ready", "stop", "result", "died", "cleared"),
        ("ready", "died", "cleared"),
        ("ready", "unfit", "cleared"),
    ],
    ids=" ".join,
)
def test_lives_of_a_run(taken: tuple[str, ...]) -> None:
    assert walk(run.machine(), *taken) == run.FINISHED


def test_an_interrupted_run_is_not_finished_before_what_it_started_is_gone() -> None:
    # Otherwise its answer would be sent while something of it can still write.
    for state in (run.INTERRUPTING, run.CLEARING, run.KILLING):
        ends_run = {event for (before, event), after in run.TABLE.items() if before == state and after == run.FINISHED}
        assert ends_run <= {"cleared"}


@pytest.mark.parametrize(
    ("taken", "state", "alive"),
    [
        ((), generation.LAUNCHING, False),
        (("ready",), generation.IDLE, True),
        (("ready", "execute"), generation.BUSY, True),
        (("ready", "execute", "done"), generation.IDLE, True),
        (("ready", "execute", "died"), generation.STOPPING, False),
        (("ready", "stop", "done"), generation.STOPPING, False),
        (("ready", "stop", "died", "clean"), generation.GONE, False),
        (("clean",), generation.GONE, False),
        (("clean", "stop", "died", "clean"), generation.GONE, False),
    ],
)
def test_lives_of_a_generation(taken: tuple[str, ...], state: str, *, alive: bool) -> None:
    machine = generation.machine()
    assert walk(machine, *taken) == state
    assert generation.alive(machine) is alive


def test_a_generation_can_be_stopped_or_die_in_every_state() -> None:
    # Both come from outside at any moment; a state without them would turn that moment into a crash of ours.
    for state in states(generation.TABLE):
        for event in ("stop", "died", "clean"):
            assert (state, event) in generation.TABLE


@pytest.mark.parametrize(
    ("taken", "state"),
    [
        (("use", "connected"), peer.READY),
        (("use", "failed", "use", "connected", "lost", "use"), peer.CONNECTING),
        (("use", "stop", "failed", "gone"), peer.CLOSED),
        (("use", "connected", "stop", "lost", "stop", "gone"), peer.CLOSED),
        (("stop", "stop"), peer.CLOSED),
    ],
    ids=str,
)
def test_lives_of_a_peer(taken: tuple[str, ...], state: str) -> None:
    assert walk(peer.machine(), *taken) == state


def test_a_peer_can_be_stopped_in_every_state_and_is_not_used_again() -> None:
    for state in states(peer.TABLE):
        assert (state, "stop") in peer.TABLE
    for state in (peer.CLOSING, peer.CLOSED):
        assert (state, "use") not in peer.TABLE
