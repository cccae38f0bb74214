"""A worker whose `rpc` frames are answered by the test."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.process.worker_driver import BOUND, Answer, WorkerDriver

Frame = dict[str, Any]
CAT: Frame = {
    "name": "read-file",
    "description": "Read a file.\nMore words.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Which file"},
            "max-lines": {"type": ["integer", "null"], "default": 10},
            "class": {"$ref": "#/$defs/kind"},
        },
        "required": ["path"],
        "$defs": {"kind": {"enum": ["text", "binary"]}},
    },
}
RECORD = {
    "id": 1,
    "run_id": "r1",
    "server": "files",
    "tool": "t",
    "started": 1_000.0,
    "finished": 1_000.25,
    "status": "completed",
}
STATES = {
    "servers": [
        {"name": "files", "state": "ready", "tools": 3, "reason": None},
        {"name": "git-hub", "state": "idle", "tools": None, "reason": None},
        {"name": "bad", "state": "fault", "tools": None, "reason": "env: FOO is not set\nand more"},
    ],
    "note": None,
}


def text(words: str, **more: Any) -> Frame:
    """An envelope with one block of text."""
    return {"content": [{"type": "text", "text": words}], **more}


def refusal(code: str, message: str, sent: str = "no", **more: Any) -> Frame:
    """The error of an `rpc_result`."""
    return {"code": code, "message": message, "sent": sent, "server": None, "tool": None, "artifact": None, **more}


class RpcDriver(WorkerDriver):
    """Answers each `rpc` at once by `reply` (frame -> answer, error, or None for none yet); keeps what was asked."""

    def __init__(self, python: str, cwd: Path) -> None:
        super().__init__(python, cwd)
        self.asked: list[Frame] = []
        self.cancelled: list[int] = []
        self.reply: Callable[[Frame], object] = echo

    def __enter__(self) -> RpcDriver:
        return self

    def frame(self) -> Frame:
        """The next frame that is no `rpc` or `rpc_cancel`."""
        while (frame := super().frame())["frame"] in ("rpc", "rpc_cancel"):
            self._take_rpc(frame)
        return frame

    def answer_rpc(self, number: int, result: object, error: Frame | None = None) -> None:
        """Send an `rpc_result`."""
        told = None if error is not None else json.dumps(result)
        self.send("rpc_result", id=number, result=told, error=error)

    def wait_asked(self, count: int) -> None:
        """Return when this many `rpc` frames have come."""
        deadline = time.monotonic() + BOUND
        while len(self.asked) < count:
            assert time.monotonic() < deadline
            self.wait_rpc()

    @property
    def has_result(self) -> bool:
        """Whether the next frame that is no `rpc` has come."""
        return bool(self._frames)

    def let_go(self, seconds: float) -> None:
        """Take what comes for this long, or until a frame has come that is no `rpc`."""
        deadline = time.monotonic() + seconds
        while not self._frames and (left := deadline - time.monotonic()) > 0:
            if select.select([self._up, self._out, self._err, self._exit], [], [], left)[0]:
                self._wait(BOUND)
            while self._frames and self._frames[0]["frame"] in ("rpc", "rpc_cancel"):
                self._take_rpc(self._frames.pop(0))

    def signal(self, number: int) -> None:
        """Send the worker a signal."""
        os.kill(self.pid, number)

    def wait_rpc(self) -> None:
        """Take the next frame, which must be one of the RPC."""
        frame = super().frame()
        assert frame["frame"] in ("rpc", "rpc_cancel"), frame
        self._take_rpc(frame)

    def _take_rpc(self, frame: Frame) -> None:
        if frame["frame"] == "rpc_cancel":
            self.cancelled.append(frame["id"])
            return
        self.asked.append(frame)
        answer = self.reply(frame)
        if isinstance(answer, dict) and answer.keys() >= {"code", "sent"}:
            self.answer_rpc(frame["id"], None, answer)
        elif answer is not None:
            self.answer_rpc(frame["id"], answer)


def value(answer: Answer) -> Any:
    """The value of a cell that succeeded."""
    assert answer.success, answer.error
    return answer.value


def echo(frame: Frame) -> object:
    """A broker with two servers, one tool that says its arguments, and no thoughts of its own."""
    op, params = frame["op"], frame["params"]
    if op == "call":
        return text(json.dumps(params["arguments"]), structuredContent=params["arguments"])
    answers: dict[str, object] = {
        "servers": STATES,
        "refresh": STATES,
        "tools": {"tools": [CAT, {"name": "2nd", "inputSchema": {}}], "invalid": ["tool 3 has no name"], "note": None},
        "help": "files: three tools",
        "search": {
            "matches": [{"server": "files", "tool": "read-file", "line": "read-file(path: str) - Read a file."}],
            "note": "not searched: git-hub",
        },
        "explain": {"server": "files", "state": "ready", "known": []},
        "journal": [RECORD],
        "resources": {"resources": [{"uri": "a:b", "name": "B"}], "templates": [{"uriTemplate": "a:{x}"}]},
        "read_resource": {"contents": [{"uri": "a:b", "text": "inside"}]},
        "prompts": [
            {
                "name": "greet",
                "description": "Say hello",
                "arguments": [{"name": "name", "required": True}, {"name": "x"}],
            }
        ],
        "get_prompt": {"messages": [{"role": "user", "content": {"type": "text", "text": "hello"}}]},
    }
    return answers[op]
