"""Figures, images and tables of real libraries, in a worker of the interpreter that runs the tests."""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repl_trio.limits import DEFAULT
from tests.process.worker_driver import Answer, WorkerDriver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")

#: Would open windows and browsers where there is a display: each leaves a mark when it is started.
VIEWERS = ("xdg-open", "display", "gm", "eog", "xv", "firefox", "chromium", "google-chrome", "www-browser", "open")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figures")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[WorkerDriver]:
    """One worker for all: the libraries are slow to load. No test leaves a figure open, or another one would see it."""
    programs = folder / "bin"
    programs.mkdir()
    for name in VIEWERS:
        (programs / name).write_text(f"#!/bin/sh\ntouch {folder}/opened\n")
        (programs / name).chmod(0o755)
    env = {"DISPLAY": ":99", "MPLBACKEND": "TkAgg", "PLOTLY_RENDERER": "browser", "PATH": f"{programs}:/usr/bin:/bin"}
    with WorkerDriver(sys.executable, folder, {**env, "MPLCONFIGDIR": str(folder / "mpl")}) as driver:
        driver.ready()
        answer = driver.cell("import matplotlib.pyplot as plt")
        assert answer.success, answer.error
        yield driver


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def names(answer: Answer) -> list[str]:
    for item in answer.items:
        assert (item.stream, item.media_type, item.complete) == ("display", "image/png", True)
        assert min(size_of(item.content)) > 30
    return [item.name for item in answer.items]


def test_a_figure_that_is_open_at_the_end_is_shown_and_closed(worker: WorkerDriver) -> None:
    answer = worker.cell("plt.figure(2); plt.plot([1, 2]); plt.title('two')\nplt.figure(1); plt.plot([3])")
    assert names(answer) == ["figure 1", "figure 2: two"]
    assert worker.cell("plt.get_fignums()").value == []
    failed = worker.cell("plt.plot([1])\n1/0")
    assert (names(failed), failed.error_type) == (["figure 1"], "ZeroDivisionError")
    assert worker.cell("plt.figure()\nNone").items == []
    assert worker.cell("plt.get_fignums()").value == []


def test_show_shows_what_is_open_and_closes_it(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "plt.plot([1]); plt.title('first'); plt.show()\nleft = plt.get_fignums()\n"
        "fig, ax = plt.subplots(); ax.plot([2]); ax.set_title('second'); fig.show(); plt.show(block=False)\n"
        "after = plt.get_fignums()\nax.plot([3, 4])\n[left, after]"
    )
    # The second is shown as it was at `fig.show()`, and changed at the end of the cell.
    assert names(answer) == ["figure 1: first", "figure 1: second", "figure 1: second"]
    assert answer.value == [[], [1]]
    assert "non-interactive" not in answer.stderr


def test_a_figure_is_shown_once(worker: WorkerDriver) -> None:
    trailing = worker.cell("fig, ax = plt.subplots(); ax.plot([1])\nfig")
    assert (names(trailing), trailing.return_value) == (["figure 1"], "<Figure size 640x480 with 1 Axes>")
    assert names(worker.cell("fig")) == ["figure 1"]
    assert names(worker.cell("fig, ax = plt.subplots(); ax.plot([1])\ndisplay(fig)")) == ["figure 1"]
    assert (
        names(worker.cell("fig, ax = plt.subplots(); ax.plot([1])\ndisplay(fig); plt.show(); fig")) == ["figure 1"] * 2
    )
    assert names(worker.cell("plt.plot([1])")) == ["figure 1"]
    assert names(worker.cell("await __import__('asyncio').sleep(0)\nplt.plot([1])")) == ["figure 1"]


def test_a_figure_that_cannot_be_drawn_is_a_note(worker: WorkerDriver) -> None:
    answer = worker.cell("plt.plot([1]); plt.title('$\\\\foo$')\nplt.figure(); plt.plot([2])")
    assert answer.success
    assert names(answer) == ["figure 2"]
    assert answer.stderr.startswith("<figure 1: $\\foo$ could not be drawn: ValueError: ")
    assert answer.stderr.count("\n") == 1


def test_figures_are_bounded_in_size_and_number(worker: WorkerDriver) -> None:
    answer = worker.cell("fig = plt.figure(figsize=(400, 400)); plt.plot([1, 2])")
    width, height = size_of(answer.items[0].content)
    assert width * height <= 17_000_000
    small = worker.cell("plt.figure(figsize=(2, 2), dpi=50); plt.plot([1, 2])")
    assert max(size_of(small.items[0].content)) < 110
    many = worker.cell(f"for n in range({DEFAULT.displays} + 3):\n    plt.figure(figsize=(1, 1)); plt.axis('off')")
    assert len(many.items) == DEFAULT.displays
    assert f"a run shows at most {DEFAULT.displays}" in many.stderr
    assert worker.cell("plt.get_fignums()").value == []


