"""The console at a real terminal, and with a stdin that is none."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.front_ends import BOUND, Terminal, assert_gone, environment, run, terminal

CTRL_C, CTRL_D, ALT_ENTER = "\x03", "\x04", "\x1b\r"
PID = "import os; print('p' + f'id {os.getpid()}.', flush=True)"


def paste(text: str) -> str:
    """A bracketed paste, as terminals send it: Enter inside it does not submit."""
    return f"\x1b[200~{text}\x1b[201~"


def begin(screen: Terminal, code: str) -> int:
    """Enter a cell that first prints its worker's pid; the pid, once it has."""
    screen.type(paste(f"{PID}\n{code}") + ALT_ENTER)
    screen.expect("pid ")
    return int(screen.expect("."))


def test_values_output_and_errors_show_and_names_stay(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        screen.run("x = 6")
        screen.type("x * 7\r")
        screen.expect("42\n")
        screen.prompt()
        screen.type("import sys; print('o' + 'ut'); print('er' + 'r', file=sys.stderr)\r")
        shown = screen.expect("out\n") + screen.prompt()
        assert "err\n" in shown
        screen.type("1 / (x - 6)\r")
        screen.expect("ZeroDivisionError: division by zero\n")
        screen.prompt()
        screen.type("print('op' + 'en', end='')\r")
        screen.expect("open\n")  # the prompt does not overwrite it
        screen.prompt()
        screen.type("import asyncio; await asyncio.sleep(0, x * 100)\r")
        screen.expect("600\n")
        screen.prompt()
        screen.type(CTRL_D)
        assert screen.end() == 0


def test_ctrl_c_interrupts_a_cell_and_keeps_the_state(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        screen.run("kept = 40")
        worker = begin(screen, "while True: pass")
        screen.type(CTRL_C)
        screen.expect("namespace is preserved")
        screen.prompt()
        screen.type("kept + 2\r")
        screen.expect("42\n")
        screen.prompt()
        assert "CANCELLED" in screen.run(":runs")
        assert f"pid {worker}" in screen.run(":health")
        screen.type(":quit\r")
        assert screen.end() == 0
        assert_gone(worker)


@pytest.mark.parametrize("farewell", ["exit()", "quit() "])
def test_what_leaves_python_leaves_the_console(tmp_path: Path, farewell: str) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        assert "exit()" in screen.run("exit")  # as every Python says, and it is true here
        screen.type(f"{farewell}\r")
        assert screen.end() == 0


def test_what_a_terminal_does_not_show_is_told(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        told = screen.run("display(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(100))")
        assert "image/png, 108 bytes, which a terminal does not show]" in told
        screen.type(CTRL_D)
        assert screen.end() == 0


def test_ctrl_c_at_the_prompt_clears_the_line(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        screen.type("nonsense" + CTRL_C)
        screen.prompt()
        screen.type("'clear' + 'ed'\r")
        screen.expect("'cleared'\n")
        screen.prompt()
        screen.type(CTRL_D)
        assert screen.end() == 0


def test_a_block_is_typed_line_by_line(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        # The editor indents behind the colon and keeps the indentation; an empty line ends the block.
        screen.type("def f(x):\rif x:\rreturn x * 7\r\r")
        screen.prompt()
        screen.type("f(6)\r")
        screen.expect("42\n")
        screen.prompt()
        # Unfinished code goes on with the next line; Alt-Enter hands it over all the same.
        screen.type("[1,\r2" + ALT_ENTER)
        screen.expect("SyntaxError")
        screen.prompt()
        screen.type(CTRL_D)
        assert screen.end() == 0


def test_commands(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        assert "none; the next cell starts one" in screen.run(":health")
        assert "Nothing has run yet" in screen.run(":runs")
        worker = begin(screen, "x = 1")
        screen.prompt()
        health = screen.run(":health")
        assert f"pid {worker}" in health
        assert str(tmp_path) in health
        assert "containment: " in health
        runs = screen.run(":runs")
        assert "generation 1 ok" in runs
        assert PID[:20] in runs
        tasks = screen.run(":tasks")
        for words in (
            "guardian ",
            "threads at work: 0",
            "talks (",
            "owns session ",
            "reads frames (",
            "at process.pipes:",
        ):
            assert words in tasks
        assert "Nothing is running" in screen.run(":cancel")
        assert "the next cell starts a new one" in screen.run(":reset")
        assert_gone(worker)
        screen.type("x\r")
        screen.expect("NameError")
        screen.prompt()
        assert "generation 2" in screen.run(":health")
        assert "did you mean :health?" in screen.run(":heath")
        assert "takes nothing" in screen.run(":reset now")
        told = screen.run(":help")
        for name in (":health", ":runs", ":cancel", ":reset", ":tasks", ":quit"):
            assert name in told
        assert ":peers" not in told
        screen.type(":quit\r")
        assert screen.end() == 0


def test_a_lost_namespace_is_told(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        screen.type("import os; os._exit(3)\r")
        screen.expect("exited with code 3")
        screen.expect("[state: cleared.")
        screen.prompt()
        screen.type("'go' + 'es on'\r")
        screen.expect("'goes on'\n")
        screen.prompt()
        screen.type(CTRL_D)
        assert screen.end() == 0


def test_a_flood_on_a_terminal_that_nobody_reads_can_be_interrupted(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        screen.run("kept = 40")
        worker = begin(screen, "while True: print('flood ' * 1000)")
        screen.expect("flood flood")
        screen.type(CTRL_C)
        screen.expect("namespace is preserved")
        screen.prompt()
        assert f"pid {worker}" in screen.run(":health")
        screen.type(CTRL_D)
        assert screen.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("code", ["x = 1", "while True: pass"])
def test_a_signal_ends_it_and_the_terminal_is_as_before(tmp_path: Path, number: signal.Signals, code: str) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        before = screen.modes()
        screen.prompt()
        worker = begin(screen, code)
        if "while" not in code:
            screen.prompt()
        screen.process.send_signal(number)
        assert screen.end() == 0
        assert screen.modes() == before
        assert_gone(worker)


@pytest.mark.parametrize("code", ["x = 1", "while True: pass"])
def test_the_end_of_the_terminal_ends_it(tmp_path: Path, code: str) -> None:
    with terminal("console", cwd=tmp_path) as screen:
        screen.prompt()
        worker = begin(screen, code)
        if "while" not in code:
            screen.prompt()
        screen.hang_up()
        assert screen.process.wait(BOUND) == 0
        assert_gone(worker)


def test_a_dumb_terminal_will_do(tmp_path: Path) -> None:
    with terminal("console", cwd=tmp_path, kind="dumb") as screen:
        screen.expect(">>> ")
        screen.type("6 * 7\r")
        screen.expect("42\n")
        screen.expect(">>> ")
        screen.type(":quit\r")
        assert screen.end() == 0


# -- a stdin that is no terminal -------------------------------------------------------------------------------


def test_stdin_is_one_cell(tmp_path: Path) -> None:
    source = b"import sys\n\nprint('out')\n\nprint('err', file=sys.stderr)\n\n6 * 7\n"
    done = run("console", cwd=tmp_path, stdin=source)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n42\n", b"err\n")


@pytest.mark.parametrize("source", [b"", b"# nothing\n"])
def test_an_empty_cell_succeeds(tmp_path: Path, source: bytes) -> None:
    done = run("console", cwd=tmp_path, stdin=source)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (b"1 / 0", b"ZeroDivisionError"),
        (b"if", b"SyntaxError"),
        (b"import sys; sys.exit(4)", b"SystemExit: 4"),
        (b"\xff", b"stdin holds no cell"),
        (b"#" * 262_145, b"code_bytes"),
    ],
)
def test_a_cell_that_fails(tmp_path: Path, source: bytes, told: bytes) -> None:
    done = run("console", cwd=tmp_path, stdin=source)
    assert (done.returncode, done.stdout) == (1, b"")
    assert told in done.stderr


def test_the_server_does_not_load_the_console(tmp_path: Path) -> None:
    code = (
        "import sys, repl_trio.server.serve, repl_trio.server.app\n"
        "print([name for name in sys.modules if name.startswith(('repl_trio.console', 'prompt_toolkit'))])"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(PYTHONPATH=root), capture_output=True, timeout=BOUND
    )
    assert done.stdout == b"[]\n"
