"""A worker's start, its descriptors, and its end."""

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker_driver import BOOT, EACH, Gone, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.fixture(params=EACH)
def python(request: pytest.FixtureRequest) -> str:
    return interpreter(request.param)


@pytest.fixture
def worker(python: str, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(python, tmp_path) as driver:
        driver.ready()
        yield driver


def refusal(python: str) -> tuple[dict[str, object], int]:
    """What an interpreter that is too old says on descriptor 3, and its exit status."""
    read, write = os.pipe()
    try:
        pid = os.posix_spawn(python, [python, str(BOOT)], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, write, 3)])
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return json.loads(os.read(read, 4096)), status
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9"])
def test_an_old_interpreter_says_why_it_cannot_serve(version: str) -> None:
    frame, status = refusal(interpreter(version))
    assert frame == {
        "frame": "refused",
        "reason": f"Python {version} is too old: a worker needs 3.10 or newer",
    }
    assert status == 1


def test_ready_names_the_interpreter(python: str, tmp_path: Path) -> None:
    with WorkerDriver(python, tmp_path) as driver:
        ready = driver.ready()
        told = driver.cell(
            "import sys, os\n['.'.join(map(str, sys.version_info[:3])), sys.executable, sys.prefix, os.getpid()]"
        )
        assert [ready[key] for key in ("python_version", "executable", "prefix", "pid")] == told.value
        assert ready["version"] == 1
        assert ready["pid"] == driver.pid


def test_surroundings_are_those_of_a_plain_interactive_python(worker: WorkerDriver, tmp_path: Path) -> None:
    told = worker.cell(
        "import sys, os, __main__\n"
        "[sys.argv, sys.path[0], os.getcwd(), __name__, __main__.__dict__ is globals(), '__file__' in globals(),"
        " __builtins__ is __import__('builtins'), sys.flags.isolated, any('repl_trio' in entry for entry in sys.path)]"
    )
    assert told.value == [[""], "", str(tmp_path), "__main__", True, False, True, 0, False]


def test_the_path_is_the_users_own(python: str, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "mine.py").write_text("value = 5")
    (tmp_path / "beside.py").write_text("value = 6")
    with WorkerDriver(python, tmp_path, {"PYTHONPATH": str(library)}) as driver:
        driver.ready()
        assert driver.cell("import mine, beside\n[mine.value, beside.value]").value == [5, 6]


SHADOWED = (
    "_queue",
    "abc",
    "ast",
    "asyncio",
    "base64",
    "codecs",
    "colorsys",
    "collections",
    "contextlib",
    "contextvars",
    "fcntl",
    "functools",
    "inspect",
    "io",
    "json",
    "linecache",
    "os",
    "queue",
    "re",
    "resource",
    "select",
    "selectors",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "token",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "warnings",
)


@pytest.mark.parametrize("place", ["cwd", "PYTHONPATH"])
def test_project_files_that_shadow_the_standard_library_do_not_reach_the_worker(
    python: str, tmp_path: Path, place: str
) -> None:
    shadowed = set(SHADOWED)
    if place == "PYTHONPATH":
        # What the interpreter itself imports at its start (`site`) is out of anybody's hands.
        shadowed -= {"abc", "codecs", "io", "os", "types", "collections", "functools", "contextlib", "re"}
    for name in shadowed:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadow')")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with WorkerDriver(
        python, tmp_path if place == "cwd" else elsewhere, {"PYTHONPATH": str(tmp_path)} if place != "cwd" else None
    ) as driver:
        driver.ready()
        failed = driver.cell("def f():\n    return 1/0\nf()")
        assert "    return 1/0" in failed.error
        assert driver.cell("await __import__('sys').modules['asyncio'].sleep(0)\n3").value == 3
        assert driver.cell("sh('echo out')").stdout == "out\n"
        # The user's own import still gets the user's own file.
        assert "shadow" in driver.cell("import colorsys").error


def test_a_module_of_the_users_that_shadows_one_stays_the_users(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "selectors.py").write_text("mine = True")
    assert worker.cell("import selectors\nselectors.mine").value is True
    assert worker.cell("await __import__('asyncio').sleep(0)\nselectors.mine").value is True
    assert worker.cell(
        "import selectors as again, sys\nagain is selectors and sys.modules['selectors'] is selectors"
    ).value


def test_hooked_modules_of_the_users_are_left_alone(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "getpass.py").write_text("def getpass(): return 'from the project'")
    assert worker.cell("import getpass\ngetpass.getpass()").value == "from the project"


def test_a_project_that_develops_this_package_imports_its_own_copy(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "repl_trio").mkdir()
    (tmp_path / "repl_trio" / "__init__.py").write_text("mine = True")
    assert worker.cell("import repl_trio\nrepl_trio.mine").value is True


def test_an_idle_worker_has_loaded_nothing_heavy(python: str, tmp_path: Path) -> None:
    heavy = {
        "ast",
        "asyncio",
        "dataclasses",
        "enum",
        "inspect",
        "json",
        "linecache",
        "re",
        "signal",
        "subprocess",
        "threading",
        "tokenize",
        "traceback",
        "typing",
    }
    # -S would hide what is measured; a plain start of the same interpreter is the floor.
    with WorkerDriver(python, tmp_path) as driver:
        driver.ready()
        loaded = set(driver.cell("__import__('sys').modules.keys() and sorted(__import__('sys').modules)").value)
        plain = driver.cell(
            "import subprocess, sys\n"
            "subprocess.run([sys.executable, '-c', 'import sys; print(*sys.modules)'], capture_output=True, text=True)"
            ".stdout.split()"
        )
        assert not (heavy & loaded) - set(plain.value)


