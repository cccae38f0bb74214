"""What a peer offers, read page by page: whole, or an error that says how far it came.

A single malformed definition is left out and named, and the others stay callable. A listing that repeats a cursor or a
name, or that is larger than its bounds, is an error: a part of it must not pass for the whole.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import trio

from ...errors import BrokerError
from ...limits import Limits
from ...wire import jsontext
from .signatures import brief

_LONGEST = 10**12
"""milliseconds. More than a server runs for."""
_NAMED = 10
"""names that an error or a note lists."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page as the peer sent it, nothing of it checked: the list (None: there was none), the cursor, the hint."""

    items: object
    next_cursor: object = None
    ttl_ms: object = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Every item of all pages, and for how many seconds they may be believed."""

    items: list[object]
    ttl: float


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its definition as the peer sent it, unknown keys included."""

    name: str
    definition: Mapping[str, object]

    @property
    def schema(self) -> object:
        """The schema of its arguments, whatever the peer sent in its place; None when it sent nothing."""
        return self.definition.get("inputSchema")

    @property
    def description(self) -> str:
        """What it does, "" when the peer does not say."""
        description = self.definition.get("description")
        return description if isinstance(description, str) else ""


@dataclass(frozen=True, slots=True)
class Match:
    """A tool that a search has found; `line` is its signature and first sentence."""

    server: str
    tool: str
    line: str


class CatalogueFault(BrokerError):
    """A listing that was not read to its end, or that contradicts itself. `read` has the items until there."""

    def __init__(self, message: str, read: list[object]) -> None:
        names = [str(item["name"]) for item in read if isinstance(item, dict) and isinstance(item.get("name"), str)]
        super().__init__("CATALOGUE_FAULT", f"{message}; read until there: {_listed(names)}")
        self.read = read


class Catalogue:
    """The tools of one peer by name, and what of its listing could not be used.

    `invalid` names each malformed definition and its fault. `fresh` tells whether it may still be believed.
    """

    def __init__(self, tools: Mapping[str, Tool], invalid: tuple[str, ...], ttl: float) -> None:
        self.tools = tools
        self.invalid = invalid
        self._until = trio.current_time() + ttl
        self._texts: list[tuple[Tool, str, str]] | None = None

    @property
    def fresh(self) -> bool:
        """Whether the time has not run out for which the peer, or we, wanted it believed."""
        return trio.current_time() < self._until

    def drop(self) -> None:
        """The peer has changed its list: believe this one no longer."""
        self._until = -math.inf

    def texts(self) -> list[tuple[Tool, str, str]]:
        """Each tool with its name and with all that is said about it, both case-folded."""
        if self._texts is None:
            self._texts = [(tool, tool.name.casefold(), _about(tool).casefold()) for tool in self.tools.values()]
        return self._texts


async def read_pages(page: Callable[[str | None], Awaitable[Page]], limits: Limits, what: str = "tools") -> Listing:
    """Read a listing to its end; `page` fetches the page at a cursor, None for the first.

    Raises `CatalogueFault` for a listing that is over a bound, has no list, or repeats a cursor, and, with what was
    read, for a page after the first that fails with a `BrokerError`. Deadlines are the caller's.
    """
    items: list[object] = []
    seen: set[str] = set()
    cursor: str | None = None
    size, ttl = 0, math.inf
    for number in range(1, limits.catalogue_pages + 1):
        try:
            answer = await page(cursor)
        except BrokerError as error:
            if number == 1:
                raise
            raise CatalogueFault(f"page {number} of the {what} failed: {error.message}", items) from None
        if not isinstance(answer.items, list):
            raise CatalogueFault(f"page {number} of the {what} has no list", items)
        size += len(_text(answer.items))
        _within("catalogue_bytes", size, limits.catalogue_bytes, what, items)
        _within("catalogue_tools", len(items) + len(answer.items), limits.catalogue_tools, what, items)
        items += answer.items
        ttl = min(ttl, _seconds(answer.ttl_ms, limits))
        if answer.next_cursor in (None, ""):  # some servers say "" on their last page
            return Listing(items, ttl)
        if not isinstance(answer.next_cursor, str):
            raise CatalogueFault(f"page {number} of the {what} has a cursor that is no string", items)
        cursor = answer.next_cursor
        if cursor in seen:
            raise CatalogueFault(f"page {number} of the {what} repeats a cursor, so the list would never end", items)
        seen.add(cursor)
    raise CatalogueFault(f"the {what} take more than {limits.catalogue_pages} pages (limit catalogue_pages)", items)


