"""Output of cells: streams, restoring them, and whose output it is."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.worker_driver import EACH, EXTREMES, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        yield driver


def test_streams_are_real_text_streams(worker: WorkerDriver) -> None:
    told = worker.cell(
        "import sys\n"
        "[[s.fileno(), s.isatty(), s.encoding, s.errors, s.writable(), s.line_buffering, hasattr(s, 'buffer'), s.name]"
        " for s in (sys.stdout, sys.stderr)] + [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__]"
    )
    common = [False, "utf-8", "backslashreplace", True, True, True]
    assert told.value == [[1, *common, "<stdout>"], [2, *common, "<stderr>"], True, True]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_prints_c_code_and_children_keep_their_order(tmp_path: Path, unbuffered: str) -> None:
    with WorkerDriver(sys.executable, tmp_path, {"PYTHONUNBUFFERED": unbuffered}) as worker:
        worker.ready()
        answer = worker.cell(
            "import os, sys, ctypes\n"
            "print('one')\nos.write(1, b'two\\n')\nos.system('echo three')\n"
            "sys.stdout.buffer.write(b'four\\n'); sys.stdout.buffer.flush()\nprint('five', end='')"
        )
        assert answer.stdout == "one\ntwo\nthree\nfour\nfive"


def test_what_c_still_holds_belongs_to_its_cell(worker: WorkerDriver) -> None:
    answer = worker.cell("import ctypes\nctypes.CDLL(None).puts(b'from C')\nNone")
    if "ModuleNotFoundError" in (answer.error or ""):
        pytest.skip("this interpreter has no ctypes")
    assert answer.stdout == "from C\n"
    assert worker.cell("None").stdout == ""


def test_characters_without_utf8_are_escaped(worker: WorkerDriver) -> None:
    answer = worker.cell("import sys\nprint('a\\udce9b')\nprint('c\\ud800', file=sys.stderr)\n'alive'")
    assert (answer.stdout, answer.stderr, answer.value) == ("a\\udce9b\n", "c\\ud800\n", "alive")


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_the_encoding_does_not_depend_on_the_locale(tmp_path: Path, locale: str) -> None:
    with WorkerDriver(sys.executable, tmp_path, {"LC_ALL": locale, "PYTHONIOENCODING": "ascii:strict"}) as worker:
        worker.ready()
        assert worker.cell("print('\u00e9\u4e2d')").stdout == "\u00e9\u4e2d\n"


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
@pytest.mark.parametrize(
    "harm",
    [
        "import sys; sys.stdout.close()",
        "import sys; sys.stderr.close()",
        "import sys; sys.stdin.close()",
        "import sys; sys.stdout.detach()",
        "import os; os.close(1)",
        "import os; os.close(2)",
        "import os; os.close(0)",
        "import os; os.closerange(0, 3)",
        "import os; os.dup2(os.open('file', os.O_CREAT | os.O_WRONLY), 1)",
        "import os; os.dup2(2, 1)",
        "import sys; sys.stdout = None; sys.stderr = 5",
        "import sys; del sys.stdout, sys.stderr, sys.stdin",
        "import io, sys; sys.stdout = io.StringIO()",
        "import os; os.set_blocking(1, False); os.set_blocking(2, False)",
        "import sys; sys.stdout.reconfigure(encoding='ascii')",
    ],
)
def test_streams_are_put_back_after_the_cell(worker: WorkerDriver, harm: str) -> None:
    worker.cell(harm)
    answer = worker.cell(
        "import sys, os\nprint('out')\nprint('err', file=sys.stderr)\nos.system('echo child; echo child >&2')\n"
        "[sys.stdin.read(), os.get_blocking(1), os.get_blocking(2)]"
    )
    assert answer.success, answer.error
    assert (answer.stdout, answer.stderr) == ("out\nchild\n", "err\nchild\n")
    assert answer.value == ["", True, True]


def test_what_was_written_while_redirected_goes_where_it_pointed(worker: WorkerDriver, tmp_path: Path) -> None:
    worker.cell("import os, sys\nos.dup2(os.open('one', os.O_CREAT | os.O_WRONLY), 1)\nprint('to the file', end='')")
    assert (tmp_path / "one").read_text() == "to the file"
    worker.cell("sys.stdout = open('two', 'w')\nprint('held back')")
    assert (tmp_path / "two").read_text() == "held back\n"


def test_a_foreign_stream_that_fails_to_flush_harms_nothing(worker: WorkerDriver) -> None:
    answer = worker.cell("import sys\nclass Bad:\n    def flush(self): raise SystemExit(3)\nsys.stdout = Bad()\n5")
    assert (answer.success, answer.value) == (True, 5)
    assert worker.cell("print('fine')").stdout == "fine\n"


def test_streams_stay_the_same_objects(worker: WorkerDriver) -> None:
    worker.cell(
        "import logging, sys\n"
        "log = logging.getLogger('x'); log.addHandler(logging.StreamHandler(sys.stdout))\n"
        "saved = sys.stdout"
    )
    answer = worker.cell("log.warning('second')\nprint('third', file=saved)\nsaved is sys.stdout")
    assert (answer.value, answer.stdout) == (True, "second\nthird\n")


def test_output_of_threads_belongs_to_the_cell_that_joins_them(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import threading\nts = [threading.Thread(target=print, args=(n,)) for n in range(5)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\nNone"
    )
    assert sorted(answer.stdout.split()) == list("01234")
    assert worker.cell("None").stdout == ""


def test_a_forked_child_never_speaks_for_the_worker(worker: WorkerDriver) -> None:
    code = (
        "import os, sys\n"
        "print('buffered', end='')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print('[child]', end='')\n"
        "    {leave}\n"
        "else:\n"
        "    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "status if pid else 0"
    )
    for leave, status in (("pass", 0), ("1/0", 1), ("sys.exit(7)", 7), ("os._exit(3)", 3), ("input()", 1)):
        answer = worker.cell(code.format(leave=leave))
        assert (answer.value, answer.stderr) == (status, ""), leave
        assert answer.stdout == ("buffered" if leave.startswith("os._exit") else "buffered[child]")
    asynchronous = worker.cell("import asyncio\nawait asyncio.sleep(0)\n" + code.format(leave="pass"))
    assert (asynchronous.value, asynchronous.stdout) == (0, "buffered[child]")


def test_a_forked_child_holds_no_private_descriptor(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import os\nr, w = os.pipe()\npid = os.fork()\n"
        "if pid == 0:\n"
        "    os.write(w, str([n for n in range(500, 1100) if os.path.exists(f'/proc/self/fd/{n}')]).encode())\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\nos.read(r, 1000).decode()"
    )
    assert answer.value == "[]"


def test_a_child_that_lives_on_does_not_keep_the_link_open(worker: WorkerDriver) -> None:
    worker.cell("import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\n    os._exit(0)\n")
    worker.close_input()
    assert worker.exit_status() == 0


def test_multiprocessing_works(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import multiprocessing as mp, math\n"
        "results = []\n"
        "for method in ('fork', 'spawn', 'forkserver'):\n"
        "    with mp.get_context(method).Pool(2) as pool:\n"
        "        results.append(pool.map(math.factorial, [3, 4]))\n"
        "    pool.join()\n"
        "results"
    )
    assert (answer.value, answer.error) == ([[6, 24]] * 3, None)
    assert worker.cell("1").value == 1


def test_a_large_output_arrives_whole(worker: WorkerDriver) -> None:
    run_id = worker.start("for n in range(20000): print('row', n, 'x' * 40)")
    # The pipe holds 64 KiB: the rest comes while the cell runs.
    worker.wait_output("row 19999 ")
    answer = worker.answer(run_id)
    assert answer.success
    assert len(answer.stdout.splitlines()) == 20000


ORDER = (
    "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
    "for n in range(50):\n"
    "    print('print', n)\n"
    "    libc.printf(b'printf %d\\n', n); libc.fflush(None)\n"
    "    os.write(1, b'write %d\\n' % n)\n"
    "    os.system(f'echo echo {n}')\n"
)


def test_the_order_within_a_stream_is_exact(worker: WorkerDriver) -> None:
    answer = worker.cell(ORDER)
    if "ModuleNotFoundError" in (answer.error or ""):
        pytest.skip("this interpreter has no ctypes")
    expected = [f"{who} {n}" for n in range(50) for who in ("print", "printf", "write", "echo")]
    assert answer.stdout.splitlines() == expected


@pytest.mark.parametrize(
    "harm",
    [
        "sys.stderr.close()",
        "with sys.stderr: pass",
        "sys.stderr = io.TextIOWrapper(sys.stderr.buffer)",
        "sys.stderr = io.TextIOWrapper(sys.stderr.detach())",
        "io.open(2, 'w')",
        "sys.stderr = None",
        "os.close(2)",
    ],
)
@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
def test_a_log_that_is_set_up_once_works_for_ever(worker: WorkerDriver, harm: str) -> None:
    worker.cell("import gc, io, logging, os, sys\nlogging.basicConfig(format='%(message)s', level=10)")
    worker.cell(harm)
    worker.cell("_ = gc.collect()")
    assert worker.cell("logging.info('here')").stderr == "here\n"


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
def test_a_stream_has_its_form_again(worker: WorkerDriver) -> None:
    form = "encoding='ascii', errors='strict', newline='\\r\\n', line_buffering=False, write_through=True"
    failed = worker.cell(f"import sys\nsys.stdout.reconfigure({form})\nprint('a\u00e9')")
    assert "UnicodeEncodeError" in failed.error
    answer = worker.cell("print('a\u00e9\\ud800')\n[sys.stdout.line_buffering, sys.stdout.write_through]")
    assert (answer.stdout, answer.value) == ("a\u00e9\\ud800\n", [True, False])


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
def test_what_was_printed_to_a_closed_descriptor_stays_with_its_cell(worker: WorkerDriver) -> None:
    assert worker.cell("import os\nos.close(1)\nprint('held')").stdout == "held\n"
    assert worker.cell("print('next')").stdout == "next\n"


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
def test_a_redirection_ends_with_its_interrupted_cell(worker: WorkerDriver) -> None:
    run_id = worker.start(
        "import contextlib, io, time\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n    print('lost')\n    time.sleep(60)"
    )
    assert worker.interrupt_until_answer(run_id).interrupted
    assert worker.cell("print('seen')").stdout == "seen\n"


def test_bytes_that_are_no_text_and_a_line_of_50_mb(worker: WorkerDriver) -> None:
    assert worker.cell("import sys\n_ = sys.stdout.buffer.write(b'\\xff ok\\n')").stdout == "\ufffd ok\n"
    run_id = worker.start("print('x' * 50_000_000)")
    worker.wait_output("\n")
    assert len(worker.answer(run_id).stdout) == 50_000_001


# -- nobody to ask ---------------------------------------------------------------------------------------------

DEBUGGERS = [
    "breakpoint()",
    "import pdb; pdb.set_trace(); y = 2",
    "import pdb\ndef f():\n    a = 1\n    pdb.set_trace()\n    return a\nf()",
    "import pdb; pdb.Pdb().set_trace()",
    "import pdb; pdb.run('a = 1; b = 2')",
    "import pdb; pdb.runeval('1 + 1')",
    "import pdb\ntry: 1/0\nexcept Exception as e: pdb.post_mortem(e.__traceback__)",
    "import asyncio, pdb\nawait asyncio.sleep(0)\npdb.set_trace()\nawait asyncio.sleep(0)",
]


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
def test_a_debugger_says_at_once_that_nobody_is_there(worker: WorkerDriver) -> None:
    worker.cell("kept = 7")
    for code in DEBUGGERS:
        answer = worker.cell(code)
        assert "EOFError: " in answer.error, code
        assert "there is no terminal for a debugger: print values" in answer.error
        following = worker.cell("import sys\n[kept, sys.gettrace() is None]")
        assert following.value == [7, True], code


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
def test_a_debugger_with_commands_of_its_own_works(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import io, pdb\nx, told = 5, io.StringIO()\n"
        "pdb.Pdb(stdin=io.StringIO('p x + 1\\nc\\n'), stdout=told).set_trace()\nx = 6\n'(Pdb) 6' in told.getvalue()"
    )
    assert (answer.value, answer.error) == (True, None)
    assert worker.cell("import os; os.environ['PYTHONBREAKPOINT'] = '0'\nbreakpoint()\n1").value == 1


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
def test_what_asks_fails_or_finds_nothing_at_once(worker: WorkerDriver) -> None:
    for code in ("input('? ')", "import getpass; getpass.getpass()"):
        assert "put the value into the code" in worker.cell(code).error
    code = (
        "import sys, os, code\ncode.interact(banner='')\n[sys.stdin.readline(), sys.stdin.read(), os.read(0, 9) == b'']"
    )
    assert worker.cell(code).value == ["", "", True]


# -- no descriptor left ----------------------------------------------------------------------------------------

EXHAUST = (
    "import os, resource\nheld = []\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (1_100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
    "try:\n    while True: held.append(os.open('/dev/null', 0))\nexcept OSError: pass\n"
)


def test_without_a_descriptor_left_cells_still_run_and_fail_in_words(worker: WorkerDriver) -> None:
    assert worker.cell(EXHAUST + "1 / 0").error.endswith("ZeroDivisionError: division by zero")
    assert worker.cell("x =").error.endswith("SyntaxError: invalid syntax")
    # The first `await` loads asyncio and makes the loop.
    answer = worker.cell("import asyncio\nawait asyncio.sleep(0)\nprint('here')\n5")
    assert (answer.value, answer.stdout, answer.error) == (5, "here\n", None)
    for code in ("sh('true')", "import decimal"):
        assert "Too many open files" in worker.cell(code).error
    assert worker.cell("for fd in held: os.close(fd)\nimport decimal\nsh('echo again').strip()").value == "again"


def test_environment_is_the_users(tmp_path: Path) -> None:
    with WorkerDriver(sys.executable, tmp_path, {"MARK": "set"}) as worker:
        worker.ready()
        assert worker.cell("__import__('os').environ['MARK']").value == "set"
    assert "MARK" not in os.environ


def test_streams_are_restored_past_what_a_cell_has_made_of_them(worker: WorkerDriver) -> None:
    broken = worker.cell(
        "import sys\ndef broken(**_): raise ZeroDivisionError\n"
        "sys.stdout.reconfigure(encoding='utf-16')\n"
        "sys.stdout.flush = sys.stdout.reconfigure = sys.stderr.flush = broken\n"
        "sys.stderr.buffer.flush = broken"
    )
    assert (broken.success, broken.keep) == (True, True)
    after = worker.cell("del sys.stderr.flush, sys.stderr.buffer.flush\nprint('日')")
    assert (after.stdout, after.error) == ("日\n", None)
