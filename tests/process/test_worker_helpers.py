"""The names in every namespace: `checkpoint` and `restore`, `repl_namespace`, what `help` says of each."""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repl_trio.limits import DEFAULT
from tests.process.worker_driver import EACH, EXTREMES, Gone, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

COMMANDS = ("sh", "ash", "ShResult", "ShError", "ShTimeout")
HELPERS = (*COMMANDS, "display", "checkpoint", "restore", "repl_history", "repl_source", "repl_namespace")


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        yield driver


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- all of them -----------------------------------------------------------------------------------------------


def test_every_helper_is_there_and_help_tells_how_to_use_it(worker: WorkerDriver) -> None:
    for name in HELPERS:
        answer = worker.cell(f"help({name})")
        assert answer.success, name
        assert "_repl_trio" not in answer.stdout, name
        assert len(answer.stdout) > 150, name
    told = worker.cell("help(checkpoint); help(restore); help(repl_namespace); help(ash)").stdout
    for word in (".skipped", "symbolic link", "All or nothing", "name to type and size", "asyncio.gather", "16 MiB"):
        assert word in told, word


def test_a_cell_that_shadows_a_helper_loses_it_for_that_cell_only(worker: WorkerDriver) -> None:
    for name in HELPERS:
        assert worker.cell(f"{name} = 5\n{name}").value == 5
        assert worker.cell(f"callable({name})").value is True, name
        assert worker.cell(f"del {name}").success
    assert worker.cell(f"all(map(callable, [{', '.join(HELPERS)}]))").value is True


# -- repl_namespace --------------------------------------------------------------------------------------------


def test_the_namespace_is_told_in_types_and_sizes(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import json\nrows = [1, 2]; text = 'x'; raw = b''; n = 10**50; nothing = None; pair = (1,)\n"
        "table = dict.fromkeys(range(1204)); kinds = {1, 2}; _private = 2.5\n"
        "def load(path, *rest, limit=None, **more): found = 1\nclass Row: pass\nrow = Row()\nrepl_namespace()"
    )
    assert answer.value == {
        "json": "module",
        "rows": "list, 2 items",
        "text": "str, 1 character",
        "raw": "bytes, 0 bytes",
        "n": "int",
        "nothing": "NoneType",
        "pair": "tuple, 1 item",
        "table": "dict, 1,204 items",
        "kinds": "set, 2 items",
        "_private": "float",
        "load": "function (path, limit)",
        "Row": "type",
        "row": "Row",
    }
    # The order of definition; a name that is set again keeps its place.
    assert list(worker.cell("rows = 5; late = 1\nrepl_namespace()").value)[-2:] == ["row", "late"]
    assert worker.cell("type(repl_namespace()) is dict").value is True


def test_nothing_of_the_users_runs_for_the_namespace(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "ran = []\nclass Meta(type):\n    def __getattribute__(cls, name): ran.append(name); raise ValueError(name)\n"
        "    def __eq__(cls, other): ran.append('eq'); return True\n    __hash__ = type.__hash__\n"
        "class Evil(list, metaclass=Meta):\n    def __len__(self): ran.append('len'); return 1\n"
        "    @property\n    def shape(self): ran.append('shape')\n"
        "class Text(str):\n    def __len__(self): ran.append('len'); return 1\n"
        "evil, text = type.__call__(Evil), Text('x')\nseen = repl_namespace(); saved = checkpoint('file')\n"
        "[ran, seen['evil'], seen['text'], sorted(saved.skipped)]"
    )
    assert answer.value == [[], "Evil", "Text", ["Evil", "Meta", "Text", "evil", "text"]], answer


def test_arrays_and_frames_show_their_shape(tmp_path: Path) -> None:
    with WorkerDriver(sys.executable, tmp_path) as worker:
        worker.ready()
        answer = worker.cell(
            "import numpy, pandas, polars\na = numpy.zeros((1200, 2)); s = numpy.array(1); v = numpy.zeros(3)\n"
            "d = pandas.DataFrame({'x': [1, 2]}); c = pandas.Series([1]); p = polars.DataFrame({'x': [1]})\n"
            "class Own(numpy.ndarray):\n    @property\n    def shape(self): 1 / 0\n"
            "o = v.view(Own)\n{name: text for name, text in repl_namespace().items() if len(name) == 1}"
        )
        assert answer.value == {
            "a": "ndarray, 1,200 x 2",
            "s": "ndarray, no dimension",
            "v": "ndarray, 3",
            "d": "DataFrame, 2 x 1",
            "c": "Series, 1",
            "p": "DataFrame, 1 x 1",
            "o": "Own",
        }