async def read_all(page: Callable[[str | None], Awaitable[Page]], limits: Limits) -> Catalogue:
    """The whole catalogue of a peer. Raises `CatalogueFault` as `read_pages` does, and for a name that comes twice."""
    listing = await read_pages(page, limits)
    tools: dict[str, Tool] = {}
    invalid: list[str] = []
    for index, item in enumerate(listing.items):
        fault = _fault(item)
        if fault or not isinstance(item, dict):
            invalid.append(f"tool {index}: {fault}")
        elif item["name"] in tools:
            raise CatalogueFault(f"the tool {_quoted(item['name'])} is listed twice", listing.items)
        else:
            tools[item["name"]] = Tool(item["name"], item)
    return Catalogue(tools, tuple(invalid), listing.ttl)


def search(words: str, catalogues: Mapping[str, Catalogue], limits: Limits) -> list[Match]:
    """The tools that mention every one of the words, best first: in the name, then in what is said about the tool.

    Words are parts of words, in any case. Without words every tool matches.
    """
    wanted = words.casefold().split()
    found: list[tuple[int, str, Tool]] = []
    for server, catalogue in catalogues.items():
        for tool, name, about in catalogue.texts():
            where = f"{server.casefold()} {about}"
            if all(word in where for word in wanted):
                # A name that is one of the words, then names that hold more of them.
                score = sum(3 * (word == name) + (word in name) for word in wanted)
                found.append((-score, server, tool))
    found.sort(key=lambda match: (match[0], match[1], match[2].name))
    return [Match(server, tool.name, brief(tool.definition)) for _, server, tool in found[: limits.search_matches]]


def _fault(item: object) -> str:
    """Why an item of the list is no tool; "" when it is one. Says nothing of its schema: that is validation's."""
    if not isinstance(item, dict):
        return "its definition is no object"
    name = item.get("name")
    if name is None:
        return "it has no name"
    if not isinstance(name, str):
        return "its name is no string"
    return "" if name else "its name is empty"


def _about(tool: Tool) -> str:
    properties = tool.schema.get("properties") if isinstance(tool.schema, dict) else None
    parameters = " ".join(properties) if isinstance(properties, dict) else ""
    title = tool.definition.get("title")
    return f"{tool.name} {title if isinstance(title, str) else ''} {parameters} {tool.description}"


def _seconds(hint: object, limits: Limits) -> float:
    """A peer's hint in seconds; our own number when it is none."""
    if isinstance(hint, int | float) and not isinstance(hint, bool) and 0 <= hint < math.inf:
        # An integer may be beyond every float.
        return min(hint, _LONGEST) / 1000
    return limits.catalogue_ttl


def _within(name: str, asked: int, allowed: int, what: str, read: list[object]) -> None:
    if asked > allowed:
        raise CatalogueFault(f"the {what} come to at least {asked}; the limit {name} is {allowed}", read)


def _text(items: list[object]) -> str:
    try:
        return jsontext.dumps(items)
    except (TypeError, ValueError):
        raise CatalogueFault("a page is not JSON", []) from None


def _listed(names: list[str]) -> str:
    if not names:
        return "nothing"
    shown = ", ".join(map(_quoted, names[:_NAMED]))
    return f"{len(names)} ({shown}{', ...' if len(names) > _NAMED else ''})"


def _quoted(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
