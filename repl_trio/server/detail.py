"""What `python_health` adds with `detail`: requests, root guardian, threads and the live nursery tree."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from ..limits import Limits
from ..process.pipes import PipeWriter
from ..session import standing
from ..session.sessions import Sessions
from ..session.tree import Node, nodes, shorten
from ..wire.jsonrpc import Params, RequestId
from .asking import Asking
from .request import Request
from .sizes import cost, within

_BELOW = 40  # bytes of JSON for " [+123 below]", in both forms: known only when it is decided who stays


class Detail:
    """Looks at one server. `requests` are the unanswered ones, oldest first, and `writer` is the client's pipe;
    `asking` has what the client itself has not answered.
    """

    def __init__(
        self,
        sessions: Sessions,
        requests: Mapping[RequestId, Request],
        writer: PipeWriter,
        limits: Limits,
        asking: Asking | None = None,
    ) -> None:
        self._sessions = sessions
        self._requests = requests
        self._writer = writer
        self._limits = limits
        self._asking = asking

    def report(self, room: int) -> tuple[Params, list[str]]:
        """Fields for structuredContent and lines of text, both together within `room` and `detail_bytes` of JSON."""
        room = min(room, self._limits.detail_bytes)
        requests = [_described(request) for request in self._requests.values()]
        shown = within(requests, room // 8)
        asked = within(self._asking.open() if self._asking is not None else [], room // 8)
        root = standing.of_root(self._sessions.watch)
        report: Params = {
            "root": root,
            "requests": shown,
            "requests_total": len(requests),
            "asked": asked,
            "unread_bytes": self._writer.unread,
            "threads": standing.threads(),
        }
        lines = standing.lines(self._sessions.watch)
        lines.append(f"unanswered requests: {len(requests)}, bytes that the client has not read: {self._writer.unread}")
        lines += [_line(request) for request in shown]
        lines += [f"{one['server']} waits for the client: {one['method']} for {one['age_s']} s" for one in asked]
        tree = nodes()
        kept = shorten(tree, room - cost(report) - cost("\n".join(lines)) - _BELOW, _cost)
        report |= {"tasks": [node.fields() for node in kept], "tasks_total": len(tree)}
        return report, [*lines, f"tasks: {len(tree)}", *(node.line() for node in kept)]


def _cost(node: Node) -> int:
    return cost(node.fields()) + cost(node.line()) + _BELOW


def _described(request: Request) -> Params:
    described: Params = {
        "id": request.name,
        "tool": request.call.tool,
        "age_s": round(trio.current_time() - request.arrived, 3),
    }
    if request.run is not None:
        described["run_id"] = request.run.id
    if request.cancelled:
        described["cancelled"] = True
    return described


def _line(request: Params) -> str:
    run = f" for run {request['run_id']}" if "run_id" in request else ""
    cancelled = ", cancelled" if "cancelled" in request else ""
    return f"request {request['id']} {request['tool']}{run}: unanswered for {request['age_s']} s{cancelled}"
