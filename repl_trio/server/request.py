"""One client request in flight."""

from __future__ import annotations

import trio

from ..session.run import Run
from ..wire.mcp import Call


class Request:
    """A call with the scope of its task and, once it has begun one, its run."""

    __slots__ = ("call", "run", "scope")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.run: Run | None = None
        self.scope = trio.CancelScope()

    def cancel(self) -> None:
        """The client gives the request up: exactly this one, and with an `execute_python` its run.

        The run is cancelled in this step and not when the request's task notices: the next line of the same read may be
        a cell that has to wait for this one's clean-up instead of being refused as a second one.
        """
        if self.run is not None and self.call.tool == "execute_python":
            self.run.cancel("its request was cancelled")
        self.scope.cancel()
