"""Which run may ask: what the front of `mcp` and its requests have in common."""

from __future__ import annotations

import _contextvars

from .isolation import isolated_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ..wire.frames import Frame
    from .link import Link

    class Asks(Protocol):
        """`rpc.Exchange`, which is loaded on first use and knows this module."""

        def ask(self, op: str, params: dict[str, Any]) -> Any: ...

        async def ask_async(self, op: str, params: dict[str, Any]) -> Any: ...

        def take(self, frame: Frame) -> None: ...

        def drop(self) -> None: ...


#: The run on whose behalf code runs. Threads and tasks have it if they have the context of a cell.
current: _contextvars.ContextVar[str | None] = _contextvars.ContextVar("repl_trio_run", default=None)


class Turn:
    """Which run may ask. `run_id` is None between runs and once a run is being stopped."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.run_id: str | None = None
        self.stubs: dict[str, Any] = {}  # of this run, by the name that the cell used
        self._exchanges: dict[str, Asks] = {}

    def begin(self, run_id: str, context: _contextvars.Context) -> None:
        """A run begins, whose code runs in this context."""
        self.run_id = run_id
        context.run(current.set, run_id)

    def end(self) -> None:
        """The run is over, or was interrupted: its code asks no more, and what waits for an answer is told so."""
        self.run_id = None
        self.stubs.clear()
        exchange = self._exchanges.get("")
        if exchange is not None:
            exchange.drop()

    def exchange(self) -> Asks:
        """What asks, made on first use; two threads may come at once."""
        if not self._exchanges:
            made = isolated_import("_repl_trio.worker.rpc").Exchange(self)
            self.link.answer = self._exchanges.setdefault("", made).take
        return self._exchanges[""]
