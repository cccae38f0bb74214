"""One client request in flight."""

from __future__ import annotations

import trio

from ..session.run import Run
from ..session.session import Session
from ..wire.mcp import Call

_ID = 40  # characters of an id in a report


class Request:
    """A call, the scope of its task and, once it has begun one, its run."""

    __slots__ = ("arrived", "call", "cancelled", "run", "scope", "session")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.arrived = trio.current_time()
        self.cancelled = False
        self.run: Run | None = None
        self.session: Session | None = None  # that a `python_run` looks at, or a close has begun to close
        self.scope = trio.CancelScope()

    @property
    def name(self) -> str:
        """The client's id of it, printable and short: one may be anything and as long as a line."""
        return ascii(self.call.id if isinstance(self.call.id, int) else self.call.id[:_ID])[: _ID + 2]

    @property
    def rests_on_run(self) -> bool:
        """Whether nothing but the end of its run is needed to answer it: then it needs no task of its own."""
        call = self.call
        return (
            self.run is not None
            and call.tool == "execute_python"
            and call.progress_token is None
            and call.arguments.get("wait") is None
        )

    def cancel(self) -> None:
        """The client gives the request up: exactly this one, and with an `execute_python` its run.

        The run is cancelled in this step and not when the request's task notices: the next line of the same read may be
        a cell that has to wait for this one's clean-up instead of being refused as a second one.
        """
        self.cancelled = True
        if self.run is not None and self.call.tool == "execute_python":
            self.run.cancel("its request was cancelled")
        self.scope.cancel()
