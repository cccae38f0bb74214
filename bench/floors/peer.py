"""A peer to be called: an MCP server of the handshake era with nothing in it but two tools.

`echo` gives back its text, `nap` answers after so many seconds; naps overlap. One thread, one blocking wait: what it
costs is the same for whoever calls it. Ends when its input ends.
"""

import heapq
import json
import os
import select
import time
from typing import Any

TOOLS = [
    {
        "name": "echo",
        "description": "Give back the text.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
    {
        "name": "nap",
        "description": "Answer after so many seconds.",
        "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]},
    },
]


def send(number: object, key: str, value: dict[str, Any]) -> None:
    """One answer."""
    rest = memoryview(json.dumps({"jsonrpc": "2.0", "id": number, key: value}).encode() + b"\n")
    while rest:
        rest = rest[os.write(1, rest) :]


def text(words: str) -> dict[str, Any]:
    """The result of a tool."""
    return {"content": [{"type": "text", "text": words}], "isError": False}


def answer(request: dict[str, Any], naps: list[tuple[float, int]]) -> None:
    """Answer one request, or note when its nap is over."""
    number, method, params = request["id"], request["method"], request.get("params", {})
    if method == "tools/call" and params["name"] == "nap":
        heapq.heappush(naps, (time.monotonic() + params["arguments"]["seconds"], number))
    elif method == "tools/call":
        send(number, "result", text(params["arguments"]["text"]))
    elif method == "tools/list":
        send(number, "result", {"tools": TOOLS})
    elif method == "initialize":
        about = {"name": "bench-peer", "version": "1"}
        agreed = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
        send(number, "result", agreed)
    else:
        send(number, "error", {"code": -32601, "message": "unknown method"})


def main() -> None:
    """Answer until the input ends."""
    buffer = b""
    naps: list[tuple[float, int]] = []
    while True:
        left = max(0.0, naps[0][0] - time.monotonic()) if naps else None
        if select.select([0], [], [], left)[0]:
            piece = os.read(0, 1 << 16)
            if not piece:
                return
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if "id" in request:
                    answer(request, naps)
        while naps and naps[0][0] <= time.monotonic():
            send(heapq.heappop(naps)[1], "result", text("awake"))


if __name__ == "__main__":
    main()
