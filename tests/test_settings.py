"""Command lines and limits: what is understood, and how what is not is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repl_trio.limits import Limits
from repl_trio.settings import parse


def test_without_a_command_the_terminal_decides() -> None:
    assert parse([], terminal=True).command == "console"
    assert parse([], terminal=False).command == "serve"
    assert parse(["serve"], terminal=True).command == "serve"


def test_options_before_exec_are_ours_and_those_behind_it_the_files() -> None:
    settings = parse(["--python", "exec", "--limit=sessions=3", "exec", "file.py", "--python", "x"], terminal=False)
    assert (settings.command, settings.python, settings.limits.sessions) == ("exec", "exec", 3)
    assert settings.arguments == ("file.py", "--python", "x")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--pyhton", "x"], "did you mean --python?"),
        (["--qqq"], "known: "),
        (["--limit", "sessions"], "NAME=VALUE"),
        (["--limit", "no_such=1"], "unknown limit"),
        (["--limit", "sessions=x"], "a whole number"),
        (["--limit", "write_stall=x"], "a number"),
        (["--limit", "sessions=0"], "positive"),
        (["--limit", "write_stall=nan"], "positive"),
        (["--limit", "timeout_max=5"], "timeout_default"),
        (["--project-root", "/no/such/folder"], "is no directory"),
        (["--log-file", "/no/such/folder/log"], "cannot be written"),
        (["exec"], "exec takes a file"),
        (["--mcp-scope", "project,usr"], "'usr' is no scope; known: none, all, project, user, local"),
        (["--mcp-scope", ""], "is no scope"),
        (["--mcp-scope", "user", "--config", "x.json"], "--mcp-scope leaves out"),
    ],
)
def test_a_wrong_command_line_is_refused_in_words(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(argv, terminal=False)
    assert exit_.value.code == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(SystemExit, match="no longer exists"):
        parse([], terminal=False)


def test_a_log_file_and_a_project_are_taken(tmp_path: Path) -> None:
    settings = parse(["--log-file", str(tmp_path / "log"), "--project-root", str(tmp_path)], terminal=False)
    assert settings.project == os.path.realpath(tmp_path)
    assert (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("argv", "scopes"),
    [
        ([], ("project",)),
        (["--log-level", "info"], ("project",)),
        (["--mcp-scope", "none"], ()),
        (["--mcp-scope", "all"], ("project", "user", "local")),
        (["--mcp-scope=local,project"], ("project", "local")),
    ],
)
def test_only_the_projects_servers_are_reached_unless_asked_for(argv: list[str], scopes: tuple[str, ...]) -> None:
    assert parse(argv, terminal=False).scopes == scopes


def test_a_registry_is_named_by_its_path_and_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(["--config", "no/such.json"], terminal=False).config == os.path.join(os.getcwd(), "no/such.json")
    assert parse([], terminal=False).config is None


def test_limits_do_not_change_and_tell_what_differs() -> None:
    limits = Limits.overridden({"sessions": "3", "write_stall": "0.5"})
    assert limits.overrides() == ["sessions=3", "write_stall=0.5"]
    assert Limits().overrides() == []
    with pytest.raises(AttributeError):
        limits.sessions = 4
