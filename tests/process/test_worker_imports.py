"""What a cell installs, writes or edits, and what the next one imports."""

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker_driver import BOOT, BOUND, EACH, EXTREMES, WorkerDriver, interpreter

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


@pytest.mark.parametrize("version", EACH)
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


@pytest.mark.parametrize("version", EACH)
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


@pytest.mark.parametrize("version", EACH)
def test_rep_a13_a_reload_sees_an_edit_of_the_same_second_and_size(version: str, tmp_path: Path) -> None:
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        worker.cell(EDIT.format(path=str(tmp_path / "edited.py")))
        assert worker.cell("import edited\nedited.value").value == 1
        assert worker.cell("write('value = 2')\nimport edited\nedited.value").value == 1
        assert worker.cell("importlib.reload(edited).value").value == 2
        assert worker.cell("write('value = 3'); importlib.reload(edited).value").value == 3
        assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize("version", EACH)
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


# -- while the worker itself imports -------------------------------------------------------------------------------

FIRST_USES = {
    "helpers": "sh('true'); display(b''); checkpoint('kept.json', [])",
    "standard": "import linecache, getpass, pdb, inspect",
}
BESIDE = """\
import importlib, threading
started, failed = threading.Event(), []
def first_use():
    started.set()
    {use}
thread = threading.Thread(target=first_use); thread.start(); started.wait()
for number in range({count}):
    try: importlib.import_module(f'beside{{number}}')
    except ImportError as error: failed.append(str(error))
thread.join()
[len(failed), failed[:1]]
"""


@pytest.mark.parametrize("version", EXTREMES)
@pytest.mark.parametrize("use", FIRST_USES)
def test_the_first_use_of_a_helper_in_one_thread_leaves_the_imports_of_others_alone(
    version: str, use: str, tmp_path: Path
) -> None:
    count = 600
    for number in range(count):
        (tmp_path / f"beside{number}.py").touch()
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        assert worker.cell(BESIDE.format(use=FIRST_USES[use], count=count)).value == [0, []]


IN_ISOLATION = """\
import os, sys, threading
isolation = sys.modules['_repl_trio.worker.isolation']
before = list(sys.path), sys.meta_path, list(sys.meta_path), sys.path_hooks, sys.dont_write_bytecode
inside, over = threading.Event(), threading.Event()
def wait():
    inside.set()
    over.wait(10)
thread = threading.Thread(target=isolation.with_standard_path, args=(wait,)); thread.start()
inside.wait(10)
"""
WITHIN = """\
try:
    import beside
    now = list(sys.path), sys.meta_path, list(sys.meta_path), sys.path_hooks, sys.dont_write_bytecode
finally:
    over.set(); thread.join()
[beside.value, now == before, now[1] is before[1]]
"""


