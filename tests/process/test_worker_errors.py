"""What an error looks like: the place, the chain, the bound; and what hostile code can make of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_trio.limits import DEFAULT
from tests.process.worker_driver import EACH, EXTREMES, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        yield driver


PLACES = {
    "tabs": ("x = 1\nif x:\n\ty = = 2", "line 3\n    y = = 2\n        ^\nSyntaxError: invalid syntax"),
    "wide characters": ("名 = '日本語' + + ) 3", "line 1\n    名 = '日本語' + + ) 3\n                  ^\nSyntaxError"),
    "CRLF": ("a = 1\r\nb = = 2\r\nc = 3\r\n", "line 2\n    b = = 2\n        ^\nSyntaxError"),
    "several lines": ("foo(a,\n    b c,\n    d)", "line 2\n    b c,\n    ^^^\nSyntaxError"),
    "never closed": ("y = 0\nx = [1,\n2", "line 2\n    x = [1,\n        ^\nSyntaxError: '[' was never closed"),
    "indentation": ("def f():\nreturn 1", "line 2\n    return 1\n    ^^^^^^\nIndentationError"),
    "return": ("x = 1\nif x:\n    return 5", "line 3\n    return 5\n    ^^^^^^^^\nSyntaxError: 'return' outside"),
    "yield behind wide ones": (
        "名 = '日'; (yield 5)",
        "line 1\n    名 = '日'; (yield 5)\n              ^^^^^^^\nSyntaxError",
    ),
    "string that is run": ("exec('a = 1\\nb = = 2')", 'File "<string>", line 2\n    b = = 2\n        ^\nSyntaxError'),
    "string that is compiled": ("compile('a b', 'mine.py', 'exec')", 'File "mine.py", line 1\n    a b\n'),
}


def test_carets_point_at_the_place(worker: WorkerDriver) -> None:
    for place, (code, words) in PLACES.items():
        told = worker.cell(code)
        assert words in told.error.replace("\t", ""), (place, told.error)
    assert worker.cell("1").value == 1


def test_an_error_in_an_f_string_names_it(worker: WorkerDriver) -> None:
    assert "a b" in worker.cell("f'{a b}'").error
    assert worker.cell("y = 1\nf'{y:{absent}}'").error.endswith("NameError: name 'absent' is not defined")


FRAMES = {
    "lambda": "list(map(lambda x: 1 / x, [0]))",
    "list": "[1 / x for x in [0]]",
    "dict": "{x: 1 / x for x in [0]}",
    "generator": "next(1 / x for x in [0])",
    "class body": "class Odd:\n    x = 1 / 0",
    "default": "def f(x=1 / 0): pass",
    "decorator": "@(lambda f: 1 / 0)\ndef f(): pass",
    "coroutine": "async def f(): return 1 / 0\nawait f()",
    "generator of an older cell": "next(older())",
    "function of an older cell": "oldest()",
}


def test_each_frame_shows_its_own_line(worker: WorkerDriver) -> None:
    worker.cell("def older():\n    yield 1 / 0  # line of the first\ndef oldest(): return next(older())")
    worker.cell("# another\n# cell\n# in between")
    for number, (frame, code) in enumerate(FRAMES.items(), 3):
        told = worker.cell(code)
        assert told.error.endswith("ZeroDivisionError: division by zero"), told.error
        assert f'File "<repl:r{number}>", line' in told.error
        assert code.splitlines()[-1].strip() in told.error or "class" in frame or "decorator" in frame, told.error
        assert ("  # line of the first" in told.error) is ("older" in frame), told.error
        assert "repl_trio" not in told.error


CHAINS = {
    "cause": ("raise KeyError('k') from e", ["ZeroDivisionError", "direct cause of", "KeyError: 'k'"]),
    "context": ("raise KeyError('k')", ["ZeroDivisionError", "During handling of", "KeyError: 'k'"]),
    "suppressed": ("raise KeyError('k') from None", ["KeyError: 'k'"]),
    "no class": ("raise 5", ["ZeroDivisionError", "During handling of", "TypeError: exceptions must derive"]),
    "again": ("raise", ["ZeroDivisionError: division by zero"]),
}


def test_chains(worker: WorkerDriver) -> None:
    for code, words in CHAINS.values():
        told = worker.cell(f"try: 1 / 0\nexcept Exception as e: {code}")
        places = [told.error.index(word) for word in words]
        assert places == sorted(places)
        assert ("ZeroDivisionError" in told.error) is words[0].startswith("ZeroDivisionError")


HOSTILE = {
    "str": "def __str__(self): raise RuntimeError('no')",
    "str of another type": "def __str__(self): return 5",
    "str that exits": "def __str__(self): raise SystemExit",
    "repr": "def __repr__(self): raise RuntimeError('no')",
    "getattribute": "def __getattribute__(self, name): raise RuntimeError(name)",
    "class": "__class__ = property(lambda self: 1 / 0)",
    "traceback": "__traceback__ = property(lambda self: 1 / 0)",
    "cause": "__cause__ = property(lambda self: 1 / 0)",
    "odd attributes": "__cause__ = 5\n    __context__ = 'x'\n    __notes__ = 7\n    __suppress_context__ = 'x'",
    "notes": "__notes__ = property(lambda self: 1 / 0)",
    "notes without end": "class L(list):\n        def __iter__(self): raise RuntimeError\n    __notes__ = L()",
    "module": "__module__ = 5",
    "long name": "__qualname__ = 'x' * 200_000",
}


@pytest.mark.parametrize("base", ["Exception", "SyntaxError", "SystemExit"])
@pytest.mark.parametrize("worker", EXTREMES, indirect=True)
def test_hostile_exceptions_are_reported(worker: WorkerDriver, base: str) -> None:
    for body in HOSTILE.values():
        told = worker.cell(f"class Hostile({base}):\n    {body}\nraise Hostile('x')  # here")
        assert (told.success, told.keep) == (False, True), body
        assert told.error_type.rpartition(".")[2][:7] in ("Hostile", "xxxxxxx"), body
        assert len(told.error_type) < 1_000
        assert "raise Hostile('x')  # here" in told.error, (body, told.error)
        assert len(told.error.encode()) <= DEFAULT.error_bytes
        assert "repl_trio" not in told.error
    assert worker.cell("1").value == 1


def test_a_hostile_metaclass_is_asked_nothing(worker: WorkerDriver) -> None:
    told = worker.cell(
        "class Meta(type):\n    def __getattribute__(cls, name):\n        raise RuntimeError(name)\n"
        "class Odd(Exception, metaclass=Meta): pass\nraise Odd('x')"
    )
    assert (told.error_type, told.keep) == ("Odd", True)
    assert "line 5, in <module>\n    raise Odd(" in told.error


def test_circles_of_causes(worker: WorkerDriver) -> None:
    told = worker.cell("a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a")
    assert told.error.count("ValueError: a") == told.error.count("ValueError: b") == 1
    assert worker.cell("a = ValueError('a')\na.__context__ = a\nraise a").error.count("ValueError: a") == 1


@pytest.mark.parametrize(
    "message", ["'m' * 10_000_000", "'日' * 10_000_000", "'line\\n' * 1_000_000", "'\\ud800' * 99_999"]
)
def test_a_message_without_end_is_bounded(worker: WorkerDriver, message: str) -> None:
    told = worker.cell(f"def deep(n):\n    if n: deep(n - 1)\n    raise ValueError({message})\ndeep(3)")
    assert len(told.error.encode()) <= DEFAULT.error_bytes
    assert told.truncated_error is True
    assert told.error.startswith('Traceback (most recent call last):\n  File "<repl:r1>", line 4, in <module>')
    assert "raise ValueError(" in told.error
    assert "ValueError: " in told.error


def test_recursion_is_short_however_it_goes(worker: WorkerDriver) -> None:
    same = worker.cell("def f(n): return f(n + 1)\nf(0)")
    several = worker.cell("def a(n): return b(n)\ndef b(n): return c(n)\ndef c(n): return a(n)\na(0)")
    for told, mark in ((same, "Previous line repeated"), (several, "frames left out]")):
        assert told.error_type == "RecursionError"
        assert mark in told.error
        assert len(told.error) < 5_000
        assert "in <module>" in told.error
    assert worker.cell("def g(n):\n    if n: return g(n - 1)\n    1 / 0\ng(20)").error.endswith("division by zero")


def test_groups_are_bounded_in_width_and_depth(worker: WorkerDriver) -> None:
    if worker.cell("import sys\nsys.version_info < (3, 11)").value:
        pytest.skip("no exception groups before 3.11")
    wide = worker.cell("raise ExceptionGroup('wide', [ValueError(n) for n in range(1_000)])")
    assert "and 985 more exceptions" in wide.error
    deep = worker.cell("e = ValueError(0)\nfor n in range(3_000): e = ExceptionGroup('deep', [e])\nraise e")
    assert "max_group_depth" in deep.error
    noted = worker.cell(
        "def inner():\n    e = ValueError('in')\n    e.add_note('a note')\n    raise e\n"
        "try: inner()\nexcept ValueError as e: raise ExceptionGroup('out', [ExceptionGroup('mid', [e]), KeyError('k')])"
    )
    words = (
        "ExceptionGroup: out (2 sub-exceptions)",
        "ExceptionGroup: mid",
        "in inner",
        "ValueError: in",
        "a note",
        "KeyError",
    )
    assert all(word in noted.error for word in words)
    assert "repl_trio" not in wide.error + deep.error + noted.error


def test_what_cannot_be_raised_is_told_of_on_stderr(worker: WorkerDriver) -> None:
    worker.cell("import weakref\nclass A:\n    def __del__(self): raise ValueError('in del')\na = A()")
    told = worker.cell("del a\n5")
    assert (told.value, told.stderr.count("ValueError: in del")) == (5, 1)
    worker.cell("class B: pass\nb = B()\nw = weakref.ref(b, lambda _: 1 / 0)")
    assert worker.cell("del b").stderr.count("ZeroDivisionError") == 1
    assert "repl_trio" not in told.stderr


def test_an_error_and_what_its_frames_hold_go_with_their_cell(worker: WorkerDriver) -> None:
    worker.cell(
        "import gc, weakref\ngc.disable()\nclass Big: pass\n"
        "def fails():\n    big = Big()\n    refs.append(weakref.ref(big))\n    1 / 0"
    )
    for lead in ("", "import asyncio\nawait asyncio.sleep(0)\n"):
        worker.cell(f"refs = []\n{lead}fails()")
        assert worker.cell("refs[0]() is None").value is True


CODES = {"[1, 2]": 1, "10 ** 30": 0, "-1": 255, "True": 1, "1.5": 1, "None": 0, "'text'": 1, "": 0}


def test_exit_codes_of_all_types(worker: WorkerDriver) -> None:
    for code, exit_code in CODES.items():
        told = worker.cell(f"raise SystemExit({code})")
        assert (told.success, told.error_type, told.exit_code, told.keep) == (False, "SystemExit", exit_code, True)


def test_a_users_own_keyboard_interrupt_is_no_interrupt_of_ours(worker: WorkerDriver) -> None:
    told = worker.cell("raise KeyboardInterrupt('mine')")
    assert (told.interrupted, told.error_type) == (False, "KeyboardInterrupt")
    assert told.error.endswith("KeyboardInterrupt: mine")
    assert worker.cell("import signal\nsignal.raise_signal(signal.SIGINT)").interrupted is True


def test_warnings(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "import warnings\ndef outer(): warnings.warn('for the caller', DeprecationWarning, stacklevel=2)\n"
        "def inner(): warnings.warn('for the library', DeprecationWarning)"
    )
    told = worker.cell("import library, warnings\nfor _ in range(3):\n    library.outer()\n    library.inner()")
    assert told.stderr.count("<repl:r1>:3: DeprecationWarning: for the caller\n  library.outer()") == 1
    assert "for the library" not in told.stderr
    caught = worker.cell(
        "with warnings.catch_warnings(record=True) as got:\n    warnings.simplefilter('always')\n"
        "    warnings.warn('caught')\nlen(got)"
    )
    assert (caught.value, caught.stderr) == (1, "")
    worker.cell("warnings.simplefilter('error')")
    raised = worker.cell("warnings.warn('boom')")
    assert raised.error.endswith("UserWarning: boom")
    at_compile_time = worker.cell("x = 5\nx is 1")
    assert "line 2\n    x is 1\n    ^^^^^^\nSyntaxError" in at_compile_time.error
    assert worker.cell("import asyncio\nawait asyncio.sleep(0)\n5").value == 5


SHELL = 'run shell commands with sh("...").'
HINTS = {
    "!ls": SHELL,
    "x = !ls": SHELL,
    "!pip install x": "install",
    "%pip install x": "install",
    "pip install x": "install",
    "%time x": "without notebook commands",
    "%%bash\nls": "without notebook commands",
    "x = %who": "without notebook commands",
    "?print": "use help(...)",
    "print??": "use help(...)",
    "ls -la": SHELL,
    "cd /tmp": SHELL,
    "git status": SHELL,
}


NO_HABITS = ["x = = 1", "a % % b", "nothing", "print(ls)", "f(a? b)", "raise SyntaxError('!x')", "x = 'a?", "x = 5 %"]


def test_habits_from_notebooks_and_shells_get_a_hint(worker: WorkerDriver) -> None:
    worker.cell("tmp = 1")
    for line, words in HINTS.items():
        told = worker.cell(f"x = 1\n{line}")
        assert told.error_type in ("SyntaxError", "NameError")
        hint = told.error.splitlines()[-1]
        assert hint.startswith("Hint: "), (line, told.error)
        assert words in hint
    for line in NO_HABITS:
        assert "Hint" not in worker.cell(line).error, line


BROKEN = {
    "after the cell": "asyncio.all_tasks = broken",
    "around the cell": "asyncio.tasks.Task = broken",
}


@pytest.mark.parametrize("place", BROKEN)
def test_a_worker_that_a_cell_has_broken_says_so(worker: WorkerDriver, place: str) -> None:
    # Contrived: nobody can foresee all that a cell may replace.
    worker.cell("import asyncio\nawait asyncio.sleep(0)\ndef broken(*_, **__): raise LookupError('gone')")
    told = worker.cell(BROKEN[place])
    if place == "around the cell":
        assert told.keep
        told = worker.cell("await asyncio.sleep(0)")
    assert (told.success, told.keep, told.error_type) == (False, False, "RuntimeError")
    assert told.error == "the worker cannot go on after this cell: LookupError: gone"


def test_a_worker_that_a_cell_has_broken_tells_the_cells_own_error_first(worker: WorkerDriver) -> None:
    worker.cell("import asyncio\nawait asyncio.sleep(0)\ndef broken(*_): raise LookupError('gone')")
    told = worker.cell("print('said')\nasyncio.all_tasks = broken\n1 / 0")
    assert (told.keep, told.error_type, told.stdout) == (False, "ZeroDivisionError", "said\n")
    assert told.error.endswith("\n\nthe worker cannot go on after this cell: LookupError: gone")


def test_an_interrupts_place_in_memory_is_forgotten(worker: WorkerDriver) -> None:
    """An exception in `__del__` is told, also one that has the place of an interrupt that was dealt with long ago."""
    caught = worker.start(
        "import time\ntry:\n    print('on', flush=True)\n    time.sleep(9)\nexcept BaseException: pass"
    )
    worker.wait_output("on")
    worker.interrupt()
    assert worker.answer(caught).interrupted is True
    told = worker.cell(
        "class Late:\n    def __del__(self): raise KeyboardInterrupt\n"
        "kept = []\nfor _ in range(50):\n    Late()\n    kept.append(KeyboardInterrupt())"
    )
    assert told.stderr.count("Exception ignored in") == 50
