"""The tools of a fixture peer. Each takes its call and returns a whole result, None for no answer at all."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Result = dict[str, Any]
LINK = "iVBORw0KGgo="


class Failure(Exception):
    """An answer that is a JSON-RPC error."""

    def __init__(self, code: int, message: str, detail: object = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({} if detail is None else {"data": detail})


class Call:
    """One `tools/call` that runs."""

    def __init__(self, peer: Any, number: object, params: dict[str, Any]) -> None:
        self.peer = peer
        self.number = number
        self.params = params
        self.arguments: dict[str, Any] = params.get("arguments") or {}
        self.cancelled = threading.Event()
        self.insists = False  # answers although it was cancelled

    def progress(self, step: float, total: float | None, message: str) -> None:
        token = (self.params.get("_meta") or {}).get("progressToken")
        if token is not None:
            told = {"progressToken": token, "progress": step, "message": message}
            self.peer.notify("notifications/progress", told | ({} if total is None else {"total": total}))


class Tool:
    """A definition and what it does."""

    def __init__(self, act: Callable[[Call], Result | None], properties: Result, required: list[str]) -> None:
        self.name = act.__name__.removesuffix("_")
        self.act = act
        self.schema = {"type": "object", "properties": properties, "required": required}

    def definition(self) -> Result:
        return {"name": self.name, "description": self.act.__doc__ or "", "inputSchema": self.schema}


TOOLS: dict[str, Tool] = {}


def tool(*required: str, **properties: str) -> Callable[[Callable[[Call], Result | None]], Tool]:
    """Register a tool; `properties` are name -> JSON type."""

    def register(act: Callable[[Call], Result | None]) -> Tool:
        made = Tool(act, {name: {"type": kind} for name, kind in properties.items()}, list(required))
        TOOLS[made.name] = made
        return made

    return register


def text(words: str) -> Result:
    return {"content": [{"type": "text", "text": words}]}


@tool("text", text="string")
def echo(call: Call) -> Result:
    """Say the text again."""
    return text(call.arguments["text"])


@tool()
def blocks(call: Call) -> Result:
    """Every kind of block, one of them unknown, and fields beyond the protocol."""
    resource = {"uri": "test://blob", "mimeType": "application/octet-stream", "blob": "AAEC", "x": None}
    content = [
        {"type": "text", "text": "plain", "annotations": {"audience": ["user"], "priority": 0.5}, "later": [1]},
        {"type": "image", "data": LINK, "mimeType": "image/png"},
        {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "test://link", "name": "link", "size": 9007199254740993},
        {"type": "resource", "resource": resource},
        {"type": "x-new", "a": 1},
    ]
    return {"content": content, "_meta": {"trace": {"id": None}}, "isError": False, "beyond": {"deep": [None, 1.5]}}


@tool("which", which="string")
def structured(call: Call) -> Result:
    """structuredContent of the kind asked for, or none."""
    kinds = {"list": [], "zero": 0, "empty": "", "false": False, "null": None, "object": {"a": None}}
    which = call.arguments["which"]
    return {"content": []} | ({"structuredContent": kinds[which]} if which in kinds else {})


@tool()
def fail(call: Call) -> Result:
    """An error of the tool itself, with all that can go with it."""
    content = [{"type": "text", "text": "quota"}, {"type": "image", "data": LINK, "mimeType": "image/png"}]
    return {"isError": True, "content": content, "structuredContent": {"code": 7}}


@tool("seconds", seconds="number", path="string", text="string", honour="boolean")
def slow(call: Call) -> Result | None:
    """Wait, then append a line to the file. Honours a cancel unless told not to."""
    honour = call.arguments.get("honour", True)
    if honour:
        if call.cancelled.wait(call.arguments["seconds"]):
            call.peer.log(cancelled=call.number, text=call.arguments.get("text"))
            return None
    else:
        time.sleep(call.arguments["seconds"])
        call.insists = True
    if path := call.arguments.get("path"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(call.arguments.get("text", "line") + "\n")
    return text("written")


@tool(code="integer", words="string")
def die(call: Call) -> Result | None:
    """End this process in the middle of the call."""
    if words := call.arguments.get("words"):
        print(words, file=sys.stderr, flush=True)
    os._exit(call.arguments.get("code", 3))


@tool("size", size="integer")
def flood(call: Call) -> Result:
    """Write so many bytes to stderr, then answer."""
    line = "y" * 99 + "\n"
    for _ in range(call.arguments["size"] // 1_000_000):
        sys.stderr.write(line * 10_000)
    sys.stderr.flush()
    return text("flooded")


@tool("size", size="integer")
def big(call: Call) -> Result:
    """A text of so many bytes."""
    return text("z" * call.arguments["size"])


@tool("line", line="string")
def say(call: Call) -> Result:
    """Write the line to stdout as it is, before the answer."""
    call.peer.write(call.arguments["line"].encode() + b"\n")
    return text("said")


@tool("line", line="string")
def answer(call: Call) -> None:
    """Answer with this line and nothing else; ID stands for the request's id."""
    call.peer.write(call.arguments["line"].replace("ID", str(call.number)).encode() + b"\n")


