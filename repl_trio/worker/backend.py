"""The backend that matplotlib gets in a worker: draws with Agg, opens no window; `figures` shows what is to be seen.

Loaded by matplotlib itself, by name, when pyplot needs a backend.
"""

from __future__ import annotations

from . import figures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# By `__import__`: it is the user's matplotlib that loads this file, and no dependency of ours.
_bases: Any = __import__("matplotlib.backend_bases", fromlist=("*",))
_agg: Any = __import__("matplotlib.backends.backend_agg", fromlist=("*",))


class _Window(_bases.FigureManagerBase):  # type: ignore[misc]  # a class of the user's library
    """Stands for the window that there is not."""

    def show(self) -> None:
        """`figure.show()`."""
        figures.show(self.canvas.figure)


class FigureCanvas(_agg.FigureCanvasAgg):  # type: ignore[misc]  # a class of the user's library
    """Agg's canvas with our window. Pyplot makes its figures from it."""

    manager_class = _Window


# Before 3.6 pyplot took it from here.
FigureManager = _Window


def show(*_arguments: object, block: bool | None = None) -> None:
    """`plt.show()`: show what is open and close it. With `block=False` that is left to the end of the cell."""
    if block is not False:
        figures.show_open()
