"""The group `broker`: what a call to another MCP server costs inside a cell, and what servers cost that nobody calls.

The floor of a call is the SDK's client in a process of its own, calling the same peer program in turns with us. A call
is timed where it is made, inside the cell or beside the client: the cell around it is not part of it.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench import floors
from bench.client import ANSWER_SECONDS, Client
from bench.figures import Figure, Floor, Sample, Target
from bench.measures import BURST, CALLS_SECONDS, Effort, Plan, Samples, Side, probes
from bench.process import MeasuredProcess, MeasureError, Unanswered
from bench.report import Row
from bench.surface import cell, expect, probe

PEER = (sys.executable, "-I", "-S", str(floors.SCRIPTS / "peer.py"))
ENTRIES = 10
TURN = 20
PARALLEL = 32
NAP = 0.1
PACE = 0.005
"""Seconds between two probes, answered or not: a loop that stands still is met as often as it does so."""
SDK_PART = "pydantic_core"
"""Part of the path of a library that nothing but the SDK brings into the server."""

SDK = "SDK client"
MEMORY = "journal in memory"
KEPT = "journal on disk"
BARE = "no entries"
UNUSED = "before the first call"

FIGURES = (
    Figure("call", "mcp.call of an echo", "ms", (Floor(SDK, (Target("added", 0.5),)),)),
    Figure("call_journal", "the same with --journal", "ms", (Floor(MEMORY),)),
    Figure("parallel", "32 mcp.acall of 100 ms at once", "ms", (Floor(SDK, (Target("ratio", 1.5),)),)),
    Figure("first_call", "first mcp.call: import, connect", "ms", (Floor(SDK),)),
    Figure("import_probe", "{probe} meanwhile", "ms", (Floor(UNUSED, (Target("p95", 50), Target("most", 250))),)),
    Figure("idle_probe", "{probe}, ten unused entries", "ms", (Floor(BARE, (Target("p95", 10.0),)),)),
    Figure("idle_rss", "RSS of the tree, ten unused", "MB", (Floor(BARE),)),
)

SERIAL = """
import time
took = []
for _ in range({count}):
    begun = time.perf_counter_ns()
    result = mcp.call("peer0", "echo", text="x")
    took.append(time.perf_counter_ns() - begun)
assert result.text == "x"
took
"""
AT_ONCE = """
import asyncio, time
begun = time.perf_counter_ns()
results = await asyncio.gather(*(mcp.acall("peer0", "nap", seconds={nap}) for _ in range({count})))
took = [time.perf_counter_ns() - begun]
assert all(result.text == "awake" for result in results)
took
"""
FIRST = 'len(mcp.call("peer0", "echo", text="four").text)'


class Caller:
    """A server whose cells call the peer."""

    def __init__(self, side: Side, client: Client) -> None:
        self._side = side
        self._client = client
        client.initialize()
        side.sum_of_one_and_one(client)

    def serial(self, count: int) -> list[float]:
        """Seconds of each of so many calls, one after the other."""
        return self._times(SERIAL.format(count=count))

    def parallel(self) -> list[float]:
        """Seconds of all the calls that are made at once, as one value."""
        return self._times(AT_ONCE.format(count=PARALLEL, nap=NAP))

    def _times(self, code: str) -> list[float]:
        result = self._client.request("tools/call", cell(self._side.surface, code)).result
        took = result.get("structuredContent", {}).get("value")
        if result.get("isError") or not isinstance(took, list):
            raise self._client.failure(f"calls from a cell gave no times: {json.dumps(result)[:500]}")
        return [nanoseconds / 1e9 for nanoseconds in took]


class SdkClient(MeasuredProcess):
    """The floor: `floors/sdk_client.py`, which takes the same orders."""

    def __init__(self, cwd: str) -> None:
        super().__init__((sys.executable, str(floors.SCRIPTS / "sdk_client.py"), *PEER), cwd)

    def serial(self, count: int) -> list[float]:
        """As `Caller.serial`."""
        return self._times({"serial": count})

    def parallel(self) -> list[float]:
        """As `Caller.parallel`."""
        return self._times({"parallel": PARALLEL, "nap": NAP})

    def _times(self, order: dict[str, Any]) -> list[float]:
        self.write(json.dumps(order).encode() + b"\n", ANSWER_SECONDS)
        line = self.read_line(time.perf_counter() + ANSWER_SECONDS, "times of calls")
        took: list[float] = json.loads(line.content)
        return took


@contextmanager
def _project(entries: int) -> Iterator[str]:
    """A folder whose `.mcp.json` names the peer so many times."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        named = {f"peer{number}": {"command": PEER[0], "args": list(PEER[1:])} for number in range(entries)}
        (Path(folder) / ".mcp.json").write_text(json.dumps({"mcpServers": named}))
        yield folder


@contextmanager
def _server(side: Side, folder: str, *options: str) -> Iterator[Client]:
    """The server in that project; what outlived it is counted."""
    with Client((*side.command, *options), folder) as client:
        yield client
    side.left_behind += client.left_behind


