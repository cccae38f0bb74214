"""What a run shows beyond text: items of `output` frames, `display`, rich trailing values, values kept whole."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_trio.limits import DEFAULT
from tests.process.worker_driver import BOOT, EACH, EXTREMES, WorkerDriver, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

PNG = b"\x89PNG\r\n\x1a\n and more"
SHOWS = """
PNG = b"\\x89PNG\\r\\n\\x1a\\n and more"
class Shows:
    def __init__(self, content=PNG): self.content = content
    def __repr__(self): return "Shows()"
    def _repr_png_(self): return self.content
"""


@pytest.fixture(params=EACH)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        driver.cell(SHOWS)
        yield driver


@pytest.fixture(params=EXTREMES)
def some_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WorkerDriver]:
    with WorkerDriver(interpreter(request.param), tmp_path) as driver:
        driver.ready()
        driver.cell(SHOWS)
        yield driver


def test_a_trailing_image_is_an_item_and_its_repr_the_value(worker: WorkerDriver) -> None:
    answer = worker.cell("Shows()")
    assert answer.return_value == "Shows()"
    (item,) = answer.items
    assert (item.stream, item.name, item.media_type, item.content) == ("display", "Shows", "image/png", PNG)
    assert item.complete
    assert answer.stdout == ""


def test_display_prints_text_in_its_place_and_sends_images(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "class Markdown:\n    def _repr_markdown_(self): return '**bold**'\n"
        "class Html:\n    def _repr_html_(self): return '<b>bold</b>'\n"
        "class Both(Html):\n    def __repr__(self): return 'both'\n"
        "print(1)\ndisplay(Markdown(), Shows(), 'a text')\nprint(2)\ndisplay(Html())\n"
        "display(Both(), 5, None)\nprint(3)"
    )
    assert answer.stdout == "1\n**bold**\na text\n2\n<b>bold</b>\nboth\n5\nNone\n3\n"
    assert answer.return_value is None
    assert [item.content for item in answer.items] == [PNG]
    assert worker.cell("Markdown()").return_value == "**bold**"
    assert worker.cell("Html()").return_value == "<b>bold</b>"


def test_images_of_every_kind_are_known_by_their_bytes(some_worker: WorkerDriver) -> None:
    answer = some_worker.cell(
        "import base64\n"
        "class Jpeg:\n    def _repr_jpeg_(self): return b'\\xff\\xd8\\xff!', {'width': 5}\n"
        "class Svg:\n    def _repr_svg_(self): return '<svg xmlns=\"x\"/>'\n"
        "class Bundle:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'image/webp': b'RIFF1234WEBP', 'text/markdown': 'text'}, {}\n"
        "display(b'GIF89a...', Jpeg(), Svg(), Bundle(), Shows(base64.b64encode(PNG).decode()), PNG)"
    )
    assert [(item.media_type, item.content) for item in answer.items] == [
        ("image/gif", b"GIF89a..."),
        ("image/jpeg", b"\xff\xd8\xff!"),
        ("image/svg+xml", b'<svg xmlns="x"/>'),
        ("image/webp", b"RIFF1234WEBP"),
        ("image/png", PNG),
        ("image/png", PNG),
    ]


def test_a_rich_method_that_fails_is_a_note_and_never_a_failed_cell(worker: WorkerDriver) -> None:
    worker.cell(
        "class Fails:\n    def __repr__(self): return 'still here'\n"
        "    def _repr_png_(self): raise ValueError('no\\npng')\n"
        "class Leaves(Fails):\n    def _repr_png_(self): raise SystemExit(3)\n"
    )
    answer = worker.cell("Fails()")
    assert answer.success
    assert answer.return_value == "still here\n<Fails object; its _repr_png_ failed: ValueError: no png>"
    assert worker.cell("display(Fails())").stdout == answer.return_value + "\n"
    assert worker.cell("Leaves()").return_value == "still here"
    assert not worker.cell("Shows(b'junk')").items
    assert "what it gave as image/png is none" in worker.cell("Shows(b'junk')").return_value


def test_whoever_answers_to_every_name_is_not_believed(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "from unittest.mock import MagicMock, Mock\n"
        "class Proxy:\n    def __getattr__(self, name): return lambda *a, **k: 'from ' + name\n"
        "    def __repr__(self): return 'proxy'\n"
        "class Lies:\n    __class__ = property(lambda self: 1/0)\n    def __repr__(self): return 'lies'\n"
        "    def _repr_png_(self): return Lies()\n    def _repr_html_(self): return 5\n"
        "class Meta(type):\n    def __getattribute__(cls, name): raise ValueError(name)\n"
        "    __instancecheck__ = __eq__ = __hash__ = __repr__ = __getattribute__\n"
        "class Odd(metaclass=Meta):\n    def __repr__(self): return 'odd'\n"
        "class Off(Shows):\n    _repr_png_ = None\n"
        "display(Proxy(), Lies(), Odd(), Off(), Shows)\ndisplay(MagicMock(), Mock())\n[Proxy(), Lies(), Odd()]"
    )
    assert answer.success, answer.error
    assert answer.items == []
    assert answer.stdout.startswith("proxy\nlies\nodd\nShows()\n<class '__main__.Shows'>\n<MagicMock id=")
    assert answer.return_value == "[proxy, lies, odd]"


def test_a_big_item_comes_in_parts(some_worker: WorkerDriver) -> None:
    (item,) = some_worker.cell("big = PNG + bytes(range(256)) * 8_000\nShows(big)").items
    assert item.content == PNG + bytes(range(256)) * 8_000
    assert item.parts == 5
    answer = some_worker.cell(f"print(7)\ndisplay(Shows(PNG.ljust({DEFAULT.artifact_bytes} + 1)))")
    assert answer.items == []
    assert answer.stdout == "7\nShows()\n<Shows: image/png of 16,777,217 bytes; artifact_bytes allows 16,777,216>\n"


def test_a_run_shows_so_much_and_says_once_that_the_rest_is_left_out(some_worker: WorkerDriver) -> None:
    answer = some_worker.cell(f"for n in range({DEFAULT.displays} + 100):\n    display(Shows())\nlist(range(10**5))")
    assert [item.stream for item in answer.items] == ["display"] * DEFAULT.displays + ["value"]
    assert answer.stdout == "<display: a run shows at most 32 images and documents; the rest is left out>\n"
    assert len(some_worker.cell("display(Shows())").items) == 1


def test_items_of_many_threads_do_not_mix(some_worker: WorkerDriver) -> None:
    answer = some_worker.cell(
        "import threading\n"
        "def show(n):\n    for _ in range(3): display(Shows(PNG + bytes([n]) * 1_200_000))\n"
        "threads = [threading.Thread(target=show, args=(n,)) for n in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    assert len(answer.items) == 24
    for item in answer.items:
        assert set(item.content[len(PNG) :]) == {item.content[-1]}
        assert len(item.content) == len(PNG) + 1_200_000


def test_what_comes_after_the_run_or_in_a_forked_child_is_dropped(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import os\npid = os.fork()\nif not pid:\n    display(Shows())\n    display('child')\n    os._exit(0)\n"
        "os.waitpid(pid, 0)[1]"
    )
    assert (answer.return_value, answer.items) == ("0", [])
    assert answer.stdout == "Shows()\nchild\n"
    # A finalizer, called while the worker has no run.
    worker.cell("class Late:\n    def __del__(self): display(Shows())\nimport gc, weakref\nlate = Late()")
    assert [item.content for item in worker.cell("del late").items] == [PNG]
    assert worker.cell("1").items == []


def test_code_that_shows_something_in_the_midst_of_an_item_does_no_harm(some_worker: WorkerDriver) -> None:
    # Finalizers and signal handlers run between any two steps of ours; a profiler does so each time.
    answer = some_worker.cell(
        "import sys\ncalls = 0\n"
        "def profile(frame, event, argument):\n"
        "    global calls\n"
        "    if event == 'c_call' and frame.f_globals['__name__'].startswith('_repl_trio.'):\n"
        "        calls += 1\n        display(Shows())\n"
        "sys.setprofile(profile)\n"
        "display(Shows(PNG + bytes(2_000_000)))\n"
        "sys.setprofile(None)\ncalls > 10"
    )
    assert answer.value is True
    assert len(PNG) + 2_000_000 in [len(item.content) for item in answer.items]


def test_an_interrupt_ends_a_rich_method_and_tears_no_item(worker: WorkerDriver) -> None:
    worker.cell(
        "import time\nclass Slow(Shows):\n    def _repr_png_(self):\n        print('drawing')\n        time.sleep(60)"
    )
    for code in ("Slow()", "display(Slow())", "import asyncio\nawait asyncio.sleep(0)\ndisplay(Slow())"):
        run = worker.start(code)
        worker.wait_output("drawing")
        answer = worker.interrupt_until_answer(run)
        assert (answer.success, answer.interrupted, answer.items) == (False, True, [])
    # Parts that come at any moment of a loop of items: the driver refuses a torn one.
    for moment in range(10):
        run = worker.start("while True:\n    display(Shows(PNG + bytes(1_000_000)))\n    print('next')")
        worker.wait_output("next")
        worker.pause(moment / 300)
        assert not worker.interrupt_until_answer(run).success
    assert len(worker.cell("Shows()").items) == 1


def test_a_slow_repr_of_a_displayed_object_is_interrupted_in_an_async_cell(some_worker: WorkerDriver) -> None:
    some_worker.cell(
        "import asyncio, time\nclass Slow:\n    def __repr__(self):\n        print('asked')\n        time.sleep(60)\n"
        "        return 'slow'"
    )
    run = some_worker.start("await asyncio.sleep(0)\ndisplay([Slow()])\nwent_on = True")
    some_worker.wait_output("asked")
    answer = some_worker.interrupt_until_answer(run)
    assert (answer.success, answer.interrupted) == (False, True)
    assert not some_worker.cell("'went_on' in globals()").value


def test_long_markdown_is_cut_and_kept_whole(some_worker: WorkerDriver) -> None:
    answer = some_worker.cell("class M:\n    def _repr_markdown_(self): return 'x' * 50_000\nM()")
    assert answer.truncated_return
    assert len(answer.return_value) == DEFAULT.preview_bytes
    (item,) = answer.items
    assert (item.stream, item.media_type, item.content) == ("display", "text/markdown", b"x" * 50_000)
    assert some_worker.cell("display(M())").stdout == "x" * DEFAULT.preview_bytes + "...\n"


def test_display_is_documented_and_shadowed_for_one_cell_only(some_worker: WorkerDriver) -> None:
    assert "Show objects at this place" in some_worker.cell("help(display)").stdout
    assert some_worker.cell("display = 5\ndisplay").value == 5
    assert len(some_worker.cell("display(Shows())").items) == 1


@pytest.mark.parametrize(
    ("code", "media_type", "content"),
    [
        ("'\\u00e9\\ud800' * 20_000", "text/plain", "\u00e9\\ud800".encode() * 20_000),
        ("b'\\x00\\xff' * 20_000", "application/octet-stream", b"\x00\xff" * 20_000),
        ("bytearray(30_000)", "application/octet-stream", bytes(30_000)),
        ("tuple(range(9_999))", "text/plain", repr(tuple(range(9_999))).encode()),
        ("{2**70: range(3), 'k': [None] * 9_999}", "text/plain", repr({2**70: range(3), "k": [None] * 9_999}).encode()),
        ("class R:\n    def __repr__(self): return 'r' * 99_999\nR()", "text/plain", b"r" * 99_999),
    ],
    ids=["str", "bytes", "bytearray", "tuple", "dict", "repr"],
)
def test_a_shortened_value_is_kept_whole(tmp_path: Path, code: str, media_type: str, content: bytes) -> None:
    with WorkerDriver(interpreter("3.10"), tmp_path) as worker:
        worker.ready()
        answer = worker.cell(code)
        assert answer.truncated_return
        (item,) = answer.items
        assert (item.stream, item.media_type, item.complete) == ("value", media_type, True)
        assert item.content == content


def test_a_shortened_value_with_an_exact_equal_is_kept_as_json(worker: WorkerDriver) -> None:
    code = "[{'id': n, 'name': 'n\\u00e9' * 3, 'nested': [1.5, None, True, {'k': []}]} for n in range(2_000)]"
    (item,) = worker.cell(code).items
    assert (item.media_type, item.complete) == ("application/json", True)
    assert json.loads(item.content) == eval(code)
    for inexact in ("[float('nan')] * 9_999", "[2**60] * 9_999", "[(1,)] * 9_999", "['\\ud800'] * 9_999"):
        (item,) = worker.cell(inexact).items
        assert item.media_type == "text/plain", inexact


def test_what_is_kept_has_bounds(some_worker: WorkerDriver) -> None:
    (item,) = some_worker.cell(f"'x' * ({DEFAULT.artifact_bytes} + 1)").items
    assert (len(item.content), item.complete) == (DEFAULT.artifact_bytes, False)
    (item,) = some_worker.cell(f"'x' * {DEFAULT.artifact_bytes}").items
    assert (len(item.content), item.complete) == (DEFAULT.artifact_bytes, True)


@pytest.mark.parametrize("version", EXTREMES)
def test_a_container_that_is_too_long_is_kept_in_part(tmp_path: Path, version: str) -> None:
    # A bound that is reached before the time is up, on a busy machine too.
    with WorkerDriver(interpreter(version), tmp_path, arguments=[str(BOOT), "value_text_bytes=50000"]) as worker:
        worker.ready()
        for code in ("list(range(10**6))", "{str(n): [n] for n in range(10**5)}"):
            (item,) = worker.cell(code).items
            assert 45_000 < len(item.content) <= 50_000
            assert (item.media_type, item.complete) == ("text/plain", False)
            assert item.content[-12:-1] == b" more items"
        (item,) = worker.cell("[1] * 16_000").items
        assert (item.media_type, item.complete, len(item.content)) == ("application/json", True, 32_001)


def test_no_repr_is_asked_twice_for_what_is_kept(some_worker: WorkerDriver) -> None:
    answer = some_worker.cell(
        "asked = []\nclass A:\n    def __repr__(self):\n        asked.append(id(self))\n        return 'a' * 100\n"
        "many = [A() for _ in range(1_000)]\nmany"
    )
    (item,) = answer.items
    assert item.content.decode() == "[" + ", ".join(["a" * 100] * 1_000) + "]"
    assert some_worker.cell("[len(asked), len(set(asked))]").value == [1_000, 1_000]


def test_short_values_are_not_kept(some_worker: WorkerDriver) -> None:
    for code in ("1", "'x' * 100", "[1] * 100", "None", "Shows", "{'a': {1, 2}}"):
        assert some_worker.cell(code).items == []


def test_a_thread_of_an_earlier_run_takes_no_room_of_a_later_one(worker: WorkerDriver, tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "import threading\ngo, gone = threading.Event(), threading.Event()\n"
        "def work(show, value):\n    go.wait()\n    show(value)\n    gone.set()\n"
        "def start(*given): threading.Thread(target=work, args=given, daemon=True).start()"
    )
    worker.cell("import library\nlibrary.start(display, PNG)")
    late = worker.cell("library.go.set()\nlibrary.gone.wait(10)\ndisplay(PNG)")
    assert [item.content for item in late.items] == [PNG]
    assert late.stdout == f"{PNG!r}\n"
    # A new one is the run's own, and so is what a pool's old thread does for it.
    worker.cell("import concurrent.futures as c\npool = c.ThreadPoolExecutor(1)\npool.submit(int).result()")
    own = worker.cell(
        "library.gone.clear()\nlibrary.start(display, PNG)\nlibrary.gone.wait(10)\n"
        "pool.submit(display, PNG).result()\npool.submit(lambda: display(PNG)).result()"
    )
    assert len(own.items) == 3


def test_alarms_tear_no_item(worker: WorkerDriver) -> None:
    told = worker.cell(
        "import signal\nrung = 0\ndef ring(*_): raise TimeoutError\nsignal.signal(signal.SIGALRM, ring)\n"
        "big = PNG + bytes(400_000)\ndisplay(PNG)\nfor step in range(30):\n    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.0001 * (step + 1))\n        display(big)\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0)\n    except TimeoutError: rung += 1\nrung"
    )
    assert told.value > 0
    assert {item.content for item in told.items[1:]} == {PNG + bytes(400_000)}
    assert len(worker.cell("display(PNG)").items) == 1