@pytest.mark.parametrize(
    "far",
    ["plt.text(45, 45, 'label')", "plt.text(0.5, 150, 'note')", "plt.title('x' * 10_000)"],
)
def test_a_text_far_outside_makes_no_image_that_nobody_can_look_at(worker: WorkerDriver, far: str) -> None:
    answer = worker.cell(f"plt.plot([0, 1], [0, 1]); plt.xlim(0, 1); plt.ylim(0, 1)\n{far}")
    assert answer.success, answer.error
    (item,) = answer.items
    width, height = size_of(item.content)
    assert max(width, height) <= DEFAULT.image_side
    assert width * height <= 16_000_000
    assert "could not be drawn" not in answer.stderr


def test_an_interrupted_run_closes_its_figures_unseen(worker: WorkerDriver) -> None:
    run = worker.start("plt.plot([1])\nprint('plotted', flush=True)\nwhile True: pass")
    worker.wait_output("plotted")
    answer = worker.interrupt_until_answer(run)
    assert (answer.success, answer.items) == (False, [])
    assert "<1 open matplotlib figures closed unseen: the run was interrupted>\n" in answer.stderr
    # An interrupt in the drawing at the end of a cell ends that run as well.
    run = worker.start(
        "from matplotlib.lines import Line2D\nclass Slow(Line2D):\n    def draw(self, renderer):\n"
        "        print('drawing', flush=True)\n        while True: pass\nplt.gca().add_line(Slow([0, 1], [0, 1]))"
    )
    worker.wait_output("drawing")
    answer = worker.interrupt_until_answer(run)
    assert (answer.success, answer.interrupted, answer.items) == (False, True, [])
    assert worker.cell("plt.get_fignums()").value == []


def test_a_backend_that_a_cell_chooses_is_its_own(worker: WorkerDriver, folder: Path) -> None:
    assert worker.cell("import matplotlib\nmatplotlib.get_backend().endswith('backend')").value
    chosen = worker.cell("matplotlib.use('svg')\nplt.plot([1])\nplt.savefig('x.svg')\nmatplotlib.get_backend()")
    assert "svg" in chosen.return_value
    assert names(chosen) == ["figure 1"]
    assert (folder / "x.svg").exists()
    with WorkerDriver(sys.executable, folder) as other:
        other.ready()
        code = "import os\nos.environ['MPLBACKEND'] = 'pdf'\nimport matplotlib\nmatplotlib.get_backend()"
        assert other.cell(code).return_value == "'pdf'"


def test_pil_images_are_shown_and_never_in_a_viewer(worker: WorkerDriver, folder: Path) -> None:
    answer = worker.cell("from PIL import Image\nimage = Image.new('RGB', (64, 48), 'red')\nimage.show()\nimage")
    assert [size_of(item.content) for item in answer.items] == [(64, 48)] * 2
    assert answer.return_value.startswith("<PIL.Image.Image image mode=RGB size=64x48")
    # A mode that PNG has not.
    cmyk = worker.cell("display(Image.new('CMYK', (64, 48)))")
    assert [item.media_type for item in cmyk.items] == ["image/jpeg"]
    assert not (folder / "opened").exists()


def test_plotly_figures_are_a_line_and_html_without_kaleido(worker: WorkerDriver, folder: Path) -> None:
    code = (
        "import plotly.graph_objects as go\nf = go.Figure([go.Scatter(y=[1]), go.Bar(y=[2])], layout_title_text='T')\n"
    )
    answer = worker.cell(f"{code}f.show()\nprint('shown')\nf")
    assert answer.stdout == "Figure(2 traces: scatter, bar; title 'T')\nshown\n"
    assert answer.return_value == "Figure(2 traces: scatter, bar; title 'T')"
    assert [item.media_type for item in answer.items] == ["text/html"] * 2
    assert b"cdn" in answer.items[0].content
    assert not (folder / "opened").exists()


def test_plotly_figures_are_images_with_kaleido(worker: WorkerDriver) -> None:
    fake = (
        "import importlib.machinery, sys, types\n"
        "kaleido = types.ModuleType('kaleido')\n"
        "kaleido.__spec__ = importlib.machinery.ModuleSpec('kaleido', None)\nsys.modules['kaleido'] = kaleido\n"
        "figure = go.Figure([go.Bar(y=[1])])\n"
    )
    png = "b'\\x89PNG\\r\\n\\x1a\\n drawn'"
    answer = worker.cell(f"{fake}go.Figure.to_image = lambda self, format: {png}\nfigure")
    assert [(item.media_type, item.content[-5:]) for item in answer.items] == [("image/png", b"drawn")]
    broken = worker.cell(
        "def to_image(self, format): raise RuntimeError('no chrome')\ngo.Figure.to_image = to_image\nfigure"
    )
    assert [item.media_type for item in broken.items] == ["text/html"]
    assert broken.return_value.endswith("<Figure could not be drawn: RuntimeError: no chrome>")
    worker.cell("del sys.modules['kaleido']")


