"""Sessions: side by side, each with its project and interpreter, looked at without being disturbed, closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.client import Client, Message, Refused
from tests.e2e.watch import all_gone, begin, finished, living, session_of

VERSIONS = Path.home() / ".pyenv" / "versions"


@pytest.fixture
def client() -> Iterator[Client]:
    with Client() as opened:
        yield opened


def other_python(version: str) -> str:
    """An interpreter of this version, `3.10` or `2.7`; skips the test where there is none."""
    for folder in sorted(VERSIONS.glob(version + ".*")):
        python = folder / "bin" / ("python2.7" if version == "2.7" else f"python{version}")
        if python.exists():
            return str(python)
    pytest.skip(f"no Python {version} here")


def make_environment(folder: Path) -> Path:
    """A virtual environment made from the interpreter that runs the tests; its bin/python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return folder / "bin" / "python"


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def refused(answer: Message, code: str) -> str:
    """The error of a call that must have been refused with this code."""
    assert (answer["success"], answer["error_code"]) == (False, code), answer
    return str(answer["error"])


def prefix(client: Client, session_id: str | None = None) -> str:
    where = session_id or client.default_session()
    return str(client.execute("import sys; sys.prefix", session_id=where)["value"])


# -- side by side ----------------------------------------------------------------------------------------------


def test_sessions_have_namespaces_of_their_own_and_run_in_parallel(client: Client, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    other = client.structured("python_session_open", name="other", project=str(tmp_path / "project"))
    assert (other["name"], other["default"], other["generation"]) == ("other", False, 0)
    client.execute("v = 'default'")
    client.execute("v = 'other'", session_id=other["session_id"])
    run = begin(client, "while True: pass")
    there = client.execute("import os; [v, os.getcwd()]", session_id=other["session_id"])
    assert there["value"] == ["other", str((tmp_path / "project").resolve())]
    client.structured("python_cancel")
    finished(client, run["run_id"])
    assert client.execute("v")["value"] == "default"


def test_two_cells_wait_for_each_other_across_sessions(client: Client, tmp_path: Path) -> None:
    other = client.structured("python_session_open")["session_id"]

    def meet(mine: str, theirs: str) -> str:
        return (
            "import os, time\n"
            f"open({str(tmp_path / mine)!r}, 'w').close()\n"
            f"while not os.path.exists({str(tmp_path / theirs)!r}): time.sleep(0.005)\n"
            f"{mine!r}"
        )

    first = client.start_call("execute_python", code=meet("a", "b"))
    second = client.start_call("execute_python", code=meet("b", "a"), session_id=other)
    assert client.result(first)["structuredContent"]["value"] == "a"
    assert client.result(second)["structuredContent"]["value"] == "b"


def test_ids_of_nothing_are_refused(client: Client) -> None:
    for tool in ("execute_python", "python_start"):
        refused(client.structured(tool, code="1", session_id="s9-000000"), "UNKNOWN_SESSION")
    for tool in ("python_run", "python_cancel", "python_session_inspect", "python_session_close"):
        refused(client.structured(tool, session_id="s9-000000"), "UNKNOWN_SESSION")


@pytest.mark.parametrize("project", ["nowhere", "file", "/proc/self/mem", "nul\0byte"])
def test_a_project_that_is_no_directory_is_refused(client: Client, project: str) -> None:
    (client.cwd / "file").write_text("")
    before = len(client.structured("python_health")["sessions"])
    refused(client.structured("python_session_open", project=project), "PROJECT_NOT_FOUND")
    assert len(client.structured("python_health")["sessions"]) == before
    assert client.execute("1")["value"] == 1


def test_a_relative_project_is_below_the_servers(client: Client) -> None:
    (client.cwd / "sub").mkdir()
    opened = client.structured("python_session_open", project="sub")
    assert opened["project"] == str((client.cwd / "sub").resolve())


def test_one_more_session_than_allowed_is_refused() -> None:
    with Client("--limit", "sessions=3") as client:
        opened = [client.structured("python_session_open")["session_id"] for _ in range(2)]
        error = refused(client.structured("python_session_open"), "LIMIT_REACHED")
        assert "`sessions` is 3" in error
        client.structured("python_session_close", session_id=opened[0])
        assert "session_id" in client.structured("python_session_open")
        refused(client.structured("python_session_open"), "LIMIT_REACHED")


def test_sessions_asked_for_at_the_same_time_keep_to_the_limit() -> None:
    with Client("--limit", "sessions=3") as client:
        requests = [client.start_call("python_session_open") for _ in range(5)]
        answers = [client.result(request)["structuredContent"] for request in requests]
        assert sorted("session_id" in answer for answer in answers) == [False, False, False, True, True]
        assert len(client.structured("python_session_list")["sessions"]) == 3


# -- interpreters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_a_session_runs_in_the_python_it_was_opened_with(client: Client, version: str) -> None:
    opened = client.structured("python_session_open", python=other_python(version))
    assert opened["python_version"].startswith(version + ".")
    where = {"session_id": opened["session_id"]}
    result = client.execute("import sys\n1 + 1, list(sys.version_info[:2])", **where)
    assert result["return_value"] == f"(2, {[int(part) for part in version.split('.')]})"
    assert client.execute("import asyncio\nawait asyncio.sleep(0, 'awaited')", **where)["value"] == "awaited"
    assert client.execute("while True: pass", timeout=0.1, **where)["state"] == "preserved"
    assert client.execute("1 / 0", **where)["error"].startswith("Traceback")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9"])
def test_a_python_that_is_too_old_is_refused_in_words(client: Client, version: str) -> None:
    python = other_python(version)
    error = refused(client.structured("python_session_open", python=python), "INTERPRETER_BROKEN")
    assert f"Python {version} is too old" in error
    assert "3.10" in error
    assert len(client.structured("python_session_list")["sessions"]) == 1


def test_interpreters_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "not-executable").write_text("")
    broken = {
        str(tmp_path / "missing"): "",
        str(tmp_path / "not-executable"): "",
        str(tmp_path): "",
        "no-such-command-anywhere": "",
        "nul\0byte": "",
        "/bin/true": "exited with code 0",
        "/bin/cat": "",
        program(tmp_path / "noise", "#!/bin/sh\necho not a frame >&3\nexec sleep 60\n"): "protocol",
        program(tmp_path / "says why", "#!/bin/sh\necho the reason >&2\nexit 3\n"): "the reason",
        program(tmp_path / "bad interpreter", "#!/no/such/program\n"): "",
        program(tmp_path / "silent", "#!/bin/sh\nexec sleep 60\n"): "",
    }
    with Client("--limit", "probe_bound=2") as client:
        for python, words in broken.items():
            error = refused(client.structured("python_session_open", python=python), "INTERPRETER_BROKEN")
            assert words in error, python
        assert len(client.structured("python_session_list")["sessions"]) == 1
        assert len(client.descendants()) == 1  # the root guardian
        assert client.execute("1")["value"] == 1


