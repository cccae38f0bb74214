"""Interrupts at random moments, of everything a cell may be doing: answered, the truth told, nothing else hit.

The sample runs every kind of cell once or twice. The long form prints a row for each kind (n, namespace kept, cleared,
milliseconds from the cancel or the deadline to the answer):

    scripts/test -m slow -rP tests/e2e/test_interrupt_sweep.py
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Iterator

import pytest

from repl_trio.limits import DEFAULT
from tests.e2e.client import Client, Message
from tests.e2e.interrupt_kinds import CLEARED, EITHER, KEPT, KINDS, PREPARED, Kind, python_of
from tests.e2e.watch import SURROUNDINGS, idle
from tests.process.worker_driver import VERSIONS, interpreter

HERE = f"{VERSIONS[1]}"
"""The Python that gets all rounds of the long form; the others get fewer."""
ROUNDS, SLOW_ROUNDS = 40, 10
"""Interrupts for each kind in the long form; of one that takes a second or more, fewer."""
OTHERS = 4
"""The part of them that the other Pythons get: one in four."""
SLOW_SAMPLE = ("ThreadPool with", "goes on once", "SIGINT blocked")
"""Kinds that take a second or more and are in the sample all the same."""
RELEASE = DEFAULT.ladder_kill + 0.5
"""seconds. What is promised for each; rows say how many took longer."""
BOUND = 15.0
"""seconds. What none may take on however busy a machine."""
SCALES = (0.002, 0.03, 0.15)
"""seconds. Moments are spread evenly below one of these."""


class Sweep:
    """Stops cells of one kind, again and again, in one session, and keeps count."""

    def __init__(self, client: Client, name: str, kind: Kind, chance: random.Random) -> None:
        self.client = client
        self.name = name
        self.kind = kind
        self.chance = chance
        self.generation = 0
        self.mark = 0
        self.took: list[float] = []
        self.kept = self.cleared = self.by_itself = self.without_line = 0
        self.prepare()

    def prepare(self) -> None:
        """Put the mark and what the kind needs into the namespace."""
        self.mark += 1
        made = self.client.execute(f"{PREPARED}\n{self.kind.setup}\nmark = {self.mark}")
        assert made["success"], made
        self.generation = made["generation"]

    def once(self) -> None:
        """Stop one cell and look at everything."""
        way = self.chance.choice(WAYS)
        moment = self.chance.choice(SCALES) * self.chance.random()
        result, took = way(self.client, self.kind.code, moment, self.chance)
        case = f"{self.name}, {way.__name__} after {moment * 1000:.2f} ms: {result}"
        assert took < BOUND, case
        self.took.append(took)
        assert result["generation"] == self.generation, case
        self.judge(result, case)
        self.look_behind(result["state"], case)

    def judge(self, result: Message, case: str) -> None:
        """The result says what happened."""
        error = result["error"] or ""
        assert "_repl_trio" not in error, case
        assert "repl_trio/worker" not in error, case
        if result["state"] == "cleared":
            self.cleared += 1
            assert self.kind.namespace != KEPT, case
            assert result["error_code"] in ("TIMEOUT", "CANCELLED", "UNFINISHED_WORK"), case
            assert "namespace is lost" in error or result["error_code"] == "UNFINISHED_WORK", case
            return
        if result["success"] or result["error_code"] not in ("TIMEOUT", "CANCELLED"):
            self.by_itself += 1
        self.kept += 1
        assert self.kind.namespace != CLEARED, case
        assert "is lost" not in error, case
        assert not result["stdout"].startswith("in\n") or result["stdout"].endswith(self.kind.says), case
        if "KeyboardInterrupt" in error and '  File "<repl:' not in error:
            self.without_line += 1

    def look_behind(self, state: str, case: str) -> None:
        """The next cells are as if nothing had been: no late interrupt, no late output, the namespace as told."""
        for code in ("mark", "await __import__('asyncio').sleep(0, mark)"):
            after = self.client.execute(f"{code} if 'mark' in globals() else 'gone'")
            assert after["success"], f"{case}\n{after}"
            assert (after["stdout"], after["stderr"]) == ("", ""), f"{case}\n{after}"
            if state == "preserved":
                told = (after["value"], after["generation"], after["state_reset"])
                assert told == (self.mark, self.generation, False), f"{case}\n{after}"
            else:
                assert (after["value"], after["generation"]) == ("gone", self.generation + 1), f"{case}\n{after}"
        if state == "cleared":
            self.prepare()

    def row(self) -> str:
        """The kind's line in the table of the long form."""
        took = sorted(milliseconds * 1000 for milliseconds in self.took)
        late = sum(one > RELEASE * 1000 for one in took)
        return (
            f"| {self.name} | {len(took)} | {self.kept} | {self.cleared} | {took[len(took) // 2]:.0f} | "
            f"{took[len(took) * 99 // 100]:.0f} | {took[-1]:.0f} | {late} | {self.without_line} |"
        )