@pytest.mark.parametrize("version", EACH)
def test_what_one_thread_imports_for_the_worker_changes_nothing_in_the_others(version: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 6")
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        assert worker.cell(IN_ISOLATION + WITHIN).value == [6, True, True]
        assert not (tmp_path / "__pycache__").exists()


#: What must hold again after every first use: the project's own modules, and the worker's.
UNHARMED = """\
import selectors, beside
r = await ash('echo lives')
[selectors.mine, sys.modules['selectors'] is own, beside.value, sys.path == path, r.stdout,
 sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), sys.getrecursionlimit()]
"""
LIVES = [True, True, 6, True, "lives\n", [], 1000]


@pytest.fixture(params=EACH)
def shadowed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    """A worker whose cells have imported a project's own `selectors`."""
    (tmp_path / "selectors.py").write_text("mine = True")
    (tmp_path / "beside.py").write_text("value = 6")
    with WorkerDriver(interpreter(request.param), tmp_path) as worker:
        worker.ready()
        worker.cell("import signal, sys, selectors\nown, path = selectors, list(sys.path)")
        yield worker


DEEP = """\
def use(depth):
    try: use(depth + 1)
    except RecursionError: pass
    if not done:
        try:
            sh('true')
            done.append(depth)
        except RecursionError: refused.append(depth)
done, refused = [], []
use(0)
[len(done), len(refused) > 0]
"""


def test_a_first_use_that_is_too_deep_changes_nothing(shadowed: WorkerDriver) -> None:
    assert shadowed.cell(DEEP).value == [1, True]
    assert shadowed.cell(UNHARMED).value == LIVES


def test_a_first_use_below_a_low_limit_of_recursion_leaves_that_limit(shadowed: WorkerDriver) -> None:
    told = shadowed.cell("sys.setrecursionlimit(90)\nr = sh('echo low')\n[r.stdout, sys.getrecursionlimit()]")
    assert told.value == ["low\n", 90]
    shadowed.cell("sys.setrecursionlimit(1000)")
    assert shadowed.cell(UNHARMED).value == LIVES


ALARMS = """\
import itertools
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
isolation = sys.modules['_repl_trio.worker.isolation']
landed = harmed = 0
for round in range(1_500):
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-5 + round % 300 * 2e-6)
        for _ in itertools.repeat(None, 50): isolation.with_standard_path(int)
    except Late: landed += 1
    try: signal.setitimer(signal.ITIMER_REAL, 0)
    except Late: landed += 1
    harmed += sys.path != path or sys.modules.get('selectors') is not own
    harmed += signal.SIGALRM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
[landed > 0, harmed]
"""


@pytest.mark.parametrize("masked", [True, False], ids=["alone", "beside a thread"])
def test_a_handler_that_raises_while_the_worker_imports_changes_nothing(shadowed: WorkerDriver, masked: bool) -> None:
    if not masked:
        # The kernel gives the signal to the thread that lets it in, and Python runs its handler in the main one.
        shadowed.cell("import threading\nover = threading.Event()")
        shadowed.cell("threading.Thread(target=over.wait, daemon=True).start()")
    assert shadowed.cell(ALARMS).value == [True, 0]
    shadowed.cell("globals().get('over') and over.set()")
    assert shadowed.cell(UNHARMED).value == LIVES


WHOLE = """\
class Late(Exception): pass
def late(*_): raise Late
signal.signal(signal.SIGALRM, late)
done = []
def load():
    signal.raise_signal(signal.SIGALRM)
    done.append(sys.modules.get('selectors') is own)
try: sys.modules['_repl_trio.worker.isolation'].with_standard_path(load)
except Late: done.append(sys.modules['selectors'] is own)
done
"""


def test_a_signal_waits_for_the_end_of_the_workers_import(shadowed: WorkerDriver) -> None:
    assert shadowed.cell(WHOLE).value == [False, True]
    assert shadowed.cell(UNHARMED).value == LIVES


FORKED = """\
hidden = 'selectors' not in sys.modules
child = os.fork()
if child == 0:
    os._exit(0 if sys.modules.get('selectors') is own and sh('true').ok else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
over.set(); thread.join()
[hidden, status]
"""


def test_a_child_forked_meanwhile_is_not_in_isolation(shadowed: WorkerDriver) -> None:
    assert shadowed.cell(IN_ISOLATION + FORKED).value == [True, 0]
    assert shadowed.cell(UNHARMED).value == LIVES


def test_a_finder_of_the_users_is_not_asked_for_the_workers_modules_and_stays_first(shadowed: WorkerDriver) -> None:
    shadowed.cell(
        "class Greedy:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        asked.append(name)\n"
        "        if name in sys.stdlib_module_names: raise RuntimeError('greedy')\n"
        "asked = []; greedy = Greedy(); finders = sys.meta_path; sys.meta_path.insert(0, greedy)"
    )
    told = shadowed.cell(
        "sh('true'); seen = [name for name in asked if 'repl_trio' in name]\n"
        "[seen, sys.meta_path is finders, sys.meta_path.pop(0) is greedy]"
    )
    assert told.value == [[], True, True]
    assert shadowed.cell(UNHARMED).value == LIVES


MEANWHILE = """\
import sys, threading
begun, needed = threading.Event(), threading.Event()
def watch(event, arguments):
    if event == 'import' and arguments[0] == 'subprocess' and threading.current_thread() is not thread:
        needed.set()
sys.addaudithook(watch)
thread = threading.Thread(target=__import__, args=('selectors',)); thread.start()
begun.wait(10)
r = sh('true')
"""


@pytest.mark.parametrize("version", EACH)
def test_a_shadow_that_another_thread_is_importing_reaches_neither_of_them(version: str, tmp_path: Path) -> None:
    """The worker's import of `subprocess` comes upon a project's `selectors` that was not there when it began."""
    (tmp_path / "selectors.py").write_text("import __main__\n__main__.begun.set()\n__main__.needed.wait(10)\nmine = 1")
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        answer = worker.cell(MEANWHILE + "thread.join()\nimport selectors\n[r.ok, selectors.mine]")
        assert (answer.value, answer.stderr) == ([True, 1], ""), answer
        # A cell that awaits has the worker import asyncio, which needs the standard module too.
        after = worker.cell("a = await ash('echo lives')\n[a.stdout, sys.modules['selectors'] is selectors]")
        assert after.value == ["lives\n", True], after


@pytest.mark.parametrize("version", EACH)
def test_the_workers_own_late_modules_keep_their_bytecode(version: str, tmp_path: Path) -> None:
    package = tmp_path / "copied"
    shutil.copytree(BOOT.parent.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "users.py").write_text("value = 7")
    boot = [str(package / "worker" / "boot.py")]
    with WorkerDriver(interpreter(version), tmp_path, {"PYTHONDONTWRITEBYTECODE": "1"}, boot) as worker:
        worker.ready()
        assert worker.cell("import users\nr = sh('echo out')\n[users.value, r.stdout]").value == [7, "out\n"]
        kept = {path.name.partition(".")[0] for path in (package / "worker" / "__pycache__").iterdir()}
        assert {"life", "shell"} <= kept
        assert not (tmp_path / "__pycache__").exists()
    with WorkerDriver(interpreter(version), tmp_path, None, boot) as worker:
        worker.ready()
        written = {path: path.stat().st_mtime_ns for path in (package / "worker" / "__pycache__").iterdir()}
        assert worker.cell("r = sh('echo out')\nr.stdout").value == "out\n"
        assert all(path.stat().st_mtime_ns == when for path, when in written.items()), "they are good as they are"
