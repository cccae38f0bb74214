"""The floors: what the same work costs with nothing around it. The scripts beside this file are only ever started."""

import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.process import MeasuredProcess, Memory

SCRIPTS = Path(__file__).parent
START_SECONDS = 30.0
INTERPRETER = re.compile(r"python[0-9.]*")


def server_python(command: Sequence[str]) -> str:
    """The interpreter a server command runs in: the program itself, else that of its first line, else our own."""
    program = shutil.which(command[0]) or command[0]
    if INTERPRETER.fullmatch(Path(program).name):
        return program
    try:
        with Path(program).open("rb") as script:
            first = script.readline(4096).decode(errors="replace").split()
    except OSError:
        return sys.executable
    named = first[0].removeprefix("#!") if first and first[0].startswith("#!") else ""
    return named if INTERPRETER.fullmatch(Path(named).name) else sys.executable


def two_hop(python: str) -> tuple[str, ...]:
    """The command of the two-hop floor: a blocking loop that hands each cell to a child interpreter."""
    return python, str(SCRIPTS / "two_hop.py")


def run_to_end(python: str, code: str, cwd: str) -> float:
    """Seconds from the start to the end of an interpreter that runs `code`."""
    with MeasuredProcess((python, "-c", code), cwd) as process:
        return process.read_to_end(START_SECONDS) - process.started


def read_all(python: str, code: str, cwd: str) -> tuple[float, float]:
    """Seconds of an interpreter that runs `code`, its output dropped here, and this program's processor seconds."""
    with MeasuredProcess((python, "-c", code), cwd) as process:
        before = time.process_time()
        ended = process.drop_to_end(START_SECONDS)
        return ended - process.started, time.process_time() - before


def trio_memory(cwd: str) -> Memory:
    """What a process holds that has imported trio and does nothing, in the interpreter of this program."""
    with ready((sys.executable, str(SCRIPTS / "trio_idle.py")), cwd) as process:
        return process.memory()


def spinning(cwd: str) -> MeasuredProcess:
    """A process that keeps a core busy and has nothing to do with the server; the caller closes it `at_once`."""
    return ready((sys.executable, str(SCRIPTS / "spin.py")), cwd)


def ready(command: Sequence[str], cwd: str) -> MeasuredProcess:
    """Start a floor and wait for the line that says it is there."""
    process = MeasuredProcess(command, cwd)
    try:
        process.read_line(process.started + START_SECONDS, "word that it has started")
    except BaseException:
        process.close(at_once=True)
        raise
    return process