# -- checkpoint and restore ------------------------------------------------------------------------------------

EXACT = (
    "{'none': None, 'truth': True, 'int': -5, 'big': 2**14279, 'float': 0.1, 'zero': -0.0, 'tiny': 5e-324, "
    "'ns': [0, -7, 2**64], 'fs': [0.5, -0.0], 'bs': [True, False], 'ts': ['', '\\ud800'], "
    "'text': 'caf\\xe9 \\ud800 \\x00 \\U0001f600', 'list': [[], {}, [1, [2]]], "
    "'dict': {'': {'a b': []}, '\\ud800': 1}}"
)


def test_what_is_saved_comes_back_exactly(worker: WorkerDriver, tmp_path: Path) -> None:
    answer = worker.cell(
        f"x = {EXACT}\nlist_ = deep = []\nfor _ in range(99): deep.append([]); deep = deep[0]\ndel deep\n"
        "y = [1]; both = [y, y]; del y\nc = checkpoint('state.json')\n[c.saved, c.skipped, c.path, c.size]"
    )
    path = tmp_path / "state.json"
    assert answer.value == [["x", "list_", "both"], {}, "state.json", path.stat().st_size]
    assert files(tmp_path) == ["state.json"]
    assert path.stat().st_mode & 0o7777 == 0o600
    assert set(json.loads(path.read_text("ascii"))["names"]) == {"x", "list_", "both"}
    worker.cell("kept, before, x = 1, [x, list_, both], 'changed'\ndel list_, both")
    assert worker.cell("restore('state.json')").value == ["x", "list_", "both"]
    assert worker.cell("[[x, list_, both] == before, repr(x) == repr(before[0]), kept]").value == [True, True, 1]
    assert worker.cell("[x is before[0], both[0] is both[1]]").value == [False, False]
    again = worker.cell("x = list_ = 0\nrestore('state.json', ['x'])\n[x == before[0], list_]")
    assert again.value == [True, 0]


def test_what_cannot_be_saved_is_skipped_with_its_reason(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import math\n_hidden = __dunder__ = 1\nloop = []; loop.append(loop); keys = {1: 2}; pair = (1,)\n"
        "nan = math.nan; inf = [-math.inf]; far = {'a': [1, {2}]}; def_ = lambda: 1; n = 2**14280\n"
        "class Text(str): pass\nt = Text('t')\n"
        "ns = [1, -n]; nans = [0.5, 1.5, nan]; texts = [t, t]\n"
        "deep = []\nfor _ in range(100): deep = [deep]\nglobals()['no name'] = globals()[5] = 1\nok = [1]\n"
        "c = checkpoint('f')\nfrom textwrap import shorten\n[c.saved, c.skipped, repr(c)]"
    )
    saved, skipped, told = answer.value
    assert saved == ["ok"]
    assert skipped.pop("deep").endswith(": nested deeper than 100")
    assert skipped == {
        "loop": "loop[0]: contains itself",
        "keys": "a dict key of type int is no JSON builtin",
        "pair": "tuple is no JSON builtin",
        "nan": "NaN is not in JSON",
        "inf": "inf[0]: infinity is not in JSON",
        "far": "far['a'][1]: set is no JSON builtin",
        "def_": "function is no JSON builtin",
        "n": "too large, an int of 14,281 bits (14,280 are allowed)",
        "ns": "ns[1]: too large, an int of 14,281 bits (14,280 are allowed)",
        "nans": "nans[2]: NaN is not in JSON",
        "texts": "texts[0]: Text is no JSON builtin",
        "Text": "type is no JSON builtin",
        "t": "Text is no JSON builtin",
    }
    assert told.startswith("saved 1 name in 'f' (")
    assert "bytes): ok; skipped 14: loop (loop[0]: contains itself), " in told


