"""The SDK's client with nothing around it, calling the same peer program.

    python sdk_client.py COMMAND ...

On asyncio, its default and the faster one. Connects, then takes one JSON line an order and answers with one:
`{"serial": N}` gives the seconds of each of N calls of `echo` one after the other, `{"parallel": N, "nap": S}` those of
N calls of `nap` at once, as a list of one. Ends when its input ends.
"""

import json
import sys
import time
from typing import Any

import anyio
import anyio.to_thread
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def serial(session: ClientSession, count: int) -> list[float]:
    """Seconds of each call."""
    took = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        result = await session.call_tool("echo", {"text": "x"})
        took.append((time.perf_counter_ns() - begun) / 1e9)
        assert getattr(result.content[0], "text", None) == "x"
    return took


async def parallel(session: ClientSession, count: int, nap: float) -> list[float]:
    """Seconds until the last of all these calls was answered."""

    async def call() -> None:
        result = await session.call_tool("nap", {"seconds": nap})
        assert getattr(result.content[0], "text", None) == "awake"

    begun = time.perf_counter_ns()
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(call)
    return [(time.perf_counter_ns() - begun) / 1e9]


async def main(*command: str) -> None:
    """Serve orders until the input ends."""
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]))
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            order: dict[str, Any] = json.loads(line)
            if "serial" in order:
                took = await serial(session, order["serial"])
            else:
                took = await parallel(session, order["parallel"], order["nap"])
            print(json.dumps(took), flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