@tool("line", line="string")
def last_words(call: Call) -> None:
    """`answer`, and the end of the process in the same moment."""
    answer.act(call)
    os._exit(0)


@tool()
def ask_and_end(call: Call) -> None:
    """In the modern era: ask for more, and end without having waited for it."""
    call.peer.send({"id": call.number, "result": {"resultType": "input_required", "requestState": "begun"}})
    os._exit(0)


@tool(steps="integer")
def progress(call: Call) -> Result:
    """Tell of so many steps, then answer."""
    steps = call.arguments.get("steps", 3)
    for step in range(1, steps + 1):
        call.progress(step, steps, f"step {step}")
    return text("done")


@tool()
def insatiable(call: Call) -> Result:
    """In the modern era: ask for more for ever."""
    return {"resultType": "input_required", "requestState": f"{call.params.get('requestState', '')}."}


@tool("method", method="string", params="object")
def ask(call: Call) -> Result:
    """Ask the client for something and return its answer. `params` are added to the usual ones; `half` in them stands
    for half a character, `deep` for so many lists in one another."""
    method = call.arguments["method"]
    params = ASKED.get(str(method), {}) | call.arguments.get("params", {})
    if params.pop("half", False):
        params["x"] = [{"\ud800": 1}]
    for _ in range(params.pop("deep", 0)):
        params["x"] = [params.get("x")]
    if call.peer.era == "legacy":
        return {"content": [], "structuredContent": call.peer.ask(method, params)}
    responses = call.params.get("inputResponses")
    if responses is None:
        asked = {"one": {"method": method, "params": params}}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": "opaque:state"}
    return {"content": [], "structuredContent": {"responses": responses, "state": call.params.get("requestState")}}


ASKED: dict[str, Result] = {
    "elicitation/create": {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}},
    "sampling/createMessage": {"messages": [], "maxTokens": 1},
}


@tool("end", end="string", path="string")
def ask_in_vain(call: Call) -> Result | None:
    """Ask, and do not wait for the answer: `return` when the file is there, `withdraw` the request, or ask `late`."""
    end, method = call.arguments["end"], "elicitation/create"
    if end == "late":
        call.peer.send({"id": call.number, "result": text("answered")})
    number = call.peer.begin_ask(method, ASKED[method])
    if end == "withdraw":
        call.peer.notify("notifications/cancelled", {"requestId": number})
        call.cancelled.wait(30)
    while end == "return" and not os.path.exists(call.arguments["path"]):
        time.sleep(0.01)
    return text("answered") if end == "return" else None


@tool()
def hold(call: Call) -> Result:
    """Hold the GIL for ever, as far as anybody will wait."""
    re.match("^(a+)+$", "a" * 60 + "!")
    return text("never")


@tool()
def change(call: Call) -> Result:
    """Tell that the catalogue has changed."""
    call.peer.changed()
    return text("told")


@tool()
def whoami(call: Call) -> Result:
    """Process, directory, environment and what the client offered."""
    about = {"pid": os.getpid(), "cwd": os.getcwd(), "env": dict(os.environ), "offered": call.peer.capabilities}
    return {"content": [], "structuredContent": about}


@tool()
def refuse(call: Call) -> Result:
    """A JSON-RPC error in place of a result."""
    raise Failure(-32000, "no such thing today", {"why": "closed"})


@tool("pattern", pattern="string")
def evil(call: Call) -> Result:
    """Its schema's pattern takes for ever on the wrong argument."""
    return text("passed")


evil.schema["properties"] = {"pattern": {"type": "string", "pattern": "^(a+)+$"}}
