"""Texts of library objects whose own repr has no bound, or would leave out most of what fits.

A function has the name of its class in `preview.LIBRARY_CLASSES`. Everything here runs below the gate and may raise:
the object's own repr is taken then. Loaded when the first such object is shown.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Elements of an array, and rows and columns of a frame, that are formatted at most, whatever its options ask for.
ELEMENTS = 5_000
ROWS = 200
COLUMNS = 100
#: Columns of a frame whose options leave it to the width of a terminal, and the width of its lines.
FITTED_COLUMNS = 30
WIDTH = 160
#: The width of a line that pandas takes for want of an option.
PANDAS_WIDTH = 80
CELL_CHARACTERS = 1_000


def ndarray(value: Any) -> str:
    """An array's repr; a summary when the print options ask for more elements than a preview holds."""
    numpy: Any = sys.modules["numpy"]
    threshold = numpy.get_printoptions()["threshold"]
    if value.size <= ELEMENTS or threshold <= ELEMENTS:
        return repr(value)
    text = numpy.array2string(value, threshold=ELEMENTS, separator=", ", prefix="array(")
    return f"array({text}, shape={value.shape}, dtype={value.dtype})"


def DataFrame(value: Any) -> str:
    """A frame as its options say, but no more rows and columns than a preview holds.

    By itself pandas fits a frame into a terminal of 80 columns, and leaves most of the frame's own out.
    """
    option = sys.modules["pandas"].get_option
    if option("display.large_repr") != "truncate":
        return repr(value)
    columns = option("display.max_columns")
    width = option("display.width")
    rows, fewer = _rows(option)
    return str(
        value.to_string(
            max_rows=rows,
            min_rows=fewer,
            max_cols=FITTED_COLUMNS if columns == 0 else _at_most(columns, COLUMNS),
            max_colwidth=_at_most(option("display.max_colwidth"), CELL_CHARACTERS),
            line_width=(WIDTH if width == PANDAS_WIDTH else width) if option("display.expand_frame_repr") else None,
            show_dimensions=option("display.show_dimensions"),
        )
    )


def _at_most(given: int | None, most: int) -> int:
    """An option's number; None and 0 stand for no bound there."""
    return most if not given or given > most else given


def _rows(option: Any) -> tuple[int, int | None]:
    """(rows that are shown at most, rows that are shown of a longer frame)."""
    asked = option("display.max_rows")
    rows = _at_most(asked, ROWS)
    return rows, _at_most(option("display.min_rows"), ROWS) if rows == asked else rows


def Series(value: Any) -> str:
    """A series as its options say, but no more rows than a preview holds."""
    option = sys.modules["pandas"].get_option
    rows, fewer = _rows(option)
    if rows == option("display.max_rows"):
        return repr(value)
    return str(
        value.to_string(
            max_rows=rows,
            min_rows=fewer,
            name=True,
            dtype=True,
            length=option("display.show_dimensions"),
        )
    )
