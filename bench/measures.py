"""How each figure is measured: one round of one side at a time.

A side is the server or the two-hop floor: the same code runs on both. A measure returns samples by (figure, side of the
comparison), seconds or bytes, and raises MeasureError when the side cannot give them; nothing is returned for what it
does not have.
"""

import os
import selectors
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench import floors
from bench.client import Client, Sent
from bench.figures import PASS, SPINNER, TRIO, TWO_HOP_PING, Sample
from bench.process import Memory, Unanswered
from bench.surface import Surface, cell, expect, probe, showing, text_of

BURST = 5
"""Values a round for what takes milliseconds: enough for a median, too few to wear on a peer that takes a second."""
WARM_UP = 10
CALLS_SECONDS = 15.0
"""Where a peer's call takes a second, a round of 1,000 is cut short here."""
STARTED_SECONDS = 20.0
BLOCKED_SECONDS = 2.0
"""A probe without an answer for this long beside a spinning cell is not slow, it is blocked."""
SLEEP_SHARE = 0.7
"""Probes are sent in this first part of the sleep: a late answer then means that the server waited for the cell."""
OUTPUT_SEEN = 1000
"""Characters of the megabyte that have to arrive; servers cut what is too long for a client."""

Key = tuple[str, str]
Samples = dict[Key, Sample]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: rounds, calls a round, seconds that a cell sleeps and seconds that count as being idle."""

    rounds: int
    calls: int
    sleep_seconds: float
    idle_seconds: float


class Side:
    """One server command under measurement, with at most one warm process of it kept between measures."""

    def __init__(self, name: str, command: tuple[str, ...], surface: Surface, cwd: str) -> None:
        self.name = name
        self.command = command
        self.surface = surface
        self.cwd = cwd
        self.left_behind = 0
        self._warm: Client | None = None

    @contextmanager
    def fresh(self) -> Iterator[Client]:
        """A new process, nothing said to it yet; ended on exit, and what outlived it counted."""
        with Client(self.command, self.cwd) as client:
            yield client
        self.left_behind += client.left_behind

    def warm(self) -> Client:
        """The kept process, initialized and used by a few cells; dropped by `cool`."""
        if self._warm is None:
            self._warm = Client(self.command, self.cwd)
            self._warm.initialize()
            for _ in range(WARM_UP):
                self.sum_of_one_and_one(self._warm)
        return self._warm

    def cool(self) -> None:
        """End the kept process."""
        if self._warm is not None:
            self._warm.close()
            self.left_behind += self._warm.left_behind
            self._warm = None

    def sum_of_one_and_one(self, client: Client, *, reset: bool = False) -> tuple[float, float]:
        """Run `1+1`, check the answer; the moment it arrived and the seconds it took."""
        params = cell(self.surface, showing(self.surface, "1+1"), reset=reset)
        answer = expect(client, client.request("tools/call", params), "2")
        return answer.arrived, answer.seconds


def start(side: Side, effort: Effort) -> Samples:
    """From the fork to the answer to initialize, and on to the first cell's result without a pause."""
    with side.fresh() as client:
        initialized = client.initialize().arrived - client.started
        first = side.sum_of_one_and_one(client)[0] - client.started
    return {("initialize", side.name): Sample((initialized,)), ("start_to_cell", side.name): Sample((first,))}


def start_floors(side: Side, effort: Effort) -> Samples:
    """From the fork to the end of the server's interpreter with nothing to do, and of ours with trio to import."""
    bare = floors.run_to_end(floors.server_python(side.command), "pass", side.cwd)
    trio = floors.run_to_end(sys.executable, "import trio", side.cwd)
    return {("initialize", PASS): Sample((bare,)), ("initialize", TRIO): Sample((trio,))}


def settled(side: Side, effort: Effort) -> Samples:
    """Memory of a server that was opened, listed and probed and then left alone; its first cell; memory after that."""
    with side.fresh() as client:
        client.initialize()
        client.tools()
        client.receive(probe(client, side.surface))
        client.idle(effort.idle_seconds)
        before = client.memory()
        first = side.sum_of_one_and_one(client)[1]
        client.idle(effort.idle_seconds)
        after = client.memory()
    samples: Samples = {("first_cell", side.name): Sample((first,))}
    return samples | _memory("idle", side.name, before) | _memory("used", side.name, after)


def settled_floors(side: Side, effort: Effort) -> Samples:
    """Memory of a process that imports trio."""
    return _memory("idle", TRIO, floors.trio_memory(side.cwd))


def _memory(state: str, side: str, memory: Memory) -> Samples:
    samples: Samples = {(f"rss_{state}", side): Sample((memory.rss,))}
    if memory.pss is not None:
        samples[f"pss_{state}", side] = Sample((memory.pss,))
    return samples


def warm_cell(side: Side, effort: Effort) -> Samples:
    """`1+1` again and again, one after the other's answer."""
    client = side.warm()
    deadline = time.perf_counter() + CALLS_SECONDS
    values: list[float] = []
    while len(values) < effort.calls and (time.perf_counter() < deadline or not values):
        values.append(side.sum_of_one_and_one(client)[1])
    return {("warm_cell", side.name): Sample(tuple(values))}


