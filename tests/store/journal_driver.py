"""A program that writes a journal until it is killed: `python journal_driver.py PATH`.

It prints `begun N` when the record of a call is durable and `ended N` after it has recorded how the call ended.
"""

from __future__ import annotations

import sys

import trio

from repl_trio.limits import Limits
from repl_trio.store.journal import open_journal
from repl_trio.store.records import COMPLETED


async def main(path: str) -> None:
    async with open_journal(path, Limits.overridden({"journal_records": "100000"})) as journal:

        async def calls(worker: int) -> None:
            while True:
                number = await journal.begin("run", "session", "project", "server", f"tool-{worker}")
                print("begun", number, flush=True)
                if number % 2:
                    journal.finish(number, COMPLETED)
                    print("ended", number, flush=True)

        async with trio.open_nursery() as nursery:
            for worker in range(3):
                nursery.start_soon(calls, worker)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
