"""`repl-trio doctor`: it finds what is broken, says how to mend it, and always ends."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.front_ends import BOUND, environment, run, started

CHECKS = [
    "python",
    "trio",
    "mcp",
    "prompt_toolkit",
    "psutil",
    "project",
    "open files",
    "servers",
    "guardian",
    "worker",
]


def verdicts(done: subprocess.CompletedProcess[bytes]) -> dict[str, tuple[str, str]]:
    """name -> (`ok` or `FAIL`, the rest of the line), in the order of the output."""
    found = {}
    for line in done.stdout.decode().splitlines():
        verdict, rest = line.split(maxsplit=1)
        name, _, detail = rest.partition(": ")
        found[name] = (verdict, detail)
    return found


def failed(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    return [name for name, (verdict, _) in verdicts(done).items() if verdict != "ok"]


def test_all_is_well(tmp_path: Path) -> None:
    done = run("doctor", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    found = verdicts(done)
    assert list(found) == CHECKS
    assert failed(done) == []
    assert found["guardian"][1].startswith(("subreaper", "groups"))
    assert str(tmp_path) in found["project"][1]
    assert "base interpreter" in found["worker"][1]


@pytest.mark.parametrize("python", ["/bin/false", "/no/such/python"])
def test_a_broken_interpreter(tmp_path: Path, python: str) -> None:
    done = run("--python", python, "doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == ["worker"]
    assert python in verdicts(done)["worker"][1]


def test_an_interpreter_that_says_nothing(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    done = run("--python", str(silent), "--limit", "probe_bound=2", "doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == ["worker"]
    assert "no answer in 2 s" in verdicts(done)["worker"][1]


def test_a_broken_environment_of_the_project(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == ["worker"]
    assert ".venv" in verdicts(done)["worker"][1]


@pytest.mark.parametrize(
    ("package", "names"), [("psutil", ["psutil"]), ("mcp", ["mcp"]), ("trio", ["trio", "guardian", "worker"])]
)
def test_a_package_that_cannot_be_imported(tmp_path: Path, package: str, names: list[str]) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / f"{package}.py").write_text("raise ImportError('torn')\n")
    done = run("doctor", cwd=tmp_path, env=environment(PYTHONPATH=str(broken)))
    assert done.returncode == 1
    assert [name for name in failed(done) if name in ("trio", "guardian", "worker", package)] == names
    detail = verdicts(done)[package][1]
    assert "torn" in detail
    assert "reinstall" in detail
    assert list(verdicts(done)) == CHECKS


def test_the_servers_of_a_project_are_told_and_none_is_started(tmp_path: Path) -> None:
    started = tmp_path / "started"
    listed = {
        "fine": {"command": "touch", "args": [str(started)]},
        "away": {"command": "no-such-program"},
        "odd": {"command": "sh", "unheard_of": 1},
        "off": {"command": "sh", "disabled": True},
        "far": {"url": "https://example.com/mcp"},
    }
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": listed}))
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == ["server away", "server odd"]
    found = {name: detail for name, (_, detail) in verdicts(done).items()}
    assert "/touch (project scope)" in found["server fine"]
    assert "there is no program 'no-such-program' in PATH" in found["server away"]
    assert "unheard_of: unknown field" in found["server odd"]
    assert "not used: disabled" in found["server off"]
    assert "http servers cannot be reached" in found["server far"]
    assert not started.exists()


def test_a_list_of_servers_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".mcp.json")
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 1
    assert failed(done) == ["servers"]
    assert ".mcp.json" in verdicts(done)["servers"][1]
    done = run("--mcp-scope", "none", "doctor", cwd=tmp_path)
    assert (done.returncode, verdicts(done)["servers"]) == (0, ("ok", "none are configured"))
    done = run("doctor", cwd=tmp_path, env=environment(REPL_TRIO_BROKER="off"))
    assert (done.returncode, failed(done)) == (0, [])


def test_too_few_descriptors(tmp_path: Path) -> None:
    before = ["sh", "-c", 'ulimit -n 36; exec "$@"', "sh"]
    with started("doctor", cwd=tmp_path, before=before) as process:
        out, err = process.communicate(timeout=BOUND)
    done = subprocess.CompletedProcess([], process.returncode, out, err)
    assert done.returncode == 1
    assert "ulimit -n" in verdicts(done)["open files"][1]


def test_stdout_that_nobody_reads_is_no_traceback(tmp_path: Path) -> None:
    with started("doctor", cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(BOUND) == 1