def test_names_that_are_asked_for_are_saved_or_nothing_is(worker: WorkerDriver, tmp_path: Path) -> None:
    worker.cell("a, b, _c = 1, (2,), 3; import json")
    assert worker.cell("checkpoint('f', ['_c', 'a', 'a']).saved").value == ["_c", "a"]
    assert worker.cell("checkpoint('f', 'a').saved").value == ["a"]
    before = (tmp_path / "f").read_bytes()
    for names, kind, words in (
        ("['a', 'b']", "ValueError", "'b' cannot be saved, nothing is: tuple is no JSON builtin"),
        ("['json']", "ValueError", "'json' cannot be saved"),
        ("['a', 'missing']", "LookupError", "no 'missing'"),
        ("['sh']", "ValueError", "the REPL's own"),
        ("['__name__']", "ValueError", "the REPL's own"),
        ("[1]", "ValueError", "a name is a str, not a int"),
        ("5", "TypeError", "iterable"),
    ):
        answer = worker.cell(f"checkpoint('f', {names})")
        assert (answer.error_type, words in answer.error) == (kind, True), answer
    assert ((tmp_path / "f").read_bytes(), files(tmp_path)) == (before, ["f"])
    assert "no 'b'" in worker.cell("restore('f', ['b'])").error
    assert worker.cell("sh = 1\ncheckpoint('f').saved").value == ["a"]


def test_the_size_is_bounded_at_the_byte(tmp_path: Path) -> None:
    with WorkerDriver(interpreter("3.12"), tmp_path) as worker:
        worker.ready()
        bound = DEFAULT.checkpoint_bytes
        empty = worker.cell("t = ''\ncheckpoint('f').size").value
        assert worker.cell(f"t = 'x' * {bound - empty}\ncheckpoint('f').size").value == bound
        assert worker.cell("restore('f')").value == ["t"]
        told = worker.cell("t += 'x'\nu = 1\nc = checkpoint('f')\n[c.saved, c.skipped]").value
        assert told == [["u"], {"t": f"too large: the limit checkpoint_bytes allows {bound:,} bytes in all"}]
        # Characters that take more in the file than in memory, and what is too long to be walked.
        worker.cell("t = '\\x00' * 3_000_000; w = [None] * 50_000_000; v = ['y' * 9_000_000] * 2\nx = {'a': [v]}")
        assert worker.cell("del c\nlist(checkpoint('f').skipped)").value == ["t", "w", "v", "x"]
        (tmp_path / "f").write_bytes(b" " * (bound + 1))
        assert "too large" in worker.cell("restore('f')").error


def test_the_interpreters_own_limit_on_digits_does_not_count(worker: WorkerDriver) -> None:
    if worker.cell("import sys; hasattr(sys, 'set_int_max_str_digits')").value is False:
        pytest.skip("this Python has no such limit")
    answer = worker.cell(
        "n = 3**9000\nsys.set_int_max_str_digits(640)\nc = checkpoint('f'); n = 0; restore('f')\n"
        "[c.saved, n == 3**9000, sys.get_int_max_str_digits()]"
    )
    assert answer.value == [["n"], True, 640]


