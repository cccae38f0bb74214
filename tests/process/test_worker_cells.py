"""What a cell means: namespace, source, values of the last expression, asyncio, files, helpers."""

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


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("x = 3\nx", 3),
        ("x = 3; x + 1", 4),
        ("x = 1\r\nif x:\r\n\ty = 2\r\nx + y  # sum", 3),
        ("s = '''a\r\nb'''\nlen(s)", 3),
        ("'only a string'", "only a string"),
        ("locals() is globals()", True),
        ("[locals() is not globals() for _ in [0]] == [False] or (lambda: locals() is not globals())()", True),
        ("class A:\n    x = 1\n    y = [x for _ in range(1)] if False else x\nA.y", 1),
        ("async def f(): return 4\nawait f()", 4),
        ("import asyncio\n[x async for x in (i async for i in __import__('contextlib').aclosing and agen())]", [0, 1]),
        ("(walrus := 5)", 5),
        ("\ufeffx = 1\r\nx", 1),
        ("x = 1\rx", 1),
    ],
)
def test_the_last_expression_is_the_value(worker: WorkerDriver, code: str, value: object) -> None:
    worker.cell("async def agen():\n    for i in range(2): yield i")
    answer = worker.cell(code)
    assert answer.success, answer.error
    assert (answer.has_value, answer.value) == (True, value)
    assert type(answer.value) is type(value)


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
@pytest.mark.parametrize(
    "code", ["", "\n\n", "# nothing here\n\n", "x = 1", "None", "pass", "def f(): return 1", "x = 1\n# end"]
)
def test_no_value(worker: WorkerDriver, code: str) -> None:
    answer = worker.cell(code)
    assert (answer.success, answer.has_value, answer.return_value, answer.error) == (True, False, None, None)
    assert (answer.stdout, answer.stderr) == ("", "")


def test_future_flags_carry_on_and_ours_do_not_reach_the_cell(worker: WorkerDriver) -> None:
    assert worker.cell("def f(x: int): ...\nf.__annotations__['x'] is int").value is True
    assert worker.cell(
        "'''doc'''\nfrom __future__ import annotations\ndef f(x: nowhere): ...\nf.__annotations__"
    ).value == {"x": "nowhere"}
    assert worker.cell("def g(y: nowhere): ...\ng.__annotations__").value == {"y": "nowhere"}
    assert (
        worker.cell("(lambda: 0).__code__.co_flags & __import__('__future__').annotations.compiler_flag != 0").value
        is True
    )


def test_a_failing_cell_keeps_what_it_did_before(worker: WorkerDriver) -> None:
    assert not worker.cell("a = 1\nb = a / 0\nc = 2").success
    assert worker.cell("[a, 'b' in globals(), 'c' in globals()]").value == [1, False, False]


def test_nothing_of_a_cell_runs_that_does_not_compile(worker: WorkerDriver) -> None:
    answer = worker.cell("print('never')\ndef f(:")
    assert answer.error_type == "SyntaxError"
    assert answer.stdout == ""


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = '\ud800'", ["SyntaxError", "lone surrogate", "U+D800", "line 1"]),
        ("x = 1\r\n\x0cy = '\udfff'", ["U+DFFF", "line 2, column 7"]),
        ("x = '\0'", ["null byte"]),
        ("(" * 3000 + ")" * 3000, ["Error"]),
    ],
)
def test_text_that_is_no_source(worker: WorkerDriver, code: str, words: list[str]) -> None:
    answer = worker.cell(code)
    assert not answer.success
    assert all(word in answer.error for word in words), answer.error
    assert worker.cell("1 + 1").value == 2


def test_sources_are_seen_by_inspect_and_tracebacks(worker: WorkerDriver) -> None:
    worker.cell("def area(w, h):\n    # handed down\n    return w * h")
    assert (
        worker.cell("import inspect\ninspect.getsource(area)").value
        == "def area(w, h):\n    # handed down\n    return w * h\n"
    )
    assert worker.cell("def late(): return 5\ninspect.getsource(late)").value == "def late(): return 5\n"
    text = "class Kind:\n    # of thing\n    @property\n    def size(self):\n        return 5\n"
    assert worker.cell(f"{text}kept = 1").success
    assert worker.cell("inspect.getsource(Kind)").value == text
    assert worker.cell("inspect.getsource(Kind.size.fget).strip()").value.startswith("@property")
    assert worker.cell("class Bare: pass\ninspect.getsource(Bare)").error_type == "OSError"
    assert worker.cell("inspect.getsource(int)").error_type == "TypeError"


def test_lines_are_those_of_the_compiler(worker: WorkerDriver) -> None:
    answer = worker.cell("a = '\x1c\u2028'\r\nb = 1\n\x0c\nraise ValueError  # the fourth line")
    assert "line 4, in <module>\n    raise ValueError  # the fourth line" in answer.error


