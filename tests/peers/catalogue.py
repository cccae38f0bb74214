"""What a fixture peer answers to `tools/list`: its own tools or a file of definitions, in pages of any oddity."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from tests.peers.tools import TOOLS, Failure


class Listing:
    """The catalogue of one peer, by its options."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def definitions(self) -> list[Any]:
        """What is to be listed, read anew each time, so that a test can change the file."""
        if self.options.tools:
            with open(self.options.tools, encoding="utf-8") as file:
                served: list[Any] = json.load(file)
                return served
        return [tool.definition() for tool in TOOLS.values()]

    def page(self, cursor: object, *, modern: bool) -> dict[str, Any] | None:
        """One page, None for no answer; `cursor` is the number of the page as text."""
        number = int(cursor) if isinstance(cursor, str) else 0
        if self.options.cursor == "error" and number:
            raise Failure(-32603, "the second page is broken")
        if self.options.cursor == "refused":
            raise Failure(-32603, "not today")
        if self.options.cursor == "death":
            os._exit(4)
        if self.options.cursor == "silent":
            return None
        every, pages = self.definitions(), self.options.pages
        size = -(-len(every) // pages)
        page: dict[str, Any] = {"tools": every[number * size : (number + 1) * size]}
        following = str(number + 1) if number + 1 < pages else None
        if self.options.cursor == "repeat":
            following = "0"
        elif self.options.cursor == "endless":
            page["tools"], following = [], str(number + 1)
        if following is not None:
            page["nextCursor"] = following
        if modern or self.options.ttl is not None:
            page |= {"ttlMs": self.options.ttl or 0, "cacheScope": "private"}
        return page