def test_the_file_is_never_reached_through_a_link_or_a_device(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("mine")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    before = files(tmp_path)
    worker.cell("x = 1")
    for name, words in (
        ("link", "symbolic link, which is not followed: 'link'"),
        ("dangling", "symbolic link, which is not followed"),
        ("folder", "no regular file"),
        ("fifo", "no regular file"),
        ("none/f", "no such folder: 'none'"),
        ("real/f", "Not a directory: 'real/f'"),
    ):
        answer = worker.cell(f"checkpoint('{name}')")
        assert words in answer.error, answer
        assert answer.error_type in ("OSError", "FileNotFoundError", "NotADirectoryError")
        assert worker.cell(f"restore('{name}')").error_type in (
            "OSError",
            "FileNotFoundError",
            "NotADirectoryError",
            "IsADirectoryError",
        )
    assert (files(tmp_path), (tmp_path / "real").read_text()) == (before, "mine")
    assert (
        worker.cell("import os\nos.umask(0o777)\ncheckpoint('real'); oct(os.stat('real').st_mode)").value == "0o100600"
    )


def damaged(change: dict[str, Any]) -> str:
    return json.dumps({"format": "repl_trio checkpoint", "version": 1, "names": {"kept": 2, "new": 3}} | change)


DAMAGED = {
    "": "no JSON value",
    "{": "",
    "[" * 200_000: "",
    "[]": "not written by checkpoint()",
    '"\ud800"': "",
    damaged({"format": "other"}): "not written by checkpoint()",
    damaged({"version": 2}): "its version is 2, and this is 1",
    damaged({"version": None}): "its version is None",
    damaged({"names": []}): "its parts",
    damaged({"more": 1}): "its parts",
    damaged({"names": {"kept": 2, "sh": 1}}): "the REPL's own",
    damaged({"names": {"kept": 2, "__builtins__": 1}}): "the REPL's own",
    damaged({"names": {"kept": 2, "a b": 1}}): "'a b' is no name",
    damaged({"names": {"kept": 2, "new": float("nan")}}): "NaN is not JSON",
    damaged({"names": {"kept": 2, "new": 0.5}}).replace("0.5", "1e999"): "infinity is not in JSON",
    damaged({"names": {"kept": 2, "new": [0.5]}}).replace("0.5", "[" * 100 + "]" * 100): "nested deeper than 100",
    damaged({"names": {"kept": 2, "new": 0.5}}).replace("0.5", "9" * 5_000): "",
    damaged({}) + damaged({}): "more than one",
}


def test_a_damaged_file_changes_nothing(worker: WorkerDriver, tmp_path: Path) -> None:
    worker.cell("kept = 1")
    for text, words in DAMAGED.items():
        (tmp_path / "f").write_bytes(text.encode("utf-8", "surrogatepass"))
        answer = worker.cell("restore('f')")
        assert answer.error_type == "ValueError", text[:100]
        assert "'f' is no checkpoint that can be restored: " in answer.error, text[:100]
        assert words in answer.error, (text[:100], answer.error)
        assert worker.cell("[kept, 'new' in globals()]").value == [1, False], text[:100]
    (tmp_path / "f").write_text(damaged({}))
    assert worker.cell("restore('f')\n[kept, new]").value == [2, 3]


def test_a_write_that_fails_leaves_the_old_file(worker: WorkerDriver, tmp_path: Path) -> None:
    worker.cell("import os; x = 1; checkpoint('f'); x = 2; fsync = os.fsync")
    before = (tmp_path / "f").read_bytes()
    for error in ("OSError(28, 'No space left on device')", "KeyboardInterrupt()"):
        answer = worker.cell(
            f"def fail(_number): os.fsync = fsync; raise {error}\nos.fsync = fail\ncheckpoint('f', ['x'])"
        )
        assert answer.success is False
        assert ((tmp_path / "f").read_bytes(), files(tmp_path)) == (before, ["f"]), error
    with pytest.raises(Gone):
        worker.cell("os.fsync = lambda number: os._exit(1)\ncheckpoint('f', ['x'])")
    assert (tmp_path / "f").read_bytes() == before


@pytest.mark.parametrize("version", EXTREMES)
def test_interrupts_at_random_moments_leave_the_old_file_or_the_new(version: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    with WorkerDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        worker.cell("a = b = n = 0\ncheckpoint('f', ['a', 'b'])")
        for _ in range(30):
            run_id = worker.start(
                "print('running')\nwhile True:\n"
                "    n += 1; a = [n] * 20_000; b = [n] * 20_000\n"
                "    checkpoint('f', ['a', 'b'])\n    a = b = None\n    restore('f')"
            )
            worker.wait_output("running\n")
            worker.pause(chance.random() * 0.03)
            answer = worker.interrupt_until_answer(run_id, 1.0)
            assert (answer.interrupted, answer.keep) == (True, True), (seed, answer)
            names = json.loads((tmp_path / "f").read_text())["names"]
            assert names["a"] == names["b"], seed
            assert files(tmp_path) == ["f"], seed
            # Both names or neither: `restore` is one step.
            assert worker.cell("(a is None) == (b is None)").value is True, seed


def test_a_restore_that_fails_leaves_no_descriptor(worker: WorkerDriver, tmp_path: Path) -> None:
    code = (
        "import os\nbefore = len(os.listdir('/proc/self/fd'))\n"
        f"for name in ({str(tmp_path)!r}, '/dev/null', '/no/such'):\n"
        "    try: restore(name)\n    except OSError as error: print(error)\n"
        "len(os.listdir('/proc/self/fd')) - before"
    )
    answer = worker.cell(code)
    assert answer.value == 0
    assert str(tmp_path) in answer.stdout
