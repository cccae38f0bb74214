"""A program that is not there: what was looked for, where, and what to write instead."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repl_trio.broker.config.entries import Stdio
from repl_trio.broker.peer.program import find_program
from repl_trio.errors import BrokerError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, mode in (("runs", 0o755), ("with space", 0o755), ("plain", 0o644)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    (tmp_path / "folder").mkdir()
    return tmp_path


def failure(target: Stdio, path: str = "/usr/bin:/bin") -> str:
    with pytest.raises(BrokerError) as caught:
        find_program("srv", target, path)
    error = caught.value
    assert (error.code, error.sent, error.server) == ("CONNECT_FAILED", "no", "srv")
    assert error.message.startswith("srv: ")
    return error.message


def test_a_program_is_found_where_the_kernel_would_find_it(folder: Path) -> None:
    here = str(folder)
    runs = str(folder / "runs")
    assert find_program("srv", Stdio("runs", cwd="/"), f"/no/such:{here}:/bin") == runs
    assert find_program("srv", Stdio("runs", env=(("PATH", here),), cwd="/"), "/bin") == runs
    assert find_program("srv", Stdio("./runs", cwd=here), "") == os.path.join(here, "./runs")
    assert find_program("srv", Stdio(runs, cwd="/"), "") == runs
    assert find_program("srv", Stdio("with space", cwd="/"), here) == str(folder / "with space")
    # An empty part of PATH is the working directory.
    assert find_program("srv", Stdio("runs", cwd=here), ":/bin") == os.path.join(here, "runs")


def test_a_whole_command_line_and_a_missing_program_are_told_apart() -> None:
    line = failure(Stdio("echo 'Hello World' --token=s3cr3t", cwd="/"))
    assert '`command` holds a whole command line that begins with "echo"' in line
    assert '{"command": "echo", "args": ["...", "..."]}' in line
    assert "s3cr3t" not in line
    missing = failure(Stdio("no-such-prog-zz", cwd="/"))
    assert "there is no program 'no-such-prog-zz' in PATH (/usr/bin:/bin)" in missing
    assert "full path" in missing


def test_the_path_of_an_entry_is_not_shown() -> None:
    told = failure(Stdio("no-such-prog-zz", env=(("PATH", "/s3cr3t"),), cwd="/"))
    assert "the PATH in `env` of the entry" in told
    assert "s3cr3t" not in told


def test_a_long_path_is_cut() -> None:
    assert len(failure(Stdio("no-such-prog-zz", cwd="/"), "/x" * 5_000)) < 1_300


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("./gone", "there is no program './gone', looked for in "),
        ("./gone --flag x", 'begins with "./gone"'),
        ("./plain", "plain is not executable"),
        ("plain", "plain is not executable"),
        ("./folder", "`command` names a folder"),
        ("folder", "there is no program 'folder' in PATH"),
        ("a\0b", "there is no program"),
    ],
)
def test_what_is_wrong_with_it_is_said(folder: Path, command: str, words: str) -> None:
    assert words in failure(Stdio(command, cwd=str(folder)), str(folder))


def test_a_working_directory_that_is_gone_is_named() -> None:
    assert "its working directory /no/such does not exist" in failure(Stdio("sh", cwd="/no/such"))
    assert "its working directory /dev/null is no directory" in failure(Stdio("sh", cwd="/dev/null"))
