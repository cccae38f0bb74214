"""`${NAME}` and its kin: what comes out, what is refused, and that no value is ever told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_trio.broker.config.entries import Refused
from repl_trio.broker.config.expansion import Expansion

ENVIRONMENT = {
    "A": "alpha",
    "B": "beta",
    "EMPTY": "",
    "DOLLAR": "${A}",
    "HOME": "/home/u",
    "BIG": "x" * 600,
    "NUL": "a\0b",
}
LIMIT = 1_000


def expansion() -> Expansion:
    return Expansion(ENVIRONMENT, "/srv/project", LIMIT)


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("", ""),
        ("plain $A } { $", "plain $A } { $"),
        ("${A}", "alpha"),
        ("<${A}${B}>", "<alphabeta>"),
        ("${env:A}", "alpha"),
        ("${A:-x}", "alpha"),
        ("${NOPE:-x}", "x"),
        ("${NOPE:-}", ""),
        ("${env:NOPE:-x}", "x"),
        ("${NOPE:-http://h:1/p?q=:-}", "http://h:1/p?q=:-"),
        ("${NOPE:-${B}}", "beta"),
        ("${NOPE:-a${NOPE:-b}c}d", "abcd"),
        ("${EMPTY}", ""),
        ("${EMPTY:-x}", "x"),
        ("${DOLLAR}", "${A}"),  # once: what a variable holds is not looked into
        ("${workspaceFolder}/x", "/srv/project/x"),
        ("${workspaceFolderBasename}", "project"),
        ("${userHome}", "/home/u"),
        ("${cwd}${/}x", "/srv/project/x"),
        ("${CLAUDE_PROJECT_DIR}", "/srv/project"),
        ("${CLAUDE_PROJECT_DIR:-.}", "/srv/project"),
    ],
)
def test_what_comes_out(value: str, expanded: str) -> None:
    assert expansion().text("args[0]", value) == expanded


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("Bearer ${NOPE}", "the environment variable NOPE is not set"),
        ("${env:NOPE}", "the environment variable NOPE is not set"),
        ("${input:key}", "asks the user of another client; put the value into an environment variable"),
        ("${command:x}", "runs a command"),
        ("${config:x}", "settings of another client"),
        ("${file:/etc/passwd}", "would read a file"),
        ("${A", "without its `}`"),
        ("${NOPE:-x", "without its `}`"),
        ("${NOPE:-${A}", "without its `}`"),
        ("${}", "not the name of an environment variable"),
        ("${s3cr3t s3cr3t}", "not the name of an environment variable"),
        ("${s3cr3t:s3cr3t}", "not the name of an environment variable"),
        ("${" + "N" * 300 + "}", "not the name of an environment variable"),
        ("${NOPE:-" * 9 + "}" * 9, "more than 8 defaults"),
        ("${BIG}${BIG}", f"more than the {LIMIT} bytes that the limit `config_value_bytes` allows"),
        ("é" * 501, "config_value_bytes"),
        ("${NUL}", "NUL"),
        ("a\ud800", "not valid Unicode"),
    ],
)
def test_what_is_refused_names_field_and_variable_only(value: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        expansion().text("headers.Authorization", value)
    assert caught.value.field == "headers.Authorization"
    assert words in caught.value.reason
    assert "s3cr3t" not in str(caught.value)


def test_what_variables_brought_in_is_told_and_defaults_are_not() -> None:
    made = expansion()
    made.text("args[0]", "${A} ${NOPE:-open} ${workspaceFolder} ${CLAUDE_PROJECT_DIR} ${EMPTY}")
    assert made.used == {"alpha"}


def test_a_value_of_the_limits_size_is_taken() -> None:
    assert len(expansion().text("args[0]", "x" * LIMIT)) == LIMIT


def test_repeated_variables_do_not_grow_without_bound() -> None:
    looked: list[str] = []

    class Counting(dict[str, str]):
        def get(self, name: str, default: object = None) -> Any:
            looked.append(name)
            return super().get(name, default)

    many = Expansion(Counting(BIG="x" * LIMIT), "/", LIMIT)
    with pytest.raises(Refused, match="config_value_bytes"):
        many.text("args[0]", "${BIG}" * 100_000)
    assert looked.count("BIG") == 2


pieces = st.lists(st.sampled_from(["${", "}", "A", "NOPE", ":-", "env:", "input:", "$", "/", " ", "é"]), max_size=14)


@given(value=pieces.map("".join))
def test_any_text_expands_or_is_refused(value: str) -> None:
    try:
        expanded = expansion().text("args[0]", value)
    except Refused as caught:
        refused = caught
    else:
        # Without a variable nothing changes.
        assert expanded == value or "${" in value
        return
    assert "alpha" not in refused.reason
