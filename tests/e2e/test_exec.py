"""`repl-trio exec FILE`: what a user of `python FILE` expects, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from textwrap import indent

import pytest

from tests.e2e.front_ends import BOUND, assert_gone, run, started
from tests.e2e.watch import SURROUNDINGS

#: Prints the pid of the worker and of a child that has left its process group and session.
PIDS = """\
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
"""

#: bytes. More than one pipe holds (64 KiB), less than the two on the way and the chunk between them.
WAITING = 150_000


def write(folder: Path, source: str) -> str:
    (folder / "file.py").write_text(source)
    return "file.py"


def pids(process: subprocess.Popen[bytes]) -> list[int]:
    """The pids that `PIDS` prints."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def test_both_streams_are_byte_exact_and_apart(tmp_path: Path) -> None:
    source = (
        "import os, sys\n"
        "sys.stdout.buffer.write(bytes(range(256)) * 4000)\n"
        "sys.stdout.flush()\n"
        "os.write(2, b'\\r\\n\\xff no newline')\n"
    )
    done = run("exec", write(tmp_path, source), cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == bytes(range(256)) * 4000
    assert done.stderr == b"\r\n\xff no newline"


def test_output_is_live(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    source = "print('before')\nopen('gate').read()\nprint('after')\n"
    with started("exec", write(tmp_path, source), cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"before\n"
        # Opens only because the file has come as far as to wait for it.
        (tmp_path / "gate").write_text("")
        assert process.stdout.read() == b"after\n"
        assert process.wait(BOUND) == 0


def test_it_is_main_with_its_arguments_beside_its_modules(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text("value = 42\n")
    source = (
        "import os, sys, beside\nprint(__name__, beside.value, sys.argv[1:], sys.argv[0] == __file__, os.getcwd())\n"
    )
    write(folder, source)
    done = run("exec", "folder/file.py", "a", "--version", "--", "b c", cwd=tmp_path)
    assert done.stdout.decode() == f"__main__ 42 ['a', '--version', '--', 'b c'] True {tmp_path}\n"
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("source", "status", "told"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit(256 + 7)", 7, ""),
        ("import sys; sys.exit('because')", 1, "because\n"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os._exit(0)", 0, ""),
    ],
)
def test_its_exit_code_is_ours(tmp_path: Path, source: str, status: int, told: str) -> None:
    done = run("exec", write(tmp_path, source), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (status, b"", told)


def test_an_exception_is_a_traceback_and_1(tmp_path: Path) -> None:
    source = "def f():\n    raise KeyError('x')\nprint('out', end='')\nf()\n"
    done = run("exec", write(tmp_path, source), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"out")
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'  File "{tmp_path}/file.py", line 4, in <module>' in lines
    assert lines[-1] == "KeyError: 'x'"


def test_a_syntax_error_is_1(tmp_path: Path) -> None:
    done = run("exec", write(tmp_path, "if\n"), cwd=tmp_path)
    assert done.returncode == 1
    assert b"SyntaxError" in done.stderr


def test_a_worker_that_is_killed_says_so(tmp_path: Path) -> None:
    done = run("exec", write(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr == b"repl-trio exec: The worker was ended by SIGKILL.\n"


@pytest.mark.parametrize(
    ("file", "told"), [("missing.py", "No such file"), (".", "is a directory"), ("/dev/null", "no regular file")]
)
def test_a_file_that_cannot_be_run(tmp_path: Path, file: str, told: str) -> None:
    done = run("exec", file, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    [line] = done.stderr.decode().splitlines()
    assert line.startswith(f"repl-trio exec: {file}: ")
    assert told in line


@pytest.mark.parametrize("python", ["/bin/false", "/no/such/python"])
def test_no_worker_is_one_line(tmp_path: Path, python: str) -> None:
    done = run("--python", python, "exec", write(tmp_path, "print(1)"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    [line] = done.stderr.decode().splitlines()
    assert python in line


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_ctrl_c_is_a_keyboard_interrupt_and_130(tmp_path: Path, surroundings: str) -> None:
    # No bare loop: CPython 3.11 may leave one without its `finally` when the interrupt lands on the jump back.
    source = "import time\ntry:\n" + indent(PIDS, "    ") + "    time.sleep(600)\nfinally:\n    print('tidied')\n"
    before = SURROUNDINGS[surroundings]
    with started("exec", write(tmp_path, source), cwd=tmp_path, before=before) as process:
        left = pids(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=BOUND)
        assert process.returncode == 130
        assert out == b"tidied\n"
        if surroundings != "stderr closed":
            assert b"KeyboardInterrupt" in err
    for pid in left:
        assert_gone(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(600)", "sum(range(10**13))"])
def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals, code: str) -> None:
    with started("exec", write(tmp_path, PIDS + code), cwd=tmp_path) as process:
        left = pids(process)
        process.send_signal(number)
        assert process.wait(BOUND) == 128 + number
    for pid in left:
        assert_gone(pid)


def test_nohup_is_honoured(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    source = PIDS + "open('gate').read()\nprint('after')\n"
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with started("exec", write(tmp_path, source), cwd=tmp_path, before=ignoring) as process:
        pids(process)
        process.send_signal(signal.SIGHUP)
        (tmp_path / "gate").write_text("")
        assert process.communicate(timeout=BOUND)[0] == b"after\n"
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_nobody_reads_its_output(tmp_path: Path, number: signal.Signals) -> None:
    flood = "while True: print('flood ' * 1000)\n"
    with started("exec", write(tmp_path, PIDS + flood), cwd=tmp_path) as process:
        left = pids(process)
        process.send_signal(number)
        assert process.wait(BOUND) == 128 + number
    for pid in left:
        assert_gone(pid)


def test_a_finished_file_waits_for_the_reader_and_a_signal_ends_the_wait(tmp_path: Path) -> None:
    source = PIDS + f"print('x' * {WAITING})\n"
    with started("exec", write(tmp_path, source), cwd=tmp_path) as process:
        left = pids(process)
        for pid in left:
            assert_gone(pid)  # the worker does not live as long as a `less` is open
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 130


def test_the_whole_output_reaches_a_late_reader(tmp_path: Path) -> None:
    source = PIDS + f"print('x' * {WAITING})\n"
    with started("exec", write(tmp_path, source), cwd=tmp_path) as process:
        for pid in pids(process):
            assert_gone(pid)
        assert process.stdout is not None
        assert process.stdout.read() == b"x" * WAITING + b"\n"
        assert process.wait(BOUND) == 0


def test_a_reader_that_leaves_ends_it(tmp_path: Path) -> None:
    with started("exec", write(tmp_path, PIDS + "while True: print('more')\n"), cwd=tmp_path) as process:
        left = pids(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(BOUND) == 141
    for pid in left:
        assert_gone(pid)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(tmp_path: Path, closed: str) -> None:
    source = (
        "import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr)\nopen('ran', 'w').close()\nsys.exit(5)\n"
    )
    before = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    with started("exec", write(tmp_path, source), cwd=tmp_path, before=before) as process:
        out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 5
    assert (tmp_path / "ran").exists()
    assert out == (b"" if " >&-" in f" {closed}" else b"out\n")
    assert err == (b"" if "2>&-" in closed else b"err\n")
