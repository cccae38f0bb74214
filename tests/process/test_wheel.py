"""The release artifacts: built from this tree, installed apart from it, exercised over stdio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
STEP_BOUND = 60.0
"""seconds. For each child process of this file; a build takes about two."""

INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "wheel", "version": "0"},
}


@dataclass(frozen=True)
class Artifacts:
    """What one build made: the archives, and the environment into which the wheel is installed."""

    wheel: Path
    sdist: Path
    bin: Path


def clean_environment() -> Mapping[str, str]:
    """This process's environment without what would let the tree, or its coverage, into the child."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "PYTHON"))}


def run(*command: str | Path, cwd: Path, given: str = "") -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        command, cwd=cwd, env=clean_environment(), input=given, capture_output=True, text=True, timeout=STEP_BOUND
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    place = tmp_path_factory.mktemp("artifacts")
    # The wheel is made from the unpacked sdist, so what the sdist lacks is missing here as well.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", place, ROOT, cwd=place)
    (wheel,) = place.glob("*.whl")
    (sdist,) = place.glob("*.tar.gz")

    target = place / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", target, cwd=place)
    run(sys.executable, "-m", "pip", "--python", target, "install", "--no-deps", "--no-index", wheel, cwd=place)
    # The dependencies are those of the running environment. Its own .pth files, which lead back to the tree, count for
    # nothing there: site reads such files only in a site directory.
    (packages,) = target.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Artifacts(wheel, sdist, target / "bin")


def wheel_names(artifacts: Artifacts) -> list[str]:
    with zipfile.ZipFile(artifacts.wheel) as archive:
        return archive.namelist()


def test_wheel_carries_the_guardian_as_data(artifacts: Artifacts) -> None:
    shipped = {name.removeprefix("repl_trio/_guardian/") for name in wheel_names(artifacts) if "_guardian/" in name}
    assert "guardian.py" in shipped
    assert shipped == {path.name for path in (ROOT / "guardian").glob("*.py")}


def test_wheel_installs_one_top_level_package(artifacts: Artifacts) -> None:
    tops = {name.partition("/")[0] for name in wheel_names(artifacts)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"repl_trio"}
    probe = "import importlib.util as u; print(u.find_spec('guardian'), u.find_spec('repl_trio').origin)"
    guardian, origin = run(artifacts.bin / "python", "-I", "-c", probe, cwd=artifacts.bin).split()
    assert guardian == "None"
    assert Path(origin).is_relative_to(artifacts.bin.parent)


def test_wheel_carries_every_module_and_no_bytecode(artifacts: Artifacts) -> None:
    names = set(wheel_names(artifacts))
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "repl_trio").rglob("*.py")}
    assert modules - names == set()
    assert [name for name in names if name.endswith(".pyc")] == []


def test_sdist_carries_what_a_developer_needs(artifacts: Artifacts) -> None:
    with tarfile.open(artifacts.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "requirements.lock", "requirements-test.lock", "LICENSE", "README.md", "scripts/run"}
    assert wanted | {"guardian/guardian.py", "tests/conftest.py", "tests/test_architecture.py"} <= names
    assert [name for name in names if name.startswith((".venv", ".git/"))] == []


def test_installed_version_from_another_folder(artifacts: Artifacts, tmp_path: Path) -> None:
    version = artifacts.wheel.name.split("-")[1]
    assert version in run(artifacts.bin / "repl-trio", "--version", cwd=tmp_path)


def test_installed_server_runs_a_cell_over_stdio(artifacts: Artifacts, tmp_path: Path) -> None:
    call = {"name": "execute_python", "arguments": {"code": "import os\n(6 * 7, os.getcwd())"}}
    lines: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    with subprocess.Popen(
        [artifacts.bin / "repl-trio"],
        cwd=tmp_path,
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin
        assert server.stdout
        try:
            server.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
            server.stdin.flush()
            # A silent server ends at the hang bound of the test; the others answer or close the pipe.
            answers = {}
            while 2 not in answers:
                message = json.loads(server.stdout.readline())
                if "id" in message:
                    answers[message["id"]] = message["result"]
            server.stdin.close()
            assert server.wait(STEP_BOUND) == 0
        finally:
            server.kill()
    assert answers[1]["protocolVersion"] == INITIALIZE["protocolVersion"]
    assert answers[2]["structuredContent"]["return_value"] == repr((42, str(tmp_path.resolve())))