def reset(side: Side, effort: Effort) -> Samples:
    """`1+1` in a new interpreter, the old one's end included. A reset that keeps a variable is a failure."""
    surface = side.surface
    if surface.resets is None:
        return {}
    client = side.warm()
    client.request("tools/call", cell(surface, "bench_mark = 1"))
    expect(client, client.request("tools/call", cell(surface, showing(surface, '"bench_mark" in globals()'))), "True")
    if surface.resets == "argument":
        seconds = side.sum_of_one_and_one(client, reset=True)[1]
    else:
        begun = time.perf_counter()
        client.request("tools/call", {"name": surface.resets, "arguments": {}})
        seconds = side.sum_of_one_and_one(client)[0] - begun
    expect(client, client.request("tools/call", cell(surface, showing(surface, '"bench_mark" in globals()'))), "False")
    return {("reset", side.name): Sample((seconds,))}


def print_1mb(side: Side, effort: Effort) -> Samples:
    """A megabyte written by one print, as it comes through the server's own limits."""
    return {("print_1mb", side.name): _printed(side, 'print("x" * 1_000_000)')}


def print_lines(side: Side, effort: Effort) -> Samples:
    """A megabyte written by 10,000 prints of 100 bytes."""
    code = 'for number in range(10_000):\n    print("x" * 99)\n'
    return {("print_lines", side.name): _printed(side, code)}


def _printed(side: Side, code: str) -> Sample:
    client = side.warm()
    values = []
    for _ in range(BURST):
        answer = client.request("tools/call", cell(side.surface, code))
        if answer.result.get("isError") or text_of(answer.result).count("x") < OUTPUT_SEEN:
            raise client.failure(f"the output of {code!r} is not in its answer: {text_of(answer.result)[:300]!r}")
        values.append(answer.seconds)
    return Sample(tuple(values))


def probe_sleeping(side: Side, effort: Effort) -> Samples:
    """The probe while a cell sleeps on the server."""
    client = side.warm()
    until = time.perf_counter() + effort.sleep_seconds * SLEEP_SHARE
    running = start_cell(client, side, f"import time\ntime.sleep({effort.sleep_seconds})\n")
    sample = probes(client, side.surface, effort.calls, until, running)
    client.receive(running)
    return {("probe_sleeping", side.name): sample}


def probe_idle(side: Side, effort: Effort) -> Samples:
    """The floor of that: a ping which the blocking loop answers by itself, though only while no cell runs."""
    until = time.perf_counter() + CALLS_SECONDS
    return {("probe_sleeping", TWO_HOP_PING): probes(side.warm(), side.surface, effort.calls, until, None)}


def probe_spinning(side: Side, effort: Effort) -> Samples:
    """The probe beside a process that spins outside, then on the same server beside a cell that spins."""
    client = side.warm()
    spinner = floors.spinning(side.cwd)
    try:
        beside = probes(client, side.surface, effort.calls, time.perf_counter() + CALLS_SECONDS, None)
    finally:
        spinner.close(at_once=True)
    running = start_cell(client, side, "while True:\n    pass\n")
    own = probes(client, side.surface, effort.calls, time.perf_counter() + CALLS_SECONDS, running)
    side.cool()
    return {("probe_spinning", side.name): own, ("probe_spinning", SPINNER): beside}


def start_cell(client: Client, side: Side, code: str) -> Sent:
    """Send a cell and return once it runs: it says so through a pipe by name, which it opens before its own code."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "started")
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            announced = f"with open({path!r}, 'w') as started:\n    started.write('.')\n{code}"
            running = client.send("tools/call", cell(side.surface, announced))
            with selectors.DefaultSelector() as readable:
                readable.register(reader, selectors.EVENT_READ)
                if not readable.select(STARTED_SECONDS):
                    raise client.failure(f"a cell did not start within {STARTED_SECONDS:g} s")
        finally:
            os.close(reader)
    return running


def probes(client: Client, surface: Surface, calls: int, until: float, running: Sent | None) -> Sample:
    """Probe after probe until there are enough or the time is up; blocked when one has to wait for the running cell."""
    values: list[float] = []
    while len(values) < calls and (time.perf_counter() < until or not values):
        sent = probe(client, surface)
        try:
            values.append(client.receive(sent, BLOCKED_SECONDS).seconds)
        except Unanswered:
            return Sample((time.perf_counter() - sent.at,), blocked=True)
        if running is not None and client.answered(running):
            return Sample((values[-1],), blocked=True)
    return Sample(tuple(values))


Measure = Callable[[Side, Effort], Samples]

Plan = tuple[tuple[Measure, Measure | None, Measure | None], ...]

PLAN: Plan = (
    (start, start, start_floors),
    (settled, settled, settled_floors),
    (warm_cell, warm_cell, None),
    (reset, reset, None),
    (print_1mb, print_1mb, None),
    (print_lines, print_lines, None),
    (probe_sleeping, probe_idle, None),
    (probe_spinning, None, None),
)
"""What one round does, in this order: on the server, then on the two-hop floor, then the floors that are no server."""
