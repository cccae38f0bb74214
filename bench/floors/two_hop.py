"""The two-hop floor: an MCP server with nothing in it but the two hops a cell has to make.

A blocking loop reads JSON-RPC lines from descriptor 0 and writes answers to descriptor 1; a cell goes on to a child
interpreter as one JSON line, and its reply comes back as one. No thread, no loop library, no time limit, no
interruption: what any server with a separate interpreter costs at the least. The child starts with the first cell, as
the worker of repl_trio does.
Ends when its input ends.
"""

import json
import os
import subprocess
import sys
from typing import Any

CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "two_hop_child.py")
TOOL = {
    "name": "execute_python",
    "description": "Run Python code in a persistent namespace.",
    "inputSchema": {
        "type": "object",
        "properties": {"code": {"type": "string"}, "reset": {"type": "boolean"}},
        "required": ["code"],
    },
}


class Lines:
    """Newline-terminated messages on a pair of blocking descriptors."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._buffer = bytearray()

    def read(self) -> bytes:
        """The next line, or nothing at the end of the input."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            piece = os.read(self._source, 1 << 16)
            if not piece:
                return b""
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def write(self, message: dict[str, Any]) -> None:
        """Write one message whole."""
        rest = memoryview(json.dumps(message).encode() + b"\n")
        while rest:
            rest = rest[os.write(self._sink, rest) :]


class Child:
    """The child interpreter; started by the first cell, and again after a reset."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: Lines | None = None

    def run(self, code: str) -> dict[str, Any]:
        """Run one cell; the reply of `two_hop_child.py`."""
        if self._lines is None:
            self._start()
        assert self._lines is not None
        self._lines.write({"code": code})
        reply: dict[str, Any] = json.loads(self._lines.read())
        return reply

    def stop(self) -> None:
        """End the child by the end of its input, and reap it."""
        if self._process is not None:
            self._process.communicate()
        self._process = self._lines = None

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lines = Lines(self._process.stdout.fileno(), self._process.stdin.fileno())


def execute(child: Child, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of one `tools/call`."""
    if arguments.get("reset"):
        child.stop()
    reply = child.run(arguments["code"])
    parts = (reply["stdout"], reply["return_value"], reply["error"])
    return {
        "content": [{"type": "text", "text": "\n".join(part for part in parts if part)}],
        "structuredContent": reply,
        "isError": not reply["success"],
    }


def answer(child: Child, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result of one request; None for a method this server does not have."""
    if method == "tools/call":
        return execute(child, params["arguments"])
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "two-hop-floor", "version": "1"},
        }
    return None


def main() -> None:
    """Answer requests in order until the input ends."""
    client = Lines(0, 1)
    child = Child()
    while line := client.read():
        request = json.loads(line)
        if "id" not in request:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        result = answer(child, request["method"], request.get("params", {}))
        if result is None:
            reply["error"] = {"code": -32601, "message": "unknown method"}
        else:
            reply["result"] = result
        client.write(reply)
    child.stop()


if __name__ == "__main__":
    main()
