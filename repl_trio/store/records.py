"""What the journal remembers of each call: who asked for it, where it went, how it ended. No arguments, no results."""

from __future__ import annotations

from dataclasses import asdict, dataclass

#: On its way: the record is written before the call.
DISPATCHED = "dispatched"
#: The peer answered.
COMPLETED = "completed"
#: The peer answered that its tool failed.
TOOL_ERROR = "tool_error"
#: It was sent, and no answer came: whether the peer has acted nobody knows.
OUTCOME_UNKNOWN = "outcome_unknown"

#: What a record may become. A late answer settles what was unknown; what is known stays.
NEXT: dict[str, frozenset[str]] = {
    DISPATCHED: frozenset({COMPLETED, TOOL_ERROR, OUTCOME_UNKNOWN}),
    OUTCOME_UNKNOWN: frozenset({COMPLETED, TOOL_ERROR}),
    COMPLETED: frozenset(),
    TOOL_ERROR: frozenset(),
}


class Unavailable(Exception):
    """The file cannot be the journal. The message says why and what to do, for the user."""


class Moved(Unavailable):
    """What lies at the journal's place is not what the last write left there."""


@dataclass(frozen=True, slots=True)
class Record:
    """One call. `started` and `finished` are seconds since the epoch; `finished` is None until it has ended."""

    id: int
    run_id: str
    session_id: str
    project: str
    server: str
    tool: str
    started: float
    finished: float | None
    status: str

    def as_json(self) -> dict[str, object]:
        """What `mcp.journal()` shows of it."""
        return asdict(self)
