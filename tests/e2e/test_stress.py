"""scripts/stress from outside: a minute of it holds, and a server that breaks its word makes it fail loudly."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUND = 110.0
"""seconds. The minute, the steps that are under way at its end, and the last look at the markers."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing can hide from a child subreaper")


def stress(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STRESS_PYTHON": sys.executable}
    command = [str(root / "scripts/stress"), *arguments]
    output = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=BOUND)
        except subprocess.TimeoutExpired:
            # SIGINT first: it ends the servers under test.
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_a_minute_holds() -> None:
    done = stress(ROOT, "--seconds", "60")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all invariants hold" in done.stdout
    checks = {name.strip(): int(count) for name, count in re.findall(r"^  (\D+?) {2,}(\d+) +0$", done.stdout, re.M)}
    for name in (
        "no late marker",
        "state claims are true",
        "one answer to each request",
        "nothing outlives its server",
    ):
        assert checks[name] > 0, done.stdout


def test_a_server_that_breaks_its_word_is_found_out(tmp_path: Path) -> None:
    """The same tree, but for what a stopped run started: that goes on."""
    for name in ("repl_trio", "guardian", "stress", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    broken = tmp_path / "repl_trio" / "session" / "interrupt.py"
    source = broken.read_text()
    told = "signal(SIGKILL, RUN, since=run.since)"
    assert told in source
    broken.write_text(source.replace(told, "signal(0, RUN, since=run.since)"))
    done = stress(tmp_path, "--seconds", "5", "--sessions", "6", "--seed", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"!! (no late marker|a stopped run's processes are gone)", done.stdout), done.stdout


def test_a_wrong_command_line_is_refused() -> None:
    assert stress(ROOT, "--sessions", "0").returncode == 2
