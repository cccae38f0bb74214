"""The group `guardian`: what our guardians weigh, how fast they are there, and how fast they clean up.

Their wire is spoken here as `docs/guardian.md` describes it, so that nothing of the server is timed with them. Only the
memory, and the end of everything after the server's, is measured on a whole server. Needs Linux.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench import floors
from bench.figures import Figure, Floor, Sample, Target
from bench.measures import BURST, Effort, Plan, Samples, Side
from bench.process import MeasureError
from bench.report import Row
from bench.surface import cell

FOLDER = Path(__file__).resolve().parent.parent / "guardian"
RUN = "import sys;sys.path.insert(0,sys.argv[1]);import {0};{0}.main()"
TURN = 20
SECONDS = 20.0
"""The bound of every wait."""
NAP = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")
ECHO = (sys.executable, "-I", "-S", "-c", "import os\nwhile chunk := os.read(0, 65536): os.write(1, chunk)")
FRAME = b'{"frame":"execute","id":"r1-abcdef","code":"1+1","path":null,"argv":null}\n'

BARE_START = "python -I -S -c pass"
BARE_IDLE = "python -I -S, idle"
BARE_KILL = "kill a bare child"
SAME_PIPES = "same pipes, no guardian"

FIGURES = (
    Figure("guardian_pss", "PSS of a guardian", "MB", (Floor(BARE_IDLE, (Target("median", 6.0),)),)),
    Figure("root_pss", "PSS of the root guardian", "MB", (Floor(BARE_IDLE, (Target("median", 6.0),)),)),
    Figure("forked", "guardian of a root -> spawned", "ms", (Floor(BARE_START, (Target("ratio", 2.5),)),)),
    Figure("alone", "guardian by itself -> spawned", "ms", (Floor(BARE_START, (Target("ratio", 2.5),)),)),
    Figure("frame", "frame there and back", "ms", (Floor(SAME_PIPES, (Target("ratio", 1.25),)),)),
    Figure("worker_killed", "worker killed -> clean record", "ms", (Floor(BARE_KILL),)),
    Figure("server_killed", "server killed -> nothing left", "ms", (Floor(BARE_KILL),)),
)
ENDS = ("worker_killed", "server_killed")


class Guardian:
    """The socket to a guardian or to a root: orders out, records in."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = b""
        control.settimeout(SECONDS)

    def order(self, order: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one order, with descriptors if there are any."""
        line = json.dumps(order).encode() + b"\n"
        if descriptors:
            line = line[socket.send_fds(self._control, [line], descriptors) :]
        self._control.sendall(line)

    def record(self, event: str) -> dict[str, Any]:
        """The next record of this kind; others are passed over."""
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                record: dict[str, Any] = json.loads(line)
                if record["ev"] == event:
                    return record
                continue
            try:
                chunk = self._control.recv(65_536)
            except TimeoutError:
                raise MeasureError(f"a guardian gave no {event} record in {SECONDS:g} s") from None
            if not chunk:
                raise MeasureError(f"a guardian ended without a {event} record")
            self._buffer += chunk

    def spawn(self, argv: Sequence[str], descriptors: dict[int, int]) -> int:
        """Have it start a child with these descriptors ({number in the child: ours}); its pid once it runs."""
        self.order(
            {
                "op": "spawn",
                "v": 1,
                "server": os.getpid(),
                "argv": list(argv),
                "env": {},
                "cwd": "/",
                "fds": list(descriptors),
                "oom": 500,
                "orphan": [[15, 250]],
                "leftover": [[9, 0]],
            },
            list(descriptors.values()),
        )
        spawned = self.record("spawned")
        if spawned.get("error"):
            raise MeasureError(f"a guardian could not start its child: {spawned['error']}")
        return int(spawned["pid"])

    def stop(self) -> None:
        """End what it owns; it ends itself then."""
        self.order({"op": "stop", "id": 0})
        self.record("clean")

    def close(self) -> None:
        """Close the lifeline."""
        self._control.close()


def _python() -> str:
    """The interpreter that guardians run in: the one the environment was made from."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _started(command: Sequence[str], stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """A process with nothing around it."""
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=stdin, stdout=null, stderr=null, env={}, process_group=0)


@contextmanager
def _process(module: str) -> Iterator[Guardian]:
    """A guardian, or a root, that is our child. It is told to leave by the end of its socket."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = _started([_python(), "-I", "-S", "-c", RUN.format(module), str(FOLDER)], theirs.fileno())
        guardian = Guardian(ours)
        try:
            yield guardian
        finally:
            guardian.close()
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _root() -> Iterator[Guardian]:
    """A root that has served its first guardian: the start of the root itself is not what is measured."""
    with _process("guardian_root") as root:
        root.order({"op": "root", "v": 1, "server": os.getpid()})
        with _fork(root, 0) as guardian, _null() as null:
            guardian.spawn(NAP, null)
            guardian.stop()
        root.record("reaped")
        yield root


@contextmanager
def _fork(root: Guardian, number: int) -> Iterator[Guardian]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            root.order({"op": "fork", "id": number}, [theirs.fileno()])
        yield Guardian(ours)


@contextmanager
def _null() -> Iterator[dict[int, int]]:
    with open(os.devnull, "r+b") as null:
        yield dict.fromkeys((0, 1, 2), null.fileno())


# -- the measures ----------------------------------------------------------------------------------------------


def starts(side: Side, effort: Effort) -> Samples:
    """To the record that the child runs: a fork of a root, a guardian that we start; and a bare interpreter."""
    forked, alone, bare = [], [], []
    with _root() as root, _null() as null:
        for number in range(1, BURST + 1):
            begun = time.perf_counter()
            with _fork(root, number) as guardian:
                guardian.spawn(NAP, null)
                forked.append(time.perf_counter() - begun)
                guardian.stop()
            root.record("reaped")
            begun = time.perf_counter()
            with _process("guardian") as guardian:
                guardian.spawn(NAP, null)
                alone.append(time.perf_counter() - begun)
                guardian.stop()
            begun = time.perf_counter()
            _started([_python(), "-I", "-S", "-c", "pass"]).wait(SECONDS)
            bare.append(time.perf_counter() - begun)
    floor = Sample(tuple(bare))
    return {
        ("forked", side.name): Sample(tuple(forked)),
        ("forked", BARE_START): floor,
        ("alone", side.name): Sample(tuple(alone)),
        ("alone", BARE_START): floor,
    }


def frames(side: Side, effort: Effort) -> Samples:
    """A frame to a child that sends it back: below a guardian, and started by this program with the same pipes."""
    own: list[float] = []
    other: list[float] = []
    with _root() as root, _fork(root, 1) as guardian, _pipes() as guarded, _pipes() as bare:
        guardian.spawn(ECHO, {0: guarded[0], 1: guarded[3], 2: guarded[3]})
        # In a session of its own, as below a guardian: between two sessions Linux wakes a process a microsecond later.
        process = subprocess.Popen(ECHO, stdin=bare[0], stdout=bare[3], env={}, start_new_session=True)
        try:
            # In small turns, each side first in every other one: whatever else the machine does meets both.
            for turn in range(max(2, effort.calls // TURN)):
                for values, pipes in ((own, guarded), (other, bare))[:: 1 if turn % 2 else -1]:
                    values += _echoes(pipes[1], pipes[2])
        finally:
            process.kill()
            process.wait()
        guardian.stop()
    return {("frame", side.name): Sample(tuple(own)), ("frame", SAME_PIPES): Sample(tuple(other))}


def _echoes(sink: int, source: int) -> list[float]:
    values = []
    for _ in range(TURN):
        begun = time.perf_counter()
        os.write(sink, FRAME)
        received = 0
        while received < len(FRAME):
            if not select.select([source], [], [], SECONDS)[0]:
                raise MeasureError("a child does not answer")
            received += len(os.read(source, 65_536))
        values.append(time.perf_counter() - begun)
    return values


@contextmanager
def _pipes() -> Iterator[tuple[int, int, int, int]]:
    """(what the child reads, what we write, what we read, what the child writes)."""
    commands, answers = os.pipe(), os.pipe()
    try:
        yield *commands, *answers
    finally:
        for fd in (*commands, *answers):
            os.close(fd)


def worker_ends(side: Side, effort: Effort) -> Samples:
    """From SIGKILL to the record that nothing of the child is left, beside the end of a bare child for its parent."""
    own, bare = [], []
    with _root() as root, _null() as null:
        for number in range(1, BURST + 1):
            with _fork(root, number) as guardian:
                pid = guardian.spawn(NAP, null)
                begun = time.perf_counter()
                os.kill(pid, signal.SIGKILL)
                guardian.record("clean")
                own.append(time.perf_counter() - begun)
            root.record("reaped")
            process = _started(NAP)
            begun = time.perf_counter()
            process.kill()
            process.wait()
            bare.append(time.perf_counter() - begun)
    floor = Sample(tuple(bare))
    return {
        ("worker_killed", side.name): Sample(tuple(own)),
        ("worker_killed", BARE_KILL): floor,
        ("server_killed", BARE_KILL): floor,
    }


DETACHED = "import subprocess\nfor _ in range(3): subprocess.Popen(['sleep', '600'], start_new_session=True)\n1+1\n"


def whole(side: Side, effort: Effort) -> Samples:
    """What a server's guardians hold while it is idle; then its end by SIGKILL, with three detached processes left."""
    with side.fresh() as client:
        client.initialize()
        client.request("tools/call", cell(side.surface, DETACHED))
        client.idle(effort.idle_seconds)
        below = client.below()
        roots = psutil.Process(client.pid).children()
        if len(roots) != 1 or len(roots[0].children()) != 1 or len(below) < 6:
            raise client.failure(f"no root with one guardian below it: {below}")
        held = {"root_pss": _pss(roots[0]), "guardian_pss": _pss(roots[0].children()[0])}
        seconds = _killed(client.pid, [process.pid for process in below])
    samples: Samples = {(key, side.name): Sample((pss,)) for key, pss in held.items()}
    samples["server_killed", side.name] = Sample((seconds,))
    return samples


def _killed(server: int, below: Sequence[int]) -> float:
    """Seconds from SIGKILL to the end of the last of these processes, each by its pidfd."""
    left = {os.pidfd_open(pid) for pid in below}
    try:
        begun = time.perf_counter()
        os.kill(server, signal.SIGKILL)
        while left:
            ended = select.select(list(left), [], [], SECONDS)[0]
            if not ended:
                raise MeasureError(f"{len(left)} processes outlived the server for {SECONDS:g} s")
            for fd in ended:
                left.discard(fd)
                os.close(fd)
        return time.perf_counter() - begun
    finally:
        for fd in left:
            os.close(fd)


def whole_floor(side: Side, effort: Effort) -> Samples:
    """What the interpreter of a guardian holds when it does nothing."""
    command = (_python(), "-I", "-S", "-c", "import sys; print('here', flush=True); sys.stdin.read()")
    with floors.ready(command, side.cwd) as process:
        held = process.memory()
    if held.pss is None:
        return {}
    return {(key, BARE_IDLE): Sample((held.pss,)) for key in ("guardian_pss", "root_pss")}


def _pss(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)


def spans(found: Sequence[Row]) -> str:
    """Least, median and most of what ends take, in one line each."""
    lines = [
        f"{row.figure.title}: least {row.own.least:.1f}, median {row.own.median:.1f}, most {row.own.most:.1f} ms"
        for row in found
        if row.figure.key in ENDS and row.own is not None
    ]
    return "\n".join(lines)


PLAN: Plan = (
    (starts, None, None),
    (frames, None, None),
    (worker_ends, None, None),
    (whole, None, whole_floor),
)
"""As `measures.PLAN`."""