def test_a_python_given_on_the_command_line_that_is_broken_breaks_only_its_cells() -> None:
    with Client("--python", "/no/such/python") as client:
        result = client.execute("1")
        assert (result["success"], result["error_code"]) == (False, "INTERPRETER_BROKEN")
        assert "/no/such/python" in result["error"]
        assert "Nothing was started" in result["error"]
        opened = client.structured("python_session_open", python=sys.executable)
        assert client.execute("2", session_id=opened["session_id"])["value"] == 2


def test_the_interpreter_of_the_command_line_is_that_of_opened_sessions_too(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "elsewhere")
    with Client("--python", str(python)) as client:
        assert prefix(client) == str(tmp_path / "elsewhere")
        assert prefix(client, client.structured("python_session_open")["session_id"]) == str(tmp_path / "elsewhere")


def test_the_projects_venv_is_used(tmp_path: Path) -> None:
    make_environment(tmp_path / ".venv")
    with Client(cwd=tmp_path) as client:
        assert prefix(client) == str(tmp_path / ".venv")
        assert session_of(client)["python_source"] == "the project's .venv"


def test_the_venv_of_an_opened_project_is_used(client: Client, tmp_path: Path) -> None:
    make_environment(tmp_path / ".venv")
    opened = client.structured("python_session_open", project=str(tmp_path))
    assert prefix(client, opened["session_id"]) == str(tmp_path / ".venv")
    assert prefix(client) != str(tmp_path / ".venv")


def broken_environment(folder: Path, kind: str) -> None:
    folder.mkdir()
    if kind == "dangling":
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(folder / "gone")
    elif kind == "failing":
        (folder / "bin").mkdir()
        program(folder / "bin" / "python", "#!/bin/sh\nexit 1\n")


@pytest.mark.parametrize("kind", ["empty", "dangling", "failing"])
def test_a_broken_venv_is_an_error_and_nothing_else_is_taken(tmp_path: Path, kind: str) -> None:
    broken_environment(tmp_path / ".venv", kind)
    good = make_environment(tmp_path / "good")
    with Client(cwd=tmp_path, env={"VIRTUAL_ENV": str(good.parents[1])}) as client:
        result = client.execute("1")
        assert result["success"] is False
        assert result["error_code"] in ("INTERPRETER_BROKEN", "WORKER_START_FAILED")
        assert ".venv" in result["error"]
        refused(client.structured("python_session_open"), "INTERPRETER_BROKEN")


