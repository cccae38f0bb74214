"""The decision as a truth table: every rule, and which of two rules decides."""

from __future__ import annotations

import itertools

import pytest

from repl_trio.broker.config import entries
from repl_trio.broker.config.entries import Entry, Fault, FileFault, Snapshot, Stdio
from repl_trio.broker.grants import Decision, decide, granted
from repl_trio.errors import BrokerError

A, B = frozenset("a"), frozenset("b")
UNREAD = (FileFault("/p/.mcp.json", "project", "is empty"),)


def listed(
    scope: str = "project", allowed: frozenset[str] | None = None, denied: frozenset[str] = frozenset()
) -> Entry:
    return Entry("s", scope, Stdio("x"), allowed, denied)


def with_rule(rule: str) -> Fault:
    return Fault("s", "project", "f", "why", rule)


# blocked, entry, unreadable files, tool -> rule, code of the refusal ("" when it is allowed)
TABLE = [
    ("recursion", listed(), (), None, "recursion", "NOT_GRANTED"),
    ("recursion", None, UNREAD, "a", "recursion", "NOT_GRANTED"),
    (None, None, (), None, "unknown", "UNKNOWN_SERVER"),
    (None, None, (), "a", "unknown", "UNKNOWN_SERVER"),
    (None, None, UNREAD, None, "unreadable", "CONFIG_FAULT"),
    (None, with_rule(entries.FAULT), (), None, "fault", "CONFIG_FAULT"),
    (None, with_rule(entries.FAULT), (), "a", "fault", "CONFIG_FAULT"),
    (None, with_rule(entries.UNREADABLE), UNREAD, "a", "unreadable", "CONFIG_FAULT"),
    (None, with_rule(entries.DISABLED), (), "a", "disabled", "NOT_GRANTED"),
    (None, with_rule(entries.NOT_OPENED), (), "a", "not-opened", "NOT_GRANTED"),
    (None, with_rule(entries.CLIENT), (), "a", "client", "NOT_GRANTED"),
    (None, with_rule(entries.ITSELF), (), "a", "itself", "NOT_GRANTED"),
    (None, listed(), (), None, "listed", ""),
    (None, listed(), (), "a", "listed", ""),
    (None, listed(), UNREAD, "a", "listed", ""),
    (None, listed("config"), (), "a", "listed", ""),
    (None, listed("local"), (), "a", "listed", ""),
    (None, listed("user"), (), "a", "listed", ""),
    # A server may be connected to and asked for its tools, whatever the lists say of each.
    (None, listed(allowed=frozenset()), (), None, "listed", ""),
    (None, listed(allowed=A), (), "a", "listed", ""),
    (None, listed(allowed=B), (), "a", "allowedTools", "NOT_GRANTED"),
    (None, listed(allowed=frozenset()), (), "a", "allowedTools", "NOT_GRANTED"),
    (None, listed(allowed=A), (), "A", "allowedTools", "NOT_GRANTED"),
    (None, listed(denied=A), (), "a", "disabledTools", "NOT_GRANTED"),
    (None, listed(denied=B), (), "a", "listed", ""),
    (None, listed(allowed=A, denied=A), (), "a", "disabledTools", "NOT_GRANTED"),
    (None, listed(allowed=B, denied=A), (), "a", "allowedTools", "NOT_GRANTED"),
    (None, listed(allowed=A, denied=B), (), "a", "listed", ""),
]


@pytest.mark.parametrize(("blocked", "entry", "faults", "tool", "rule", "code"), TABLE)
def test_each_case_has_its_rule(
    blocked: str | None,
    entry: Entry | Fault | None,
    faults: tuple[FileFault, ...],
    tool: str | None,
    rule: str,
    code: str,
) -> None:
    snapshot = Snapshot({} if entry is None else {"s": entry}, faults, blocked)
    decision = decide(snapshot, "s", tool)
    assert (decision.allowed, decision.rule) == (not code, rule)
    assert decision.reason
    if not code:
        assert granted(snapshot, "s", tool) is entry
        return
    assert decision.code == code
    with pytest.raises(BrokerError) as caught:
        granted(snapshot, "s", tool)
    error = caught.value
    assert (error.code, error.sent, error.server, error.tool) == (code, "no", "s", tool)
    assert error.message == f"{'s' if tool is None else f's.{tool}'}: {decision.reason}"


def test_every_rule_of_a_fault_is_in_the_table() -> None:
    rules = {entries.FAULT, entries.DISABLED, entries.NOT_OPENED, entries.CLIENT, entries.ITSELF, entries.UNREADABLE}
    assert rules <= {rule for *_, rule, _ in TABLE}


def test_nothing_widens_a_grant() -> None:
    """Whatever else is in the snapshot: without a good entry of that very name nothing is allowed."""
    kinds = [None, with_rule(entries.FAULT), listed(allowed=B), listed(denied=A)]
    for entry, other, blocked in itertools.product(kinds, [None, listed(), with_rule(entries.FAULT)], [None, "why"]):
        found = {name: value for name, value in (("s", entry), ("S", other), ("s ", other)) if value is not None}
        assert not decide(Snapshot(found, (), blocked), "s", "a").allowed


def test_reasons_say_what_to_do() -> None:
    nothing = decide(Snapshot({}), "s").reason
    assert '.mcp.json of the project: {"mcpServers": {NAME: ENTRY}}' in nothing
    many = Snapshot({f"n{index:02}": listed() for index in range(25)})
    assert decide(many, "s").reason.endswith("n18, n19 and 5 more")
    assert decide(Snapshot({"s": with_rule(entries.FAULT)}), "s") == Decision(False, "fault", "f: why")
    assert decide(Snapshot({"s": Fault("s", "project", "", "why")}), "s").reason == "why"
    assert decide(Snapshot({}, UNREAD), "s").reason == "/p/.mcp.json: is empty"
    narrow = Snapshot({"s": listed(allowed=frozenset(f"t{index:02}" for index in range(22)))})
    assert decide(narrow, "s", "x").reason.endswith("t18, t19 and 2 more")
    assert decide(Snapshot({"s": listed(allowed=frozenset())}), "s", "x").reason.endswith("it allows none")


@pytest.mark.parametrize("scope", entries.SCOPES)
def test_a_refused_tool_is_told_where_that_is_written(scope: str) -> None:
    where = {"project": "the project's .mcp.json", "config": "the file of --config"}.get(scope, f"{scope} scope")
    for entry, field in ((listed(scope, allowed=B), "`allowedTools`"), (listed(scope, denied=A), "`disabledTools`")):
        reason = decide(Snapshot({"s": entry}), "s", "a").reason
        assert field in reason
        assert where in reason


def test_a_long_name_is_cut_in_the_message() -> None:
    with pytest.raises(BrokerError) as caught:
        granted(Snapshot({}), "n" * 10_000, "t" * 10_000)
    assert len(caught.value.message) < 400
