"""The group `output`: what 100 MB of output cost, beside the same code written to a pipe that somebody only reads.

The bare reader's interpreter flushes at each newline, as a server's worker must. What the server itself uses, processor
and memory, is that of its first process alone; the processes below it do the work of the cell.
"""

import time

from bench import floors
from bench.client import Answer, Client
from bench.figures import BARE, SPINNER, Figure, Floor, Sample, Target
from bench.measures import CALLS_SECONDS, Effort, Plan, Samples, Side, probes, start_cell
from bench.process import Unanswered
from bench.surface import cell, probe

FLOODS = {
    "lines": "for _ in range(1_000_000):\n    print('x' * 99)\n",
    "print": "print('x' * 99_999_999)\n",
    "line": "print('x' * 50_000_000, end='')\n",
    "write": "import os\nfor _ in range(1_526):\n    os.write(1, b'x' * 65_535 + b'\\n')\n",
    "child": "import subprocess\nsubprocess.run('yes | head -c 100000000', shell=True)\n",
}
NATIVE = "child"
BARE_BEGINS = "import sys\nsys.stdout.reconfigure(line_buffering=True)\n"
FLOOD_SECONDS = 60.0
LOOK_SECONDS = 0.02
"""Between two looks at the server's memory while it reads."""


def _titled(key: str, title: str, *targets: Target) -> Figure:
    return Figure(f"flood_{key}", title, "ms", (Floor(BARE, targets),))


FIGURES = (
    _titled("lines", "100 MB in print lines", Target("ratio", 1.5)),
    _titled("print", "100 MB in one print"),
    _titled("line", "one line of 50 MB"),
    _titled("write", "100 MB by os.write", Target("median", 2_000.0)),
    _titled("child", "100 MB by yes | head", Target("median", 2_000.0)),
    Figure("flood_cpu_lines", "server's CPU, print lines", "%", (Floor(BARE),)),
    Figure("flood_cpu_native", "server's CPU, yes | head", "%", (Floor(BARE, (Target("median", 10.0),)),)),
    Figure("flood_memory", "server's RSS grows by at most", "MB", (Floor(BARE, (Target("median", 5.0),)),)),
    Figure("flood_probe", "{probe}, cell prints lines", "ms", (Floor(SPINNER, (Target("p95_ratio", 5.0),)),)),
)


def floods(side: Side, effort: Effort) -> Samples:
    """Every kind once: its seconds, the server's share of a processor, and how much the server grew at most."""
    client = side.warm()
    samples: Samples = {}
    most = 0
    for kind, code in FLOODS.items():
        seconds, processor, growth = _flood(client, side, code)
        samples[f"flood_{kind}", side.name] = Sample((seconds,))
        most = max(most, growth)
        if kind in ("lines", NATIVE):
            key = "flood_cpu_native" if kind == NATIVE else "flood_cpu_lines"
            samples[key, side.name] = Sample((processor / seconds,))
    samples["flood_memory", side.name] = Sample((max(most, 1),))
    return samples


def bare_floods(side: Side, effort: Effort) -> Samples:
    """The same code, read by this program and dropped."""
    samples: Samples = {}
    for kind, code in FLOODS.items():
        python = floors.server_python(side.command)
        seconds, processor = floors.read_all(python, BARE_BEGINS + code, side.cwd)
        samples[f"flood_{kind}", BARE] = Sample((seconds,))
        if kind in ("lines", NATIVE):
            key = "flood_cpu_native" if kind == NATIVE else "flood_cpu_lines"
            samples[key, BARE] = Sample((processor / seconds,))
    return samples


def flood_probe(side: Side, effort: Effort) -> Samples:
    """The probe beside a process that spins, then while a cell prints."""
    client = side.warm()
    spinner = floors.spinning(side.cwd)
    try:
        beside = probes(client, side.surface, effort.calls, time.perf_counter() + CALLS_SECONDS, None)
    finally:
        spinner.close(at_once=True)
    running = start_cell(client, side, FLOODS["lines"])
    values = []
    while not client.answered(running):
        values.append(client.receive(probe(client, side.surface), FLOOD_SECONDS).seconds)
        client.idle(LOOK_SECONDS / 4)
    client.receive(running)
    return {("flood_probe", side.name): Sample(tuple(values)), ("flood_probe", SPINNER): beside}


def _flood(client: Client, side: Side, code: str) -> tuple[float, float, int]:
    """Seconds of one cell, the processor seconds of the server in them, and the bytes that it grew."""
    side.sum_of_one_and_one(client)
    processor, memory = client.own()
    most = memory
    sent = client.send("tools/call", cell(side.surface, code))
    answer: Answer | None = None
    deadline = time.perf_counter() + FLOOD_SECONDS
    while answer is None:
        try:
            answer = client.receive(sent, LOOK_SECONDS)
        except Unanswered:
            most = max(most, client.own()[1])
            if time.perf_counter() > deadline:
                raise
    if answer.result.get("isError"):
        raise client.failure(f"{code!r} failed: {str(answer.result)[:300]}")
    return answer.seconds, client.own()[0] - processor, max(most, client.own()[1]) - memory


PLAN: Plan = (
    (floods, None, bare_floods),
    (flood_probe, None, None),
)
"""As `measures.PLAN`."""
