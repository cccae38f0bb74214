"""Steps that the tests of the journal share."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.store.journal import Journal, open_journal
from repl_trio.store.records import Record

HANG = 60.0
LIMITS = Limits()


async def begin(journal: Journal, tool: str = "tool") -> int:
    with trio.fail_after(HANG):
        return await journal.begin("run", "session", "/project", "server", tool)


async def refused(journal: Journal, words: str) -> None:
    with pytest.raises(BrokerError, match=words) as raised:
        await begin(journal)
    assert (raised.value.code, raised.value.sent) == ("JOURNAL_UNAVAILABLE", "no")
    assert journal.state.startswith("unavailable: ")


async def read(path: Path, **numbers: str) -> list[Record]:
    async with open_journal(str(path), Limits.overridden(numbers)) as journal:
        with trio.fail_after(HANG):
            await journal.load()
        return journal.records()
