"""The names that every cell finds in its namespace. Set again before each cell, so shadowing one lasts one cell.

To add one: write a light front in a module of its own (its docstring is what `help()` shows an agent), the work in
another that is loaded on first use, and name the front in `Helpers`.
"""

from __future__ import annotations

from .sh import ShError, ShResult, ShTimeout, sh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .history import History


class Helpers:
    """The helpers of one generation."""

    def __init__(self, history: History) -> None:
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

        named = (sh, ShResult, ShError, ShTimeout, repl_history, repl_source)
        for front in named:
            # Where a cell finds them, so tracebacks and help() show no module of ours, and pickle looks there.
            front.__module__ = "__main__"
        self._fronts: dict[str, object] = {front.__name__: front for front in named}
        self.names = frozenset(self._fronts)

    def inject(self, namespace: dict[str, object]) -> None:
        """Set the helpers' names in a namespace, over whatever an earlier cell put there."""
        namespace.update(self._fronts)
