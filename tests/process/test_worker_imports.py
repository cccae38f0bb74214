"""What a cell installs, writes or edits, and what the next one imports."""

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.process.worker_driver import BOUND, EXTREMES, VERSIONS, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


def wheel(folder: Path, name: str, source: str) -> Path:
    """A wheel of one module, so that nothing needs a network or a build."""
    tag = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": source,
        f"{tag}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{tag}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text)}\n")
    files[f"{tag}/RECORD"] = "".join(record) + f"{tag}/RECORD,,\n"
    made = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return made


def needs_pip(python: str) -> None:
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, timeout=BOUND).returncode != 0:
        pytest.skip(f"no pip in {python}")


def environment(python: str, folder: Path) -> str:
    """A virtual environment that sees the pip of its base, which is much cheaper than one of its own."""
    command = [python, "-m", "venv", "--without-pip", "--system-site-packages", str(folder)]
    subprocess.run(command, check=True, timeout=BOUND)
    return str(folder / "bin/python")


PIP = "'pip', 'install', '--no-index', '--no-deps', '--disable-pip-version-check', '--quiet'"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_package_that_one_cell_installs_the_next_imports(version: str, tmp_path: Path) -> None:
    """Also when it was looked for before, and already in the statement behind the installation."""
    base = interpreter(version)
    needs_pip(base)
    first, second = wheel(tmp_path, "first_package", "value = 1"), wheel(tmp_path, "second_package", "value = 2")
    with WorkerDriver(environment(base, tmp_path / "venv"), tmp_path) as worker:
        worker.ready()
        assert "ModuleNotFoundError" in worker.cell("import first_package").error
        assert worker.cell("try: import second_package\nexcept ImportError: told = True\ntold").value is True
        installed = worker.cell(f"import sys\nsh([sys.executable, '-m', {PIP}, {str(first)!r}]).ok")
        assert installed.value is True, installed
        answer = worker.cell(
            "import first_package, importlib.metadata as m\n[first_package.value, m.version('first_package')]"
        )
        assert answer.value == [1, "1.0"]
        assert worker.cell("first_package.__file__").value.startswith(str(tmp_path / "venv"))
        same = worker.cell(
            f"r = await ash([sys.executable, '-m', {PIP}, {str(second)!r}])\nimport second_package as s\ns.value"
        )
        assert same.value == 2, same


@pytest.mark.parametrize("version", EXTREMES)
def test_a_user_site_that_did_not_exist_is_found(version: str, tmp_path: Path) -> None:
    """`pip` installs there by itself where it may not write to the interpreter's own folder."""
    python = interpreter(version)
    needs_pip(python)
    made = wheel(tmp_path, "users_package", "value = 3")
    with WorkerDriver(python, tmp_path, {"PYTHONUSERBASE": str(tmp_path / "user")}) as worker:
        worker.ready()
        assert "ModuleNotFoundError" in worker.cell("import users_package").error
        before = worker.cell("import sys\nlen(sys.path)").value
        installed = worker.cell(f"sh([sys.executable, '-m', {PIP}, '--user', {str(made)!r}]).ok")
        assert installed.value is True, installed
        assert worker.cell("import users_package\nusers_package.value").value == 3
        # Once, behind the rest, and a cell may take it out again.
        assert worker.cell("sys.path[-1]").value.startswith(str(tmp_path / "user"))
        worker.cell("sys.path.pop()")
        assert worker.cell("len(sys.path)").value == before


@pytest.mark.parametrize("version", VERSIONS)
def test_a_folder_on_the_path_that_comes_later_is_found(version: str, tmp_path: Path) -> None:
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        assert (
            worker.cell("import sys, os\nsys.path.append('later')\nimport in_later").error_type == "ModuleNotFoundError"
        )
        worker.cell("os.mkdir('later'); open('later/in_later.py', 'w').write('value = 4')")
        assert worker.cell("import in_later\nin_later.value").value == 4
        # In the same tick of the file system's clock as the look that found nothing.
        worker.cell("try: import at_once\nexcept ImportError: times = os.stat('later')")
        worker.cell("open('later/at_once.py', 'w').write('value = 5')")
        worker.cell("os.utime('later', ns=(times.st_atime_ns, times.st_mtime_ns))")
        assert worker.cell("import at_once\nat_once.value").value == 5


EDIT = """\
import importlib, os
path = {path!r}
def write(text):
    # As an editor would: the same length, and the time of the first writing.
    with open(path, 'w') as file: file.write(text)
    os.utime(path, (1_700_000_000, 1_700_000_000))
write('value = 1')
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_rep_a13_a_reload_sees_an_edit_of_the_same_second_and_size(version: str, tmp_path: Path) -> None:
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        worker.cell(EDIT.format(path=str(tmp_path / "edited.py")))
        assert worker.cell("import edited\nedited.value").value == 1
        assert worker.cell("write('value = 2')\nimport edited\nedited.value").value == 1
        assert worker.cell("importlib.reload(edited).value").value == 2
        assert worker.cell("write('value = 3'); importlib.reload(edited).value").value == 3
        assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_rep_a13_a_reload_of_a_submodule_reaches_its_package_and_no_copies(version: str, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from .part import value")
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        worker.cell(EDIT.format(path=str(package / "part.py")))
        assert worker.cell("import package.part\nfrom package.part import value\nvalue").value == 1
        told = worker.cell(
            "write('value = 2'); importlib.reload(package.part)\n[package.part.value, package.value, value]"
        )
        assert told.value == [2, 1, 1]
        # Inside out: the part, then whoever copied from it, then the cell's own copy.
        again = worker.cell("importlib.reload(package)\nfrom package.part import value\n[package.value, value]")
        assert again.value == [2, 2]
        worker.cell("write('value = 5')")
        dropped = worker.cell(
            "import sys\nparts = [name for name in sys.modules if name.partition('.')[0] == 'package']\n"
            "for name in parts: del sys.modules[name]\n"
            "import package\n[package.value, package.part.value]"
        )
        assert dropped.value == [5, 5]
        assert [path for path in package.rglob("*") if path.suffix == ".pyc"] == []
