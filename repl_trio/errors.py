"""The error tree. Each error says who did it, what state is left and what to do next, and carries a stable code.

What user code raises is an outcome of a run and never one of these.
"""

from __future__ import annotations


class ReplError(Exception):
    """Something the caller is told about. `code` is stable; `state` is what became of the namespace, None when the
    error does not concern one."""

    code = "INTERNAL_ERROR"

    def __init__(self, message: str, *, state: str | None = None, run_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.state = state
        self.run_id = run_id


# -- the request's fault ---------------------------------------------------------------------------------------


class RequestError(ReplError):
    """The caller asked for something that cannot be: nothing was started, nothing changed."""


class UnknownSession(RequestError):
    """No open session has this id."""

    code = "UNKNOWN_SESSION"


class SessionRequired(RequestError):
    """In the 2026-07-28 era a run names its session."""

    code = "SESSION_REQUIRED"


class UnknownRun(RequestError):
    """The session has no run with this id, or no longer keeps its result."""

    code = "UNKNOWN_RUN"


class UnknownArtifact(RequestError):
    """No open session keeps an artifact with this id."""

    code = "UNKNOWN_ARTIFACT"


class Busy(RequestError):
    """The session runs another cell."""

    code = "BUSY"


class StateChanged(RequestError):
    """`expected_generation` does not match: the code was not run."""

    code = "STATE_CHANGED"


class LimitReached(RequestError):
    """A bound of the server; the message names it, what it allows and what was asked."""

    code = "LIMIT_REACHED"


class ProjectNotFound(RequestError):
    """A session's project directory does not exist or cannot be entered."""

    code = "PROJECT_NOT_FOUND"


class InterpreterBroken(RequestError):
    """The session's interpreter cannot be a worker: missing, broken or too old."""

    code = "INTERPRETER_BROKEN"


class SessionClosing(RequestError):
    """The session or the whole server is going away."""

    code = "SESSION_CLOSING"


class RunCancelled(RequestError):
    """A run was cancelled before its cell began."""

    code = "CANCELLED"


# -- worker and guardian ---------------------------------------------------------------------------------------


class WorkerStartFailed(ReplError):
    """No worker came up: the cell did not run."""

    code = "WORKER_START_FAILED"


# -- broker ----------------------------------------------------------------------------------------------------


class BrokerError(ReplError):
    """A call to a peer, or a question about one, that has no result of the peer.

    `code` is one of UNKNOWN_SERVER, NOT_GRANTED, CONFIG_FAULT, CONNECT_FAILED, PEER_GONE, UNKNOWN_TOOL, BAD_ARGUMENTS,
    CALL_TIMEOUT, CALL_CANCELLED, CATALOGUE_FAULT, LIMIT_REACHED, JOURNAL_UNAVAILABLE, PROTOCOL_ERROR, UNSUPPORTED.
    `sent` tells whether the peer has been asked to act: "no", "done" (it answered) or "unknown". The message holds no
    value of an argument, a header or an environment variable.
    """

    def __init__(
        self, code: str, message: str, *, sent: str = "no", server: str | None = None, tool: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.sent = sent
        self.server = server
        self.tool = tool