def test_oldest_sources_go_first(worker: WorkerDriver) -> None:
    worker.cell("def kept_for_a_while(): return 1/0\nimport linecache")
    for index in range(64):
        worker.cell(f"# {index}")
    assert worker.cell("len(repl_history())").value == 64
    answer = worker.cell("kept_for_a_while()")
    assert "ZeroDivisionError" in answer.error
    assert "return 1/0" not in answer.error
    big = "x" * 600_000
    worker.cell(f"a = '{big}'")
    worker.cell(f"b = '{big}'")
    assert worker.cell("[len(source) for _run, source in repl_history()][:-1]").value == [600_006]


def test_history_and_source(worker: WorkerDriver) -> None:
    assert "no cell 'nope'" in worker.cell("repl_source('nope')").error
    worker.cell("first = 1")
    assert worker.cell("repl_source()").value == "first = 1"
    assert worker.cell("repl_source('r2')").value == "first = 1"
    assert worker.cell("repl_history()[-1]").return_value == "('r5', 'repl_history()[-1]')"


def test_shadowing_a_helper_lasts_one_cell(worker: WorkerDriver) -> None:
    assert worker.cell("sh = 5\nsh").value == 5
    assert worker.cell("sh('echo back', check=False).strip()").return_value == "'back'"
    assert worker.cell("del sh, repl_history, repl_source").success
    assert worker.cell("callable(sh) and callable(repl_history) and callable(repl_source)").value is True


def test_rebound_names_harm_only_the_users_code(worker: WorkerDriver) -> None:
    worker.cell("json = sys = asyncio = traceback = time = io = os = None\nlist = 3")
    assert "ZeroDivisionError" in worker.cell("1/0").error
    worker.cell("del list\n__name__ = 'elsewhere'\ndel __builtins__")
    assert worker.cell("await __import__('asyncio').sleep(0)\nlist(range(2))").value == [0, 1]


def test_main_is_the_namespace(worker: WorkerDriver) -> None:
    worker.cell("from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int")
    assert worker.cell("import pickle\npickle.loads(pickle.dumps(Point(3))) == Point(3)").value is True
    worker.cell("import __main__\n__main__.planted = 7")
    assert worker.cell("planted").value == 7
    assert worker.cell("import typing\ntyping.get_type_hints(Point)['x'] is int").value is True


def test_asyncio_run_and_the_persistent_loop_get_along(worker: WorkerDriver) -> None:
    worker.cell("import asyncio\nasync def main(n):\n    await asyncio.sleep(0)\n    return asyncio.get_running_loop()")
    assert worker.cell("a = asyncio.run(main(1)); b = asyncio.run(main(2)); a is not b").value is True
    assert worker.cell("loop_one = await main(1)").success
    assert worker.cell("asyncio.run(main(1)) is not loop_one").value is True
    assert worker.cell("(await main(3)) is loop_one").value is True
    # What plain scripts do with the current loop works in cells without `await` too.
    quiet = worker.cell("loop = asyncio.get_event_loop()\nloop.run_until_complete(main(1)) is loop")
    assert (quiet.value, quiet.stderr) == (True, "")
    assert worker.cell("await main(4) is loop_one").value is True


def test_a_closed_loop_is_replaced(worker: WorkerDriver) -> None:
    worker.cell("import asyncio\none = asyncio.get_running_loop() if await asyncio.sleep(0) is None else None")
    worker.cell("one.close()")
    assert worker.cell("await asyncio.sleep(0)\nasyncio.get_running_loop() is not one").value is True


def test_context_variables_carry_over(worker: WorkerDriver) -> None:
    worker.cell("import contextvars\nv = contextvars.ContextVar('v', default=0)\nv.set(1)\nNone")
    assert worker.cell("v.get()").value == 1
    assert worker.cell("import asyncio\nawait asyncio.sleep(0)\nv.set(v.get() + 1)\nv.get()").value == 2
    assert worker.cell("v.get()").value == 2
    assert worker.cell("await asyncio.sleep(0)\nv.get()").value == 2
    assert "ValueError" in worker.cell("await asyncio.sleep(0)\nv.set(9)\nraise ValueError").error
    assert worker.cell("v.get()").value == 9


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
@pytest.mark.parametrize("lead", ["", "import asyncio\nawait asyncio.sleep(0)\n"])
@pytest.mark.parametrize(
    ("end", "error_type", "exit_code", "words"),
    [
        ("import sys; sys.exit(3)", "SystemExit", 3, "SystemExit: 3"),
        ("raise SystemExit", "SystemExit", 0, "SystemExit"),
        ("raise SystemExit('with a message')", "SystemExit", 1, "with a message"),
        ("raise GeneratorExit", "GeneratorExit", None, "GeneratorExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", None, "raise KeyboardInterrupt"),
        ("class Odd(BaseException): pass\nraise Odd(5)", "Odd", None, "Odd: 5"),
        ("import asyncio; raise asyncio.CancelledError", "asyncio.exceptions.CancelledError", None, "CancelledError"),
    ],
)
def test_whatever_leaves_a_cell_is_its_outcome(
    worker: WorkerDriver, lead: str, end: str, error_type: str, exit_code: int | None, words: str
) -> None:
    answer = worker.cell(f"{lead}kept = 1\n{end}")
    assert (answer.success, answer.error_type, answer.exit_code) == (False, error_type, exit_code)
    assert words in answer.error
    assert (answer.interrupted, answer.keep) == (False, True)
    after = worker.cell("import asyncio\nawait asyncio.sleep(0)\nkept")
    assert (after.value, after.stderr) == (1, "")


