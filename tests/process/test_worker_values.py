"""Values and errors as a result frame carries them: previews, exact JSON, bounds."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_trio.limits import DEFAULT
from tests.process.worker_driver import EACH, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        yield driver


def test_own_reprs_run_inside_the_cell(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "class A:\n    def __repr__(self):\n        print('in repr')\n        return 'A!'\n{'k': [A(), 1]}"
    )
    assert (answer.return_value, answer.stdout, answer.has_value) == ("{'k': [A!, 1]}", "in repr\n", False)


def test_a_failing_repr_is_a_note(worker: WorkerDriver) -> None:
    worker.cell(
        "class Broken:\n    def __repr__(self): raise RuntimeError('repr failed')\n"
        "class Worse(Exception):\n    def __str__(self): raise SystemExit\n"
        "class Both:\n    def __repr__(self): raise Worse\n"
        "class Wrong:\n    def __repr__(self): return 5"
    )
    assert (
        worker.cell("[Broken(), 1]").return_value == "[<Broken object; its repr failed: RuntimeError: repr failed>, 1]"
    )
    assert worker.cell("Both()").return_value == "<Both object; its repr failed: Worse>"
    assert "Wrong object; its repr failed: TypeError" in worker.cell("Wrong()").return_value
    assert worker.cell("class Quits:\n    def __repr__(self): raise SystemExit(3)\nQuits()").success


def test_only_identity_and_type_are_used(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "class Hostile:\n"
        "    def __bool__(self): raise ValueError\n"
        "    __eq__ = __len__ = __hash__ = __iter__ = __getattribute__ = __str__ = __bool__\n"
        "    def __repr__(self): return 'fine'\n"
        "class Meta(type):\n    @property\n    def __name__(cls): raise ValueError\n"
        "class List(list, metaclass=Meta):\n    def __len__(self): raise ValueError\n"
        "    __iter__ = __len__\n    def __repr__(self): return 'list'\n"
        "[Hostile(), List()]"
    )
    assert answer.return_value == "[fine, list]"


def test_big_values_cost_nothing(worker: WorkerDriver) -> None:
    answer = worker.cell("import array\nbig = list(range(3_000_000))\nbig")
    assert answer.return_value.startswith("[0, 1, 2, 3")
    assert answer.return_value.endswith(" more items]")
    assert (answer.truncated_return, answer.has_value) == (True, False)
    assert worker.cell("1 << 10**7").return_value == "<int with 10000001 bits>"
    assert "100,000,000 characters in all" in worker.cell("'x' * 10**8").return_value
    # What has its own repr is the user's affair, but the preview is still bounded.
    assert (
        len(worker.cell("class Long:\n    def __repr__(self): return '\u00e9' * 10**6\nLong()").return_value.encode())
        <= 20_000
    )


@pytest.mark.parametrize(
    "text", ["'\\x01' * 10**6", "'\\ud800' * 10**6", "'\U0001f600' * 10**6", "['\\x01'] * 10**6", "b'\\0' * 10**6"]
)
def test_the_worst_text_fits_into_a_frame(tmp_path: Path, text: str) -> None:
    with WorkerDriver(interpreter("3.11"), tmp_path) as worker:
        worker.ready()
        answer = worker.cell(text)
        assert answer.success
        assert answer.truncated_return
        assert len(answer.return_value.encode()) <= DEFAULT.preview_bytes
        error = worker.cell(f"raise ValueError({text})")
        assert error.truncated_error
        assert len(error.error.encode()) <= DEFAULT.error_bytes
        assert error.error.startswith("Traceback (most recent call last):")
        both = worker.cell(f"class A:\n    def __repr__(self): return str({text})\nA()")
        assert len(both.return_value.encode()) <= DEFAULT.preview_bytes


def test_val_a01_nan_and_infinity_are_shown_and_have_no_value(worker: WorkerDriver) -> None:
    for code in ("float('nan')", "[1.0, float('inf'), -float('inf')]", "{'a': {'b': [float('nan')]}}"):
        answer = worker.cell(code)
        assert (answer.success, answer.has_value, answer.return_value) == (True, False, repr(eval(code)))
    assert worker.cell("[0.1, 1e308]").value == [0.1, 1e308]


def test_val_a02_a_failing_repr_is_no_failed_cell(worker: WorkerDriver) -> None:
    worker.cell("class BrokenRepr:\n    def __repr__(self): raise RuntimeError('repr failed')\nobj = BrokenRepr()")
    for code in ("obj", "[obj, 1]", "{'k': obj}", "display(obj)"):
        answer = worker.cell(code)
        assert answer.success
        assert "<BrokenRepr object; its repr failed: RuntimeError: repr failed>" in (
            answer.return_value or answer.stdout
        )
    assert worker.cell("isinstance(obj, BrokenRepr)").value is True


def test_val_a03_what_contains_itself_is_shown_as_python_shows_it(worker: WorkerDriver) -> None:
    assert worker.cell("d = {'k': 1}\nd['me'] = d\nd").return_value == "{'k': 1, 'me': {...}}"
    cyclic = worker.cell("l = [1]\nl.append(l)\nl")
    assert (cyclic.return_value, cyclic.has_value) == ("[1, [...]]", False)
    assert worker.cell("a, b = [], []\na.append(b); b.append(a)\na").return_value == "[[[...]]]"
    # Shortened ones are kept as well, and no walk over them goes on for ever.
    (item,) = worker.cell("l += [l] * 99_999\nl").items
    assert item.content.startswith(b"[1, [...], [...], ")


def test_val_a04_no_digit_is_lost(worker: WorkerDriver) -> None:
    for number in (2**63 + 1, 2**53, 10**100, -(2**53)):
        answer = worker.cell(f"{{'id': {number}}}")
        assert (answer.return_value, answer.has_value) == (f"{{'id': {number}}}", False)
    assert worker.cell("2**53 - 1").value == 9007199254740991


def test_val_a05_what_json_has_not_is_shown_by_its_repr(worker: WorkerDriver) -> None:
    answer = worker.cell("import datetime, decimal\n[datetime.date(2024, 2, 29), decimal.Decimal('0.10')]")
    assert (answer.return_value, answer.has_value) == ("[datetime.date(2024, 2, 29), Decimal('0.10')]", False)
    for code in (
        "b'\\x00\\xffabc'",
        "(1, 'two', None)",
        "{3}",
        "ValueError('as a value')",
        "range(3)",
        "complex(1, -2)",
    ):
        answer = worker.cell(code)
        assert (answer.return_value, answer.has_value) == (repr(eval(code)), False)


def test_val_a06_what_has_no_truth_is_shown(worker: WorkerDriver) -> None:
    worker.cell(
        "class ArrayLike:\n    def __bool__(self): raise ValueError('truth value is ambiguous')\n"
        "    def __eq__(self, other): return self\n    def __len__(self): raise TypeError('len() of unsized object')\n"
        "    __hash__ = None\n    def __repr__(self): return 'ArrayLike(3 items)'"
    )
    for code in ("ArrayLike()", "[ArrayLike()] * 2", "{'x': ArrayLike()}", "(ArrayLike(), 1)", "display(ArrayLike())"):
        answer = worker.cell(code)
        assert answer.success
        assert "ArrayLike(3 items)" in (answer.return_value or answer.stdout)


def test_val_a07_megabytes_are_bounded_and_stay_in_the_namespace(worker: WorkerDriver) -> None:
    answer = worker.cell("big = list(range(3_000_000))\nbig")
    assert answer.return_value.startswith("[0, 1, 2")
    assert answer.truncated_return
    assert len(answer.return_value) <= DEFAULT.preview_bytes
    assert worker.cell("[len(big), big[-1]]").value == [3_000_000, 2_999_999]


def test_a_repr_that_never_ends_is_interrupted(worker: WorkerDriver) -> None:
    worker.cell("class Slow:\n    def __repr__(self):\n        print('asked', flush=True)\n        while True: pass")
    for code in ("Slow()", "[1, Slow()]", "{'k': [Slow()]}"):
        run = worker.start(code)
        worker.wait_output("asked")
        answer = worker.interrupt_until_answer(run)
        assert (answer.success, answer.interrupted) == (False, True)
    # The repr of one in the part that is kept beyond the preview.
    run = worker.start("['x' * 999] * 50 + [Slow()]")
    worker.wait_output("asked")
    answer = worker.interrupt_until_answer(run)
    assert (answer.success, answer.items) == (False, [])


def test_a_recursion_limit_that_a_cell_leaves_does_no_harm(worker: WorkerDriver) -> None:
    deep = "value = []\nfor _ in range(40): value = [value, {'k': value}, (1,)][:1]\n"
    answer = worker.cell(f"import sys\n{deep}sys.setrecursionlimit(60)\nvalue")
    assert answer.success
    assert answer.return_value == "[" * 30 + "[...]" + "]" * 30
    assert worker.cell("sys.getrecursionlimit() >= 300").value


def test_the_context_of_the_cells_counts_for_reprs(worker: WorkerDriver) -> None:
    code = "import contextvars\nv = contextvars.ContextVar('v', default=0)\n_ = v.set(7)\nclass A:\n"
    worker.cell(code + "    def __repr__(self): return f'v is {v.get()}'")
    assert worker.cell("A()").return_value == "v is 7"
    assert worker.cell("await __import__('asyncio').sleep(0)\n[A()]").return_value == "[v is 7]"


def test_errors_show_user_frames_and_count_library_frames(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text("import json\ndef parse(text):\n    return json.loads(text)  # ours\n")
    answer = worker.cell("import project\nproject.parse('{')")
    assert f'File "{tmp_path}/project.py", line 3, in parse\n    return json.loads(text)  # ours' in answer.error
    assert "  [3 library frames]\n" in answer.error
    assert answer.error_type == "json.decoder.JSONDecodeError"
    assert "decoder.py" not in answer.error
    assert "repl_trio" not in answer.error


def test_errors_show_chains_notes_and_groups(worker: WorkerDriver) -> None:
    chain = worker.cell("try:\n    1/0\nexcept ZeroDivisionError as error:\n    raise KeyError('k') from error").error
    assert chain.index("ZeroDivisionError") < chain.index("direct cause") < chain.index("KeyError: 'k'")
    context = worker.cell("try:\n    1/0\nexcept ZeroDivisionError:\n    [][0]").error
    assert "During handling" in context
    if worker.cell("import sys\nsys.version_info >= (3, 11)").value:
        group = worker.cell(
            "def f(): raise ValueError(1)\ntry:\n    f()\nexcept ValueError as e:\n"
            "    e.add_note('the note')\n    raise ExceptionGroup('many', [e, TypeError('two')])"
        )
        for word in ("ExceptionGroup: many", "ValueError: 1", "the note", "TypeError: two", "in f"):
            assert word in group.error
        assert "repl_trio" not in group.error


def test_syntax_errors_point_at_the_place(worker: WorkerDriver) -> None:
    answer = worker.cell("x = 1\ny = = 2")
    assert answer.error.startswith('  File "<repl:r1>", line 2\n    y = = 2\n        ^')
    for line in ("!pip install something", "%timeit x", "  !ls"):
        command = 'sh([sys.executable, "-m", "pip", "install", ...])' if "pip" in line else 'sh("...")'
        told = worker.cell(f"{line}\nkept = 6")
        assert told.error_type in ("SyntaxError", "IndentationError")
        if told.error_type == "SyntaxError":
            assert told.error.endswith(f" with {command}.")
    assert "Hint" not in worker.cell("x = = 1").error


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "PYTHON_COLORS"])
def test_errors_have_no_colours(tmp_path: Path, variable: str) -> None:
    with WorkerDriver(interpreter("3.13"), tmp_path, {variable: "1"}) as worker:
        worker.ready()
        assert "\x1b" not in worker.cell("1/0").error


def test_a_hostile_exception_is_still_reported(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "class Hostile(BaseException):\n    def __str__(self): raise SystemExit\n    __repr__ = __str__\nraise Hostile"
    )
    assert (answer.success, answer.error_type) == (False, "Hostile")
    assert "Hostile" in answer.error
    answer = worker.cell(
        "class Meta(type(Exception)):\n    @property\n"
        "    def __module__(cls): raise ValueError\n"
        "class Odd(Exception, metaclass=Meta): pass\nraise Odd"
    )
    assert (answer.success, answer.error_type) == (False, "Odd")


def test_a_very_deep_traceback_is_bounded(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import sys\nsys.setrecursionlimit(20_000)\ndef a(n): return b(n - 1) if n else 1/0\n"
        "def b(n): return a(n)\na(6000)"
    )
    assert len(answer.error.encode()) <= DEFAULT.error_bytes
    assert " frames left out]\n" in answer.error
    assert answer.error.endswith("ZeroDivisionError: division by zero")


def test_a_long_chain_is_bounded(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "error = ValueError(0)\nfor n in range(1, 500):\n"
        "    new = ValueError(n); new.__cause__ = error; error = new\nraise error"
    )
    assert len(answer.error.encode()) <= DEFAULT.error_bytes
    assert answer.error.endswith("ValueError: 499")