def test_frames_use_high_descriptors_and_low_ones_are_the_cells(worker: WorkerDriver) -> None:
    told = worker.cell(
        "import os\n"
        "low = [number for number in range(3, 200) if os.path.exists(f'/proc/self/fd/{number}')]\n"
        "high = [number for number in range(500, 1000) if os.path.exists(f'/proc/self/fd/{number}')]\n"
        "[low, len(high), [os.get_inheritable(number) for number in high], os.readlink('/proc/self/fd/0')]"
    )
    low, high, inheritable, standard_input = told.value
    # Descriptors that this test's own parent left open reach every child of the tests.
    assert not {3, 4} & set(low)
    assert high == 6 + 4, "the link, the pipes, the crash report; and a reserve"
    assert not any(inheritable)
    assert standard_input == "/dev/null"


def test_few_open_files_are_enough(python: str, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with WorkerDriver(
        "/bin/sh", tmp_path, {"PY": python}, ["-c", 'ulimit -n 64; exec "$PY" "$0"', str(BOOT)]
    ) as driver:
        driver.ready()
        assert driver.cell("__import__('resource').getrlimit(7)[0]").value == 64
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_the_end_of_the_link_ends_the_worker_idle_or_busy(worker: WorkerDriver) -> None:
    worker.start("print('running')\nwhile True: pass")
    worker.wait_output("running")
    worker.close_input()
    assert worker.exit_status() == 0


def test_the_end_of_the_link_ends_an_idle_worker(worker: WorkerDriver) -> None:
    worker.close_input()
    assert worker.exit_status() == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"nonsense\n", "JSON"),
        (b'{"frame":"execute","id":"r1"}\n', "keys"),
        (b'{"frame":"execute","id":1,"code":"1","path":null,"argv":null}\n', "id has a wrong type"),
        (b'{"frame":"unheard"}\n', "unknown frame kind"),
        (b"\xff\n", "UTF-8"),
        (b" " * 1_048_577 + b"\n", "1048577 bytes"),
    ],
)
def test_a_frame_that_breaks_the_contract_ends_the_worker(tmp_path: Path, data: bytes, reason: str) -> None:
    with WorkerDriver(sys.executable, tmp_path) as driver:
        driver.ready()
        driver.send_bytes(data)
        assert driver.exit_status() == 70
        assert reason in driver.output_after_exit()[2]


def test_shutdown_runs_exit_code_and_ends_with_zero(worker: WorkerDriver) -> None:
    worker.cell(
        "import atexit, threading\n"
        "atexit.register(print, 'atexit ran')\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(4)\n"
        "list(pool.map(int, '1234'))[0]"
    )
    worker.send("shutdown")
    # A server closes the link right behind the frame; that must not cut the exit code short.
    worker.close_input()
    assert worker.exit_status() == 0
    stdout, stderr, crash = worker.output_after_exit()
    assert (stdout, stderr, crash) == ("atexit ran\n", "", "")


def test_shutdown_ends_library_tasks_with_their_finally(worker: WorkerDriver, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "lib.py").write_text(
        "import asyncio\n"
        "async def reader():\n"
        "    try:\n        await asyncio.sleep(100)\n    finally:\n        print('reader ended')\n"
    )
    answer = worker.cell(
        f"import sys; sys.path.append({str(site)!r})\n"
        "import lib, asyncio\n"
        "task = asyncio.create_task(lib.reader(), name='the reader')\nawait asyncio.sleep(0)"
    )
    assert (answer.background_tasks, answer.tasks_cancelled, answer.keep) == (["the reader"], 0, True)
    worker.send("shutdown")
    assert worker.exit_status() == 0
    assert worker.output_after_exit()[0] == "reader ended\n"


def test_an_interrupt_ends_exit_code_that_hangs(worker: WorkerDriver) -> None:
    worker.cell("import atexit, time\ndef hang():\n    print('hanging')\n    time.sleep(600)\natexit.register(hang)")
    worker.send("shutdown")
    worker.wait_output("hanging")
    worker.interrupt()
    assert worker.exit_status() == 0


def test_a_crash_names_its_line(worker: WorkerDriver) -> None:
    run_id = worker.start("print('before')\nimport ctypes\nctypes.string_at(0)  # here")
    with pytest.raises(Gone) as gone:
        worker.answer(run_id)
    assert gone.value.status == -signal.SIGSEGV
    assert gone.value.stdout == "before\n"
    assert f'File "<repl:{run_id}>", line 3' in gone.value.crash


def test_a_dump_on_request_names_the_stuck_line(worker: WorkerDriver) -> None:
    run_id = worker.start("import time\n\nprint('stuck') or time.sleep(600)")
    worker.wait_output("stuck")
    os.kill(worker.pid, signal.SIGUSR1)
    assert f'File "<repl:{run_id}>", line 3 in <module>' in worker.crash_text("serve")


def test_closing_every_descriptor_does_not_hang(worker: WorkerDriver) -> None:
    run_id = worker.start("import os\nos.closerange(0, 4096)")
    with pytest.raises(Gone):
        worker.answer(run_id)


def test_bytecode_is_not_written_for_the_users_modules(worker: WorkerDriver, tmp_path: Path) -> None:
    module = tmp_path / "edited.py"
    module.write_text("value = 1")
    assert worker.cell("import edited, importlib\nedited.value").value == 1
    module.write_text("value = 2")
    assert worker.cell("importlib.reload(edited).value").value == 2
    assert not (tmp_path / "__pycache__").exists()


def test_a_module_written_after_a_failed_import_is_found(worker: WorkerDriver, tmp_path: Path) -> None:
    assert "ModuleNotFoundError" in worker.cell("import fresh_module").error
    (tmp_path / "fresh_module.py").write_text("value = 3")
    assert worker.cell("import fresh_module\nfresh_module.value").value == 3
