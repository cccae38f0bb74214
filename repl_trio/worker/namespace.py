"""The names that every cell finds in its namespace. Set again before each cell, so shadowing one lasts one cell.

To add one: write a light front in a module of its own (its docstring is what `help()` shows an agent), the work in
another that is loaded on first use, and name the front in `Helpers`.
"""

from __future__ import annotations

from . import origin, peers
from .checkpoint import Checkpoint, fronts
from .inspection import described
from .sh import ShError, ShResult, ShTimeout, ash, sh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .history import History
    from .turn import Turn

# A task made of nothing but `ash(...)` or `mcp.acall(...)`, and a thread that runs nothing but `sh(...)`, are a cell's
# own work all the same: they end with the cell.
origin.executed_files.add(ash.__code__.co_filename)
origin.executed_files.add(peers.Peers.acall.__code__.co_filename)


class Helpers:
    """The helpers of one generation. `display` is one that is ready; `turn` tells `mcp` which run may ask."""

    def __init__(self, history: History, namespace: dict[str, object], display: Any, turn: Turn) -> None:
        def repl_history() -> list[tuple[str, str]]:
            """The cells run so far, oldest first, this one last: a list of (run_id, source).

            The newest 64, at most 1 MiB of source together.
            """
            return history.sources()

        def repl_source(run_id: str | None = None) -> str:
            """The source of a cell that was run before: of `run_id` (see `repl_history()`), or of the previous cell.

            Raises LookupError when there is none, or when it is so old that it was forgotten.
            """
            return history.source(run_id)

        def repl_namespace() -> dict[str, str]:
            """What you have defined in this namespace, oldest first: a dict of name to type and size.

                {'json': 'module', 'rows': 'list, 1,204 items', 'load': 'function (path)', 'df': 'DataFrame, 9 x 2'}

            Sizes are told of exact builtins, NumPy arrays, pandas and Polars frames. Nothing of yours is run for it. A
            name that was set again keeps its place. Helpers and names like `__name__` are left out.
            """
            return described(namespace, self.names)

        checkpoint, restore = fronts(namespace, lambda: self.names)
        named: tuple[Any, ...] = (sh, ash, ShResult, ShError, ShTimeout, display, checkpoint, restore)
        named += (repl_history, repl_source, repl_namespace)
        for front in (*named, Checkpoint):
            # Where a cell finds them, so tracebacks and help() show no module of ours, and pickle looks there.
            front.__module__ = "__main__"
            for member in vars(front).values():
                if type(member) is type(sh):
                    member.__module__ = "__main__"
        self._fronts: dict[str, object] = {front.__name__: front for front in named}
        self._fronts["mcp"] = peers.Peers(turn)
        self.names = frozenset(self._fronts)

    def inject(self, namespace: dict[str, object]) -> None:
        """Set the helpers' names in a namespace, over whatever an earlier cell put there."""
        namespace.update(self._fronts)