# -- the measures ----------------------------------------------------------------------------------------------


def calls(side: Side, effort: Effort) -> Samples:
    """The same calls by a cell, by one whose server keeps a journal on disk, and by the SDK's client, in turns."""
    with (
        _project(1) as folder,
        _server(side, folder) as plain,
        _server(side, folder, "--journal", str(Path(folder) / "journal")) as kept,
        SdkClient(folder) as sdk,
    ):
        callers: dict[str, Caller | SdkClient] = {SDK: sdk, MEMORY: Caller(side, plain), KEPT: Caller(side, kept)}
        serial = {name: partial(caller.serial, TURN) for name, caller in callers.items()}
        parallel = {name: callers[name].parallel for name in (SDK, MEMORY)}
        _in_turns({**serial, **parallel}, 1)
        one_by_one, at_once = _in_turns(serial, max(2, effort.calls // TURN)), _in_turns(parallel, BURST)
    return {
        ("call", side.name): one_by_one[MEMORY],
        ("call", SDK): one_by_one[SDK],
        ("call_journal", side.name): one_by_one[KEPT],
        ("call_journal", MEMORY): one_by_one[MEMORY],
        ("parallel", side.name): at_once[MEMORY],
        ("parallel", SDK): at_once[SDK],
    }


def _in_turns(measured: Mapping[str, Callable[[], list[float]]], turns: int) -> dict[str, Sample]:
    """What each gives. Forwards and backwards by turns: whatever else the machine does meets all."""
    values: dict[str, list[float]] = {name: [] for name in measured}
    for turn in range(turns):
        for name in list(measured)[:: 1 if turn % 2 else -1]:
            values[name] += measured[name]()
    return {name: Sample(tuple(given)) for name, given in values.items()}


def unused(side: Side, effort: Effort) -> Samples:
    """A server with entries that nobody has used, beside one without; then the first call that uses one.

    MeasureError when such a server has started a peer or loaded the SDK.
    """
    samples: Samples = {}
    for name, entries in ((BARE, 0), (side.name, ENTRIES)):
        with _project(entries) as folder, _server(side, folder) as client:
            client.initialize()
            client.tools()
            client.receive(probe(client, side.surface))
            client.idle(effort.idle_seconds)
            samples["idle_rss", name] = Sample((client.memory().rss,))
            idle = probes(client, side.surface, effort.calls, time.perf_counter() + CALLS_SECONDS, None)
            samples["idle_probe", name] = idle
            side.sum_of_one_and_one(client)
            if _uses(client) != (0, False):
                raise client.failure("has started a peer or loaded the SDK, and nothing has used either")
            if entries:
                samples["import_probe", UNUSED] = idle
                samples |= _first_call(side, client)
    return samples


def _first_call(side: Side, client: Client) -> Samples:
    """The first call of a cell, and probes from its beginning to its end."""
    running = client.send("tools/call", cell(side.surface, FIRST))
    sent = []
    seconds = None
    while seconds is None:
        sent.append(probe(client, side.surface))
        if sent[-1].at > running.at + ANSWER_SECONDS:
            raise client.failure("no answer to the first mcp.call")
        with contextlib.suppress(Unanswered):
            seconds = expect(client, client.receive(running, PACE), "4").seconds
    if _uses(client) != (1, True):
        # Then the same look before the call has shown nothing either.
        raise client.failure("is in use of a peer, and neither it nor the SDK is seen")
    return {
        ("first_call", side.name): Sample((seconds,)),
        ("import_probe", side.name): Sample(tuple(client.receive(each).seconds for each in sent)),
    }


def first_call_floor(side: Side, effort: Effort) -> Samples:
    """The SDK's client from the start of its process to the end of its first call, less the start of an interpreter."""
    bare = floors.run_to_end(sys.executable, "pass", side.cwd)
    with SdkClient(side.cwd) as sdk:
        sdk.serial(1)
        seconds = time.perf_counter() - sdk.started
    return {("first_call", SDK): Sample((seconds - bare,))}


def _uses(client: Client) -> tuple[int, bool]:
    """How many peers run below a server, and whether it has loaded the SDK."""
    peers = 0
    for process in client.below():
        with contextlib.suppress(psutil.NoSuchProcess):
            peers += PEER[-1] in process.cmdline()
    try:
        mapped = psutil.Process(client.pid).memory_maps()
    except (AttributeError, psutil.AccessDenied) as error:
        raise MeasureError("this system does not tell what a process has loaded") from error
    return peers, any(SDK_PART in each.path for each in mapped)


def differences(found: Sequence[Row]) -> str:
    """What a call costs more than its floor, in one line each."""
    lines = [
        f"{row.figure.title}: {row.added:.3f} ms more than {row.floor.side}"
        for row in found
        if row.figure.key in ("call", "call_journal") and row.added is not None
    ]
    return "\n".join(lines)


PLAN: Plan = (
    (calls, None, None),
    (unused, None, first_call_floor),
)
"""As `measures.PLAN`."""