def test_memory_and_recursion_errors_leave_a_working_worker(worker: WorkerDriver) -> None:
    assert worker.cell("bytearray(10**15)").error_type == "MemoryError"
    deep = worker.cell("def f(n): return f(n + 1)\nf(0)")
    assert deep.error_type == "RecursionError"
    assert "Previous line repeated" in deep.error
    assert (
        worker.cell("import sys\nsys.setrecursionlimit(60)\ndef f(n): return f(n + 1)\nf(0)").error_type
        == "RecursionError"
    )
    assert worker.cell("import asyncio\nawait asyncio.sleep(0)\n[[1]]").value == [[1]]


def test_warnings_show_their_line_once(worker: WorkerDriver) -> None:
    run = worker.cell("x = 1 is 1")
    assert run.stderr.count("SyntaxWarning") == 1
    assert "  x = 1 is 1" in run.stderr
    for _again in range(2):
        told = worker.cell("import warnings\nfor _ in range(3): warnings.warn('look here')")
        assert told.stderr.count("UserWarning: look here") == 1
        assert "  for _ in range(3): warnings.warn('look here')" in told.stderr


def test_a_file_runs_as_a_script(worker: WorkerDriver, tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "beside.py").write_text("value = 6")
    script = folder / "latin.py"
    script.write_bytes(
        b"# -*- coding: latin-1 -*-\nimport sys, beside\n"
        b"print(sys.argv[1:], __file__, __name__, beside.value, '\xe9', sys.path[0])\n"
        b"kept = 5\n"
    )
    answer = worker.file(str(script), "a", "b c")
    assert answer.success, answer.error
    assert answer.stdout == f"['a', 'b c'] {script} __main__ 6 \u00e9 {folder}\n"
    assert (answer.return_value, answer.exit_code) == (None, None)
    told = worker.cell(
        "import sys\n[kept, sys.argv, sys.path[0], '__file__' in globals(), str(sys.path).count('scripts')]"
    )
    assert told.value == [5, [""], "", False, 0]


@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
@pytest.mark.parametrize(
    ("text", "success", "exit_code", "stderr"),
    [
        ("raise SystemExit", True, 0, ""),
        ("import sys; sys.exit(0)", True, 0, ""),
        ("import sys; sys.exit(4)", False, 4, ""),
        ("import sys; sys.exit('bad luck')", False, 1, "bad luck\n"),
    ],
)
def test_the_exit_code_of_a_file(
    worker: WorkerDriver, tmp_path: Path, text: str, success: bool, exit_code: int, stderr: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    answer = worker.file(str(script))
    assert (answer.success, answer.exit_code, answer.stderr) == (success, exit_code, stderr)


def test_errors_of_a_file_show_its_lines(worker: WorkerDriver, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f():\n    return 1/0  # in the file\nf()\n")
    answer = worker.file(str(script))
    assert f'File "{script}", line 2, in f\n    return 1/0  # in the file' in answer.error
    assert "FileNotFoundError" in worker.file(str(tmp_path / "absent.py")).error
    script.write_text("def f(:\n")
    assert f'File "{script}", line 1' in worker.file(str(script)).error
    assert worker.cell("1").value == 1


def test_matters_of_the_terminal_fail_at_once_and_say_what_to_do(worker: WorkerDriver) -> None:
    for code in ("input('name? ')", "import getpass; getpass.getpass()", "breakpoint()"):
        answer = worker.cell(code)
        assert answer.error_type == "EOFError"
        assert "there is no terminal" in answer.error
    assert worker.cell("import sys\nsys.stdin.read()").value == ""
    assert worker.cell("import sys\n[line for line in sys.stdin]").value == []
    assert worker.cell("import subprocess\nsubprocess.run(['cat'], capture_output=True, text=True).stdout").value == ""
