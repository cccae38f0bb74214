"""What a cell finds around it is the user's; what the worker needs is not the user's to break."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from tests.e2e.client import Client
from tests.e2e.watch import family

SHADOWS = (
    "selectors",
    "json",
    "asyncio",
    "signal",
    "traceback",
    "io",
    "types",
    "threading",
    "ast",
    "_queue",
    "repl_trio",
)
# PYTHONPATH is for the workers here; the server's own interpreter must not see it (-E).
WITHOUT_PYTHONPATH = [
    sys.executable,
    "-I",
    "-c",
    "import os, sys; os.execv(sys.argv[1], [sys.argv[1], '-E', *sys.argv[2:]])",
]


@pytest.mark.parametrize("where", ["cwd", "PYTHONPATH"])
def test_project_files_that_shadow_the_standard_library_do_not_break_the_worker(tmp_path: Path, where: str) -> None:
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the shadow of {name}')\n")
    env = {"PYTHONPATH": str(tmp_path)} if where == "PYTHONPATH" else {}
    with Client(env=env, cwd=tmp_path if where == "cwd" else None, wrap=WITHOUT_PYTHONPATH) as client:
        assert client.execute("1 + 1")["value"] == 2
        assert "ZeroDivisionError" in client.execute("1 / 0")["error"]
        assert client.execute("while True: pass", timeout=0.1)["state"] == "preserved"
        assert client.execute("async def f(): return 3\nawait f()")["value"] == 3
        assert client.execute("print(sh('echo from the shell'))")["stdout"].startswith("from the shell")
        # The user's own import finds the user's own file, as everywhere.
        assert "the shadow of json" in client.execute("import json")["error"]
        assert client.execute("1 + 1", reset=True)["value"] == 2


def test_a_broken_sitecustomize_does_not_break_the_worker(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('from sitecustomize')\n")
    with Client(env={"PYTHONPATH": str(tmp_path)}) as client:
        assert client.execute("1 + 1")["value"] == 2


def test_the_path_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("WORD = 'found'\n")
    with Client(env={"PYTHONPATH": str(tmp_path)}) as client:
        path = client.execute("import sys; sys.path")["value"]
        assert path[:2] == ["", str(tmp_path)]
        assert client.execute("import mine; mine.WORD")["value"] == "found"
        (client.cwd / "local.py").write_text("WORD = 'in the project'\n")
        assert client.execute("import local; local.WORD")["value"] == "in the project"
        flags = client.execute("[sys.flags.isolated, sys.flags.no_site, sys.flags.ignore_environment]")["value"]
        assert flags == [0, 0, 0]
        child = "import subprocess; subprocess.run([sys.executable, '-c', 'import mine; print(mine.WORD)']).returncode"
        assert client.execute(child)["value"] == 0


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="the tests run in no virtual environment")
def test_the_servers_packages_are_not_the_workers() -> None:
    ours = sysconfig.get_paths()["purelib"]
    with Client() as client:
        path = client.execute("import sys; sys.path")["value"]
        assert ours not in path
        assert not any(sys.prefix in entry for entry in path)
        assert not any(entry.endswith(("repl_trio", "repl_trio/worker")) for entry in path)
        found = client.execute("import importlib.util as u; [u.find_spec(n) is None for n in ('trio', 'repl_trio')]")
        assert found["value"][1] is True
        names = client.execute("sorted(n for n in sys.modules if n.split('.')[0] in ('repl_trio', 'trio', 'mcp'))")
        assert names["value"] == []


def test_directory_and_variables_are_those_of_the_launch(tmp_path: Path) -> None:
    with Client(env={"X_WORD": "ünï"}, cwd=tmp_path) as client:
        assert client.execute("import os; [os.getcwd(), os.environ['X_WORD']]")["value"] == [
            str(tmp_path.resolve()),
            "ünï",
        ]
        assert client.execute("import sys; sys.argv")["value"] == [""]
        told = client.execute("sorted(n for n in os.environ if 'REPL_TRIO' in n and 'TEST_COOKIE' not in n)")
        assert told["value"] == ["REPL_TRIO_SERVER"]


def test_another_project_root_is_the_directory_of_its_cells(tmp_path: Path) -> None:
    with Client("--project-root", str(tmp_path)) as client:
        assert client.execute("import os; os.getcwd()")["value"] == str(tmp_path.resolve())
        assert client.structured("python_health")["sessions"][0]["project"] == str(tmp_path.resolve())


def test_a_directory_that_is_gone_is_an_error_of_the_cell(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with Client() as client:
        opened = client.structured("python_session_open", project=str(project))
        project.rmdir()
        result = client.execute("1", session_id=opened["session_id"])
        # Nothing ran and nothing was lost.
        assert (result["success"], result["state"], result["generation"]) == (False, "preserved", 0)
        assert client.execute("2")["value"] == 2


@pytest.mark.parametrize("name", ["PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT", "PYTHONVERBOSE", "PYTHONOPTIMIZE"])
def test_variables_for_pythons_do_not_disturb_the_link(tmp_path: Path, name: str) -> None:
    startup = tmp_path / "startup.py"
    startup.write_text("print('started up')\n")
    text = {"PYTHONSTARTUP": str(startup), "PYTHONHOME": sys.base_prefix, "PYTHONOPTIMIZE": "2"}.get(name, "1")
    with Client(env={name: text}) as client:
        assert client.execute("1 + 1")["value"] == 2


def test_secrets_of_the_environment_are_in_no_argument_list() -> None:
    secret = "sesame-4711"
    with Client(env={"API_TOKEN": secret}) as client:
        client.execute("import os, subprocess; kept = subprocess.Popen(['sleep', '600'])")
        assert client.execute("os.environ['API_TOKEN']")["value"] == secret
        opened = client.structured("python_session_open")
        client.execute("1", session_id=opened["session_id"])
        members = family(client)
        assert len(members) == 7
        for pid in members:
            assert not any(secret in word for word in psutil.Process(pid).cmdline()), psutil.Process(pid).cmdline()
        assert secret not in str(client.structured("python_health"))
        assert secret not in client.stderr()


def test_the_low_descriptors_of_a_cell_are_three() -> None:
    with Client() as client:
        code = "import os; sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) < 100)"
        low = client.execute(code)["value"]
        # The listing itself needs one.
        assert low == [0, 1, 2, 3]
        child = (
            "import subprocess; subprocess.run(['ls', '/proc/self/fd'], capture_output=True, text=True).stdout.split()"
        )
        assert client.execute(child)["value"] == ["0", "1", "2", "3"]
        assert client.execute("os.readlink('/proc/self/fd/0')")["value"] == os.devnull
