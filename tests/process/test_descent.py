"""The processes below another one, as they are reported."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from repl_trio.process.descent import below

TREE = """
import subprocess, sys, time
code = "print('here', flush=True); import time; time.sleep(600)"
inner = [sys.executable, "-I", "-S", "-c", code, "a (b) c", "é\\n" + "x" * 500]
subprocess.Popen(inner).wait()
"""


def test_what_lives_below_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            found, count = below(process.pid, 10)
            assert count == 1
            (inner,) = found
            assert inner.command.startswith(os.path.realpath(sys.executable)[:1])
            assert "a (b) c é xxx" in inner.command
            assert len(inner.command) < 210
            assert 0 <= inner.age < 600
            everything, count = below(os.getpid(), 10)
            assert [each.pid for each in everything][-2:] == [process.pid, inner.pid] or count > 2
            assert below(os.getpid(), 1)[1] == count
            assert len(below(os.getpid(), 1)[0]) <= 1
        finally:
            os.killpg(process.pid, 9)


def test_a_process_that_has_ended_is_not_listed() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 20
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT) is None:
        assert time.monotonic() < deadline
    try:
        assert process.pid not in [each.pid for each in below(os.getpid(), 100)[0]]
    finally:
        process.wait()
    assert below(process.pid, 10) == ([], 0)