# -- the ways to stop a cell -----------------------------------------------------------------------------------


def pause(seconds: float) -> None:
    """Let the cell run for a moment: how long is chance, not something that is waited for."""
    select.select([], [], [], seconds)


def by_deadline(client: Client, code: str, moment: float, _chance: random.Random) -> tuple[Message, float]:
    """The time limit of the cell."""
    limit = max(DEFAULT.timeout_min, moment)
    begun = time.monotonic()
    result = client.execute(code, timeout=limit)
    return result, time.monotonic() - begun - limit


def by_cancel(client: Client, code: str, moment: float, _chance: random.Random) -> tuple[Message, float]:
    """python_cancel beside the waiting call."""
    call = client.start_call("execute_python", code=code)
    pause(moment)
    begun = time.monotonic()
    client.call("python_cancel")
    result: Message = client.result(call)["structuredContent"]
    return result, time.monotonic() - begun


def by_two_cancels(client: Client, code: str, moment: float, chance: random.Random) -> tuple[Message, float]:
    """python_cancel, and once more within the grace."""
    call = client.start_call("execute_python", code=code)
    pause(moment)
    begun = time.monotonic()
    client.call("python_cancel")
    pause(0.01 * chance.random())
    client.call("python_cancel")
    result: Message = client.result(call)["structuredContent"]
    return result, time.monotonic() - begun


def by_both(client: Client, code: str, moment: float, chance: random.Random) -> tuple[Message, float]:
    """The time limit, and python_cancel around that very moment."""
    limit = max(DEFAULT.timeout_min, moment)
    begun = time.monotonic()
    call = client.start_call("execute_python", code=code, timeout=limit)
    pause(limit + 0.004 * (chance.random() - 0.5))
    client.call("python_cancel")
    result: Message = client.result(call)["structuredContent"]
    return result, time.monotonic() - begun - limit


def by_notification(client: Client, code: str, moment: float, _chance: random.Random) -> tuple[Message, float]:
    """The cancelled request, which gets no answer: the run's result is read when the session is idle."""
    call = client.start_call("execute_python", code=code)
    pause(moment)
    begun = time.monotonic()
    client.cancel(call)
    idle(client)
    took = time.monotonic() - begun
    assert not client.answered(call)
    return client.structured("python_run"), took


WAYS: tuple[Callable[[Client, str, float, random.Random], tuple[Message, float]], ...] = (
    by_deadline,
    by_cancel,
    by_two_cancels,
    by_both,
    by_notification,
)


# -- the sweeps ------------------------------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[Callable[[str], Client]]:
    """One server for each interpreter that is asked for."""
    started: dict[str, Client] = {}

    def server(python: str) -> Client:
        if python not in started:
            started[python] = Client("--python", python).__enter__()
        return started[python]

    yield server
    for client in started.values():
        client.__exit__(None, None, None)


def test_every_kind_of_cell_at_a_random_moment(servers: Callable[[str], Client]) -> None:
    python = interpreter("3.13")
    chance = random.Random(4)
    for name, kind in KINDS.items():
        if kind.slow and name not in SLOW_SAMPLE:
            continue
        Sweep(servers(python_of(kind, python)), name, kind, chance).once()


def test_what_never_lets_go_is_cleared_and_told_so(servers: Callable[[str], Client]) -> None:
    python = interpreter("3.13")
    for name in ("sum(range)", "SIG_DFL"):
        sweep = Sweep(servers(python), name, KINDS[name], random.Random(name))
        sweep.once()
        assert sweep.cleared == 1


def test_a_server_that_was_started_with_sigint_ignored() -> None:
    chance = random.Random(6)
    with Client("--python", interpreter("3.10"), wrap=SURROUNDINGS["SIGINT ignored"]) as client:
        for name in ("while True", "time.sleep", "subprocess.run", "sh", "os.system", "await gather", "nested repr"):
            Sweep(client, name, KINDS[name], chance).once()


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_random_moments(version: str, name: str) -> None:
    kind = KINDS[name]
    python = interpreter(version)
    if tuple(map(int, version.split("."))) < kind.least or (kind.packages and version != HERE):
        pytest.skip(f"{name} is not for {version}")
    rounds = SLOW_ROUNDS if kind.slow else ROUNDS
    with Client("--python", python_of(kind, python)) as client:
        sweep = Sweep(client, name, kind, random.Random(f"{version} {name}"))
        for _round in range(rounds if version == HERE else max(1, rounds // OTHERS)):
            sweep.once()
    print(version, sweep.row())
    assert kind.namespace == EITHER or sweep.kept + sweep.cleared == len(sweep.took)