def test_tables_are_useful_and_bounded(worker: WorkerDriver) -> None:
    worker.cell("import numpy as np, pandas as pd, sys")
    wide = worker.cell("pd.DataFrame({f'column_{n}': range(3) for n in range(12)})").return_value
    assert len(wide.splitlines()) == 4
    assert "..." not in wide
    frame = worker.cell("frame = pd.DataFrame(np.zeros((200_000, 500), dtype='int8'))\nframe")
    assert "[200000 rows x 500 columns]" in frame.return_value
    assert not frame.truncated_return
    assert "<" not in frame.return_value
    assert worker.cell("[frame, {'a': frame[0]}]").success
    unbounded = worker.cell("pd.options.display.max_rows = pd.options.display.max_columns = None\nframe")
    assert unbounded.truncated_return
    assert len(unbounded.return_value) <= DEFAULT.preview_bytes
    assert "Length: 200000" in worker.cell("frame[0]").return_value
    chosen = worker.cell("pd.options.display.max_rows = pd.options.display.max_columns = 4\nframe").return_value
    assert len(chosen.splitlines()) < 12
    assert worker.cell("pd.DataFrame").return_value == "<class 'pandas.DataFrame'>"
    assert "1e+06" not in worker.cell("pd.Series(range(3))").return_value


def test_arrays_are_summaries_and_print_options_count(worker: WorkerDriver) -> None:
    worker.cell("import numpy as np, sys")
    array = worker.cell("big = np.arange(10**7)\nbig")
    assert array.return_value.startswith("array([      0,       1,       2, ..., 9999997")
    assert worker.cell("np.set_printoptions(precision=2)\nnp.array([1 / 3])").return_value == "array([0.33])"
    assert worker.cell("[np.array([1 / 3])]").return_value == "[array([0.33])]"
    assert len(worker.cell("np.set_printoptions(threshold=sys.maxsize)\nbig").return_value) < 300


def test_polars_frames_are_their_own_table(worker: WorkerDriver) -> None:
    answer = worker.cell("import polars as pl\npl.DataFrame({'a': range(10**6)})")
    assert answer.return_value.startswith("shape: (1_000_000, 1)\n┌")
    assert worker.cell("{'k': pl.Series([1, 2])}").return_value.startswith("{'k': shape: (2,)")


def test_nothing_is_loaded_for_those_who_have_no_figures(folder: Path) -> None:
    with WorkerDriver(sys.executable, folder) as worker:
        worker.ready()
        worker.cell("display('text'); print([1])")
        loaded = worker.cell("import sys\nsorted(sys.modules)").return_value
        for name in ("matplotlib", "PIL", "plotly", "numpy", "_repl_trio.worker.libraries", "_repl_trio.worker.whole"):
            assert f"'{name}'" not in loaded


def test_signals_are_open_while_a_figure_is_drawn(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import signal\nfrom matplotlib.lines import Line2D\nclass Seen(Line2D):\n    def draw(self, renderer):\n"
        "        print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))\n        super().draw(renderer)\n"
        "figure, axes = plt.subplots()\nline = axes.add_line(Seen([0, 1], [0, 1]))"
    )
    assert names(answer) == ["figure 1"]
    assert set(answer.stdout.splitlines()) == {"[]"}


def test_a_figure_in_the_place_of_a_closed_one_is_shown(worker: WorkerDriver) -> None:
    answer = worker.cell(
        "import gc\nfrom matplotlib.figure import Figure\ndef draw(make):\n    figure = plt.figure(FigureClass=make)\n"
        "    figure.add_subplot().plot([1, 2])\n    return figure\n"
        "gone = draw(Figure)\ndisplay(gone)\nplace = id(gone)\nplt.close(gone)\ndel gone\ngc.collect()\n"
        "bare = [Figure.__new__(Figure) for _ in range(100_000)]\n"
        "found = [figure for figure in bare if id(figure) == place]\ndel bare\n"
        "def again(*given, **named):\n    found[0].__init__(*given, **named)\n    return found[0]\n"
        "draw(again)\nlen(found)"
    )
    assert answer.value == 1
    assert names(answer) == ["figure 1", "figure 1"]
