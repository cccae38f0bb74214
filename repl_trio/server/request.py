"""One client request in flight."""

from __future__ import annotations

import trio

from ..session.run import Run
from ..session.session import Session
from ..wire.mcp import Call


class Request:
    """A call, the scope of its task and, once it has begun one, its run."""

    __slots__ = ("call", "cancelled", "run", "scope", "session")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.cancelled = False
        self.run: Run | None = None
        self.session: Session | None = None  # that a `python_run` looks at, or a close has begun to close
        self.scope = trio.CancelScope()

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
