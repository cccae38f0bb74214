"""Plotly's figures and PIL's viewer. Nothing is imported: whoever has a figure or an image has loaded its library.

No browser and no window is ever opened: `fig.show()` and `image.show()` show like `display`. Everything here runs below
the gate.
"""

from __future__ import annotations

import sys

from .isolation import isolated_import
from .preview import one_line, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .display import Display

#: Kinds of traces that a text names, and characters of a title.
KINDS = 8
TITLE = 100


def adopt_plotly(display: Display) -> Callable[[Any], None]:
    """What to do with plotly's freshly imported module of renderers: ours becomes the default."""

    def act(module: Any) -> None:
        class Renderer(module.ExternalRenderer):  # type: ignore[misc]  # a class of the user's library
            """Shows a figure as a result of the cell."""

            def render(self, fig_dict: dict[str, Any]) -> None:
                figure = sys.modules["plotly.graph_objects"].Figure(fig_dict, skip_invalid=True)
                isolated_import("_repl_trio.worker.rich").show(display, (figure,))

        module.renderers["repl"] = Renderer()
        module.renderers.default = "repl"

    return act


def adopt_pil(display: Display) -> Callable[[Any], None]:
    """What to do with PIL's freshly imported module of viewers: ours comes first."""

    def act(module: Any) -> None:
        class Viewer(module.Viewer):  # type: ignore[misc]  # a class of the user's library
            """Shows an image as a result of the cell."""

            def show(self, image: Any, **_options: Any) -> int:
                isolated_import("_repl_trio.worker.rich").show(display, (image,))
                return 1

        module.register(Viewer(), 0)

    return act


def is_plot(value: object) -> bool:
    """Whether a value is a plotly figure, past whatever it says of itself."""
    base = getattr(sys.modules.get("plotly.basedatatypes"), "BaseFigure", None)
    return type(base) is type and issubclass(type(value), base)


def forms_of(figure: Any, notes: list[str]) -> tuple[str, bytes | None, str]:
    """(the figure in a line, its PNG if kaleido is there and works, else its HTML, the media type of that)."""
    text = _summary(figure)
    content = _drawn(figure, notes)
    if content is not None:
        return text, content, "image/png"
    return text, printable(figure.to_html(include_plotlyjs="cdn")).encode(), "text/html"


def _summary(figure: Any) -> str:
    """Such as `Figure(2 traces: scatter, bar; title 'Sales')`."""
    kinds = [str(trace.type) for trace in figure.data]
    named = ", ".join(kinds[:KINDS]) + (", ..." if len(kinds) > KINDS else "")
    title = getattr(figure.layout.title, "text", None)
    told = f"; title {title[:TITLE]!r}" if isinstance(title, str) and title else ""
    count = f"{len(kinds)} trace{'' if len(kinds) == 1 else 's'}"
    return f"Figure({count}{': ' if named else ''}{named}{told})"


def _drawn(figure: Any, notes: list[str]) -> bytes | None:
    from importlib.util import find_spec

    if find_spec("kaleido") is None:
        return None
    try:
        return bytes(figure.to_image(format="png"))
    except Exception as error:  # noqa: BLE001 - kaleido needs a browser and may fail in many ways: HTML serves as well
        notes.append(f"<Figure could not be drawn: {one_line(error)}>")
        return None
