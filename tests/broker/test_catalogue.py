"""A peer's listing: read whole, or an error that says how far it was read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from repl_trio.broker.tools.catalogue import Catalogue, CatalogueFault, Page, read_all, read_pages, search
from repl_trio.errors import BrokerError
from repl_trio.limits import Limits
from repl_trio.wire import jsontext

LIMITS = Limits()
Answer = Page | BrokerError


def tool(name: str, description: str = "", **properties: str) -> dict[str, object]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": description, "inputSchema": schema}


def pages(*answers: Answer) -> Callable[[str | None], Awaitable[Page]]:
    """A peer that gives these pages, in this order; asked for more it fails the test."""
    left = list(answers)
    cursor: list[object] = [None]

    async def page(asked: str | None) -> Page:
        assert asked == cursor[0]
        answer = left.pop(0)
        if isinstance(answer, BrokerError):
            raise answer
        cursor[0] = answer.next_cursor
        return answer

    return page


async def test_every_page_is_read() -> None:
    asked = pages(Page([tool("a"), tool("b")], "1"), Page([tool("c"), tool("d")], "2"), Page([tool("e"), tool("f")]))
    catalogue = await read_all(asked, LIMITS)
    assert list(catalogue.tools) == list("abcdef")
    assert catalogue.invalid == ()
    assert catalogue.tools["a"].definition == tool("a")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([Page([tool("a")], "x"), Page([tool("b")], "x")], "repeats a cursor"),
        ([Page([tool("a")], "x"), Page([tool("b")], "y"), Page([tool("c")], "x")], "repeats a cursor"),
        ([Page([tool("a")], "x"), Page([tool("a")])], "'a' is listed twice"),
        ([Page([tool("a")], "x"), Page(None)], "page 2 of the tools has no list"),
        ([Page([tool("a")], "x"), Page({"a": 1})], "page 2 of the tools has no list"),
        ([Page([tool("a")], 7)], "cursor that is no string"),
        (
            [Page([tool("a")], "x"), BrokerError("PEER_GONE", "it has ended")],
            "page 2 of the tools failed: it has ended",
        ),
    ],
)
async def test_half_a_listing_is_an_error_that_says_what_was_read(answers: list[Answer], words: str) -> None:
    with pytest.raises(CatalogueFault, match=words) as raised:
        await read_all(pages(*answers), LIMITS)
    assert raised.value.code == "CATALOGUE_FAULT"
    assert raised.value.sent == "no"
    assert "('a'" in raised.value.message
    assert raised.value.read[0] == tool("a")


@pytest.mark.parametrize("answer", [Page(None), Page("tools")])
async def test_no_list_at_all(answer: Page) -> None:
    with pytest.raises(CatalogueFault, match="no list; read until there: nothing"):
        await read_all(pages(answer), LIMITS)


async def test_a_first_page_that_fails_is_that_failure() -> None:
    failure = BrokerError("PEER_GONE", "it has ended")
    with pytest.raises(BrokerError) as raised:
        await read_all(pages(failure), LIMITS)
    assert raised.value is failure


async def test_an_empty_cursor_is_the_end() -> None:
    catalogue = await read_all(pages(Page([tool("a")], "1"), Page([tool("b")], "")), LIMITS)
    assert list(catalogue.tools) == ["a", "b"]


@pytest.mark.parametrize("count", [1, 3])
async def test_pages_are_bounded(count: int) -> None:
    limits = Limits.overridden({"catalogue_pages": str(count)})
    answers = [Page([tool(str(number))], str(number)) for number in range(count)]
    assert list((await read_all(pages(*answers[:-1], Page([])), limits)).tools) == [str(n) for n in range(count - 1)]
    with pytest.raises(CatalogueFault, match=f"more than {count} pages .limit catalogue_pages"):
        await read_all(pages(*answers, Page([])), limits)


async def test_tools_are_bounded() -> None:
    limits = Limits.overridden({"catalogue_tools": "3"})
    three, one = [tool("a"), tool("b"), tool("c")], [tool("d")]
    assert len((await read_all(pages(Page(three)), limits)).tools) == 3
    with pytest.raises(CatalogueFault, match="at least 4; the limit catalogue_tools is 3"):
        await read_all(pages(Page(three, "x"), Page(one)), limits)


async def test_bytes_are_bounded() -> None:
    item = {"name": "a", "description": "x" * 69}
    assert len(jsontext.dumps([item])) == 100
    fits = Limits.overridden({"catalogue_bytes": "100"})
    assert len((await read_all(pages(Page([item])), fits)).tools) == 1
    with pytest.raises(CatalogueFault, match="at least 100; the limit catalogue_bytes is 99"):
        await read_all(pages(Page([item])), Limits.overridden({"catalogue_bytes": "99"}))


async def test_a_description_of_two_megabytes_is_over_the_bound() -> None:
    with pytest.raises(CatalogueFault, match="catalogue_bytes"):
        await read_all(pages(Page([tool("a", "x" * 2_000_000)])), LIMITS)


async def test_one_malformed_definition_costs_nobody_else_anything() -> None:
    listed = [
        tool("ok"),
        {"name": 5},
        {"inputSchema": {}},
        {"name": "arr", "inputSchema": {"type": "object", "properties": {"required": ["x"]}}},
        "tool",
        {"name": ""},
        {"name": "bare"},
    ]
    catalogue = await read_all(pages(Page(listed)), LIMITS)
    assert list(catalogue.tools) == ["ok", "arr", "bare"]
    assert catalogue.invalid == (
        "tool 1: its name is no string",
        "tool 2: it has no name",
        "tool 4: its definition is no object",
        "tool 5: its name is empty",
    )
    assert catalogue.tools["bare"].schema is None


@pytest.mark.parametrize(
    ("hints", "seconds"),
    [
        ([None], 15.0),
        ([2_000], 2.0),
        ([0], 0.0),
        ([60_000, 1_000], 1.0),
        ([60_000, None], 15.0),
        ([-1], 15.0),
        (["5"], 15.0),
        ([True], 15.0),
        ([float("nan")], 15.0),
        ([float("inf")], 15.0),
    ],
)
async def test_the_peers_hint_is_honoured(hints: list[object], seconds: float, autojump_clock: object) -> None:
    answers = [Page([], str(number), hint) for number, hint in enumerate(hints[:-1])]
    catalogue = await read_all(pages(*answers, Page([], None, hints[-1])), LIMITS)
    if seconds:
        await trio.sleep(seconds - 0.01)
        assert catalogue.fresh
    await trio.sleep(0.02)
    assert not catalogue.fresh


async def test_a_changed_list_is_not_believed_any_more() -> None:
    catalogue = await read_all(pages(Page([tool("a")], None, 60_000)), LIMITS)
    assert catalogue.fresh
    catalogue.drop()
    assert not catalogue.fresh


async def test_other_listings_are_read_the_same_way() -> None:
    listing = await read_pages(pages(Page([1], "x"), Page([2])), LIMITS, "resources")
    assert listing.items == [1, 2]
    with pytest.raises(CatalogueFault, match="page 1 of the resources has no list"):
        await read_pages(pages(Page(None)), LIMITS, "resources")


async def catalogues() -> dict[str, Catalogue]:
    tracker = [
        tool("create_issue", "Open a new issue. More words.", title="string"),
        tool("issue", "Read one."),
        tool("list_pages", "All wiki pages", issue_filter="string"),
    ]
    clock = [tool("now", "The time."), {"name": "odd", "description": 5, "inputSchema": [], "title": "Strange ISSUE"}]
    return {
        "tracker": await read_all(pages(Page(tracker)), LIMITS),
        "clock": await read_all(pages(Page(clock)), LIMITS),
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("issue", ["issue", "create_issue", "odd", "list_pages"]),
        ("ISSUE New", ["create_issue"]),
        ("issue wiki", ["list_pages"]),
        ("clock", ["now", "odd"]),
        ("nothing of the kind", []),
        ("", ["now", "odd", "create_issue", "issue", "list_pages"]),
    ],
)
async def test_search(words: str, expected: list[str]) -> None:
    assert [match.tool for match in search(words, await catalogues(), LIMITS)] == expected


async def test_a_match_says_how_to_call_it() -> None:
    first = search("create", await catalogues(), LIMITS)[0]
    assert (first.server, first.tool) == ("tracker", "create_issue")
    assert first.line == "create_issue(title: str = None) - Open a new issue."


async def test_matches_are_bounded() -> None:
    limits = Limits.overridden({"search_matches": "2"})
    assert [match.tool for match in search("issue", await catalogues(), limits)] == ["issue", "create_issue"]


async def test_a_hint_beyond_every_float_is_a_long_time() -> None:
    assert (await read_all(pages(Page([], None, 10**400)), LIMITS)).fresh
