"""Frozen values that pass between the layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

PRESERVED = "preserved"
CLEARED = "cleared"

#: Stable codes of a run that did not succeed, beside those of `errors`.
EXCEPTION = "EXCEPTION"
SYSTEM_EXIT = "SYSTEM_EXIT"
TIMEOUT = "TIMEOUT"
CANCELLED = "CANCELLED"
WORKER_DIED = "WORKER_DIED"
UNFINISHED_WORK = "UNFINISHED_WORK"
MEMORY_LIMIT = "MEMORY_LIMIT"


@dataclass(frozen=True, slots=True)
class Cell:
    """What to run: source, or a file in its place with its `argv`. `timeout` in seconds."""

    code: str | None
    timeout: float
    path: str | None = None
    argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that can be a worker. `source` says which rule chose it (contract 4)."""

    path: str
    source: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """Bytes kept outside the conversation. `kind` is `output`, `value`, `image`, `display` or `result` (of a call).

    `created` is seconds since the epoch; `fault` says why it is not `complete`.
    """

    id: str
    name: str
    kind: str
    media_type: str
    size: int
    sha256: str
    created: float
    complete: bool
    run_id: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done to stop a run: which, how many seconds after the first, and how many processes it met."""

    name: str
    after: float
    processes: int


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """How a run ended. `state` describes the namespace afterwards, `state_reset` says that it was new before.

    Its output is not here but in the run's captures, where it can be read in pieces.
    """

    run_id: str
    session_id: str
    generation: int
    state_reset: bool
    success: bool
    elapsed_ms: int
    state: str
    return_value: str | None = None
    value: object = None
    has_value: bool = False
    error: str | None = None
    error_code: str | None = None
    truncated_return: bool = False
    truncated_error: bool = False
    tasks_cancelled: int = 0
    background_tasks: tuple[str, ...] = ()
    background_threads: tuple[str, ...] = ()
    exit_code: int | None = None
    lost: str | None = None  # how the namespace before this run was lost, when nobody asked for that
    artifacts: tuple[Artifact, ...] = ()  # in the order in which they were finished
    steps: tuple[Step, ...] = ()  # how it was stopped


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that asks something of the peers. `progress` takes a line for the run's live view."""

    run_id: str
    session_id: str
    project: str
    progress: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """What came of asking the client: its `result`, or an `error` (code, message, perhaps data) of it or of ours."""

    result: dict[str, object] | None
    error: dict[str, object] | None = None


PEER_KEY = "repl-trio/peer"
"""In the `_meta` of what the client is asked: the name of the peer that asks."""


class AskClient(Protocol):
    """The way to the client, for what peers want to know."""

    @property
    def offers(self) -> dict[str, object]:
        """What the client answers: its capabilities `elicitation` and `sampling`, if it has them."""

    async def ask(self, method: str, params: dict[str, object]) -> ClientAnswer:
        """Send one request and wait for its answer, within a bound of time. Cancelled here: the client is told.

        `params` is a JSON value of at most `client_request_bytes`.
        """


class CallTool(Protocol):
    """What a session asks of the peers of its project; it is handed one and knows nothing else of them."""

    async def perform(self, op: str, params: dict[str, object], origin: Origin) -> object:
        """The JSON value that answers one operation of a cell (`docs/wire.md` names them).

        Raises `BrokerError`. Cancelled here: the peer is told, and whether the call had an effect is not known.
        """
