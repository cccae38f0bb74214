"""Matplotlib's figures as images. Nothing is imported: whoever has a figure has loaded matplotlib.

`backend` makes `plt.show()` end here; what is still open at the end of a cell is shown and closed then. Rendering is
user code: everything here runs below the gate.
"""

from __future__ import annotations

import _weakref
import io
import sys

from ..limits import DEFAULT
from .isolation import isolated_import
from .preview import one_line, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .display import Display

#: The name under which matplotlib finds our backend.
BACKEND = "module://_repl_trio.worker.backend"
#: Pixels of one image: a figure of more is drawn with fewer dots per inch.
PIXELS = 16_000_000
#: Pixels of one side: clients show no more.
SIDE = DEFAULT.image_side
#: Inches around what a figure shows, as matplotlib's own tight box has.
_MARGIN = 0.1


class _Current:
    """Whoever shows the figures of this generation: matplotlib calls our backend with nothing of ours."""

    display: Display | None = None


def _loaded(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def adopt(display: Display, environment: str | None) -> Callable[[Any], None]:
    """What to do with the freshly imported `matplotlib`: our backend, unless a cell has chosen one.

    `environment`: MPLBACKEND as the worker was given it; another one is a cell's choice.
    """

    def act(matplotlib: Any) -> None:
        import os

        _Current.display = display
        if os.environ.get("MPLBACKEND") == environment:
            matplotlib.use(BACKEND)

    return act


def is_figure(value: object) -> bool:
    """Whether a value is a matplotlib figure, past whatever it says of itself."""
    figure = _loaded("matplotlib.figure", "Figure")
    return type(figure) is type and issubclass(type(value), figure)


def label_of(figure: Any) -> str:
    """A figure's name: its number in pyplot, its label or title."""
    number = getattr(figure, "number", None)
    name = f"figure {number}" if type(number) is int else "figure"
    suptitle = getattr(figure, "_suptitle", None)
    title = figure.get_label() or (suptitle.get_text() if suptitle is not None else "")
    if not title:
        title = next((axes.get_title() for axes in figure.axes if axes.get_title()), "")
    return f"{name}: {title}" if isinstance(title, str) and title else name


def content_of(figure: Any, display: Display, notes: list[str]) -> bytes | None:
    """The PNG of a figure; None when it is empty, or cannot be drawn, which is noted."""
    if not (figure.axes or figure.lines or figure.patches or figure.texts or figure.images):
        return None
    try:
        content = _drawn(figure)
    except Exception as error:  # noqa: BLE001 - whatever drawing raises is the figure's fault, and is said
        notes.append(f"<{label_of(figure)} could not be drawn: {one_line(error)}>")
        return None
    # Weakly: the next figure may get the place of a closed one in memory.
    display.figures[id(figure)] = _weakref.ref(figure), hash(content)
    return content


def _drawn(figure: Any) -> bytes:
    width, height = figure.get_size_inches()
    dpi = float(figure.dpi)
    most = (PIXELS / max(width * height, 1e-6)) ** 0.5
    if dpi > most:
        dpi = most
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches=_tight_box(figure, dpi))
    return buffer.getvalue()


def _tight_box(figure: Any, dpi: float) -> Any:
    """The box around all that a figure shows; None, for the figure's own, where that would make too large an image.

    A text with a wrong coordinate is enough: drawn tight, it costs seconds and gigabytes.
    """
    before = figure.dpi
    try:
        # What is laid out with the figure's own could need gigabytes already.
        figure.dpi = dpi
        figure.draw_without_rendering()
        box = figure.get_tightbbox(figure._get_renderer()).padded(_MARGIN)
        width, height = float(box.width) * dpi, float(box.height) * dpi
    except Exception:  # noqa: BLE001 - of an artist of the user's, or an old matplotlib: drawing will say so, if it is one
        return None
    finally:
        figure.dpi = before
    # A box that is no number compares false with everything.
    return box if width * height <= PIXELS and max(width, height) <= SIDE else None


def _windows() -> list[Any]:
    """The open figures of pyplot, in number order; none where the user has chosen windows for them."""
    gcf = _loaded("matplotlib._pylab_helpers", "Gcf")
    open_now = sorted(gcf.figs.values(), key=lambda window: window.num) if gcf is not None else []
    return [window for window in open_now if getattr(window.canvas, "required_interactive_framework", None) is None]


def _close(window: Any) -> None:
    _loaded("matplotlib._pylab_helpers", "Gcf").destroy(window.num)


def retire(value: object) -> None:
    """Close a figure that has been shown as a trailing value."""
    for window in _windows() if is_figure(value) else ():
        if window.canvas.figure is value:
            _close(window)


def show(figure: Any) -> None:
    """`figure.show()`: show one figure here and leave it open."""
    if _Current.display is not None:
        _show(_Current.display, figure)


def show_open() -> None:
    """`plt.show()`: show the open figures here and close them."""
    if _Current.display is not None:
        flush(_Current.display)


def flush(display: Display) -> None:
    """Show the open figures and close them, also those behind one that could not be shown."""
    windows = _windows()
    try:
        for window in windows:
            _show(display, window.canvas.figure)
            _close(window)
    finally:
        for window in windows:
            _close(window)


def _show(display: Display, figure: Any) -> None:
    rich = isolated_import("_repl_trio.worker.rich")
    notes: list[str] = []
    shown, looks = display.figures.get(id(figure), (None, 0))
    before = looks if shown is not None and shown() is figure else None
    if not display.room():
        rich.no_room(display, notes)
    elif display.here():
        content = content_of(figure, display, notes)
        if content is not None and hash(content) != before:
            rich.send(display, rich.Item(label_of(figure), "image/png", content), notes)
    for line in notes:
        print(printable(line), file=sys.stderr)


def discard() -> None:
    """Close the open figures unseen, and say so."""
    windows = _windows()
    for window in windows:
        _close(window)
    print(f"<{len(windows)} open matplotlib figures closed unseen: the run was interrupted>", file=sys.stderr)


def are_open() -> bool:
    """Whether pyplot has open figures. Runs nothing."""
    return bool(getattr(_loaded("matplotlib._pylab_helpers", "Gcf"), "figs", None))
