"""The warning about a coroutine that was never awaited, with a place that means something to the user.

Python names the place where the coroutine ceases to be. One that hangs on the traceback of a failed cell does so in the
worker's own code.
"""

from __future__ import annotations

import sys

from . import origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CoroutineType
    from typing import Any


def adopt(warnings: Any) -> None:
    """Let the interpreter warn through `warnings` as ever, but name what the coroutine is where no cell is at work."""
    usual = warnings._warn_unawaited_coroutine

    def warn(coroutine: CoroutineType[Any, Any, Any]) -> None:
        frame = sys._getframe(1)
        # In debug mode asyncio keeps where the coroutine was made, and the usual text tells.
        if coroutine.cr_origin is not None:
            usual(coroutine)
            return
        text = f"coroutine '{coroutine.__qualname__}' was never awaited"
        # With a source given, `warnings` imports tracemalloc to say that it could have told more.
        source = coroutine if "tracemalloc" in sys.modules else None
        if origin.runs_cell_code(frame):
            warnings.warn(text, RuntimeWarning, stacklevel=2, source=source)
            return
        code = coroutine.cr_code
        warnings.warn_explicit(text, RuntimeWarning, code.co_filename, code.co_firstlineno, source=source)

    warnings._warn_unawaited_coroutine = warn