def test_virtual_env_is_used_where_the_project_has_none(tmp_path: Path) -> None:
    make_environment(tmp_path / "active")
    with Client(env={"VIRTUAL_ENV": str(tmp_path / "active")}) as client:
        assert prefix(client) == str(tmp_path / "active")
        assert session_of(client)["python_source"] == "VIRTUAL_ENV"


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="the tests run in no virtual environment")
def test_the_servers_own_environment_is_never_the_workers(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for env in ({"VIRTUAL_ENV": sys.prefix}, {"VIRTUAL_ENV": sys.prefix + "/"}, {"VIRTUAL_ENV": None}):
        with Client(cwd=tmp_path, env=env) as client:
            result = client.execute("import sys; [sys.prefix == sys.base_prefix, sys.prefix]")
            assert result["value"] == [True, sys.base_prefix]


# -- looked at and closed --------------------------------------------------------------------------------------

HOSTILE = """\
class Meta(type):
    def __repr__(cls): touched.append('meta repr'); raise SystemExit
    def __getattribute__(cls, name): touched.append('meta ' + name); return super().__getattribute__(name)
class Hostile(metaclass=Meta):
    def __getattribute__(self, name): touched.append(name); raise SystemExit
    def __repr__(self): touched.append('repr'); raise SystemExit
    @property
    def __class__(self): touched.append('class'); raise SystemExit
    def __eq__(self, other): touched.append('eq'); raise SystemExit
    __hash__ = None
hostile, number, text = Hostile(), 5, 'x'
touched = []
"""


def test_an_inspection_lists_names_and_runs_no_user_code(client: Client) -> None:
    client.execute("touched = []\n" + HOSTILE)
    seen = client.structured("python_session_inspect", include_namespace=True)
    names = {entry["name"]: entry["type"] for entry in seen["namespace"]}
    assert names["number"] == "int"
    assert names["text"] == "str"
    assert "Hostile" in names["hostile"]
    assert seen["namespace_total"] >= 6
    assert client.execute("touched")["value"] == []


def test_an_inspection_is_answered_while_a_cell_runs(client: Client) -> None:
    client.execute("number = 5")
    run = begin(client, "while True: pass")
    seen = client.structured("python_session_inspect", include_namespace=True)
    assert "number" in {entry["name"] for entry in seen["namespace"]}
    assert seen["active_run"] == run["run_id"]
    assert [summary["status"] for summary in seen["runs"]] == ["finished", "running"]
    client.structured("python_cancel")


def test_an_inspection_starts_nothing(client: Client) -> None:
    seen = client.structured("python_session_inspect", include_namespace=True)
    assert (seen["worker"], seen["namespace"], seen["namespace_total"]) == ("none", [], 0)
    assert client.structured("python_session_list")["sessions"][0]["worker"] == "none"
    assert client.descendants() == []


def test_the_list_tells_what_health_tells(client: Client) -> None:
    client.structured("python_session_open", name="second")
    client.execute("1")
    listed = client.structured("python_session_list")["sessions"]
    for session, told in zip(listed, client.structured("python_health")["sessions"], strict=True):
        assert {**session, "age_s": 0} == {**told, "age_s": 0}
    assert [(session["name"], session["default"]) for session in listed] == [("default", True), ("second", False)]
    assert listed[0]["worker_pid"] in {process.pid for process in client.descendants()}


def test_a_closed_session_is_gone_and_its_run_ends(client: Client) -> None:
    other = client.structured("python_session_open")["session_id"]
    waiting = client.start_call("execute_python", code="print('in', flush=True)\nwhile True: pass", session_id=other)
    # Its worker is there once the session says so.
    while (worker := session_of(client, other).get("worker_pid")) is None:
        continue
    assert client.structured("python_session_close", session_id=other) == {"closed": True, "session_id": other}
    assert client.result(waiting)["structuredContent"]["error_code"] == "CANCELLED"
    assert not living(worker)
    refused(client.structured("execute_python", code="1", session_id=other), "UNKNOWN_SESSION")


def test_the_default_session_is_followed_by_an_empty_one(client: Client) -> None:
    client.execute("kept = 1")
    first = client.default_session()
    worker = session_of(client)["worker_pid"]
    client.structured("python_session_close", session_id=first)
    all_gone({worker}, 3)
    assert client.default_session() != first
    result = client.execute("'kept' in globals()")
    assert (result["value"], result["generation"], result["state_reset"]) == (False, 1, True)


def test_a_close_names_its_session(client: Client) -> None:
    with pytest.raises(Refused, match="session_id"):
        client.call("python_session_close")


def test_a_close_goes_through_although_its_request_is_given_up(client: Client) -> None:
    client.execute("import atexit, time; atexit.register(time.sleep, 60)")
    worker = session_of(client)["worker_pid"]
    first = client.default_session()
    client.cancel(client.start_call("python_session_close", session_id=first))
    all_gone({worker}, 10)
    assert first not in {session["session_id"] for session in client.structured("python_session_list")["sessions"]}
    assert os.path.isdir(client.cwd)
