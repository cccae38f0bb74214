"""Compiling cells, and remembering their sources, in this process."""

import __future__

import pytest

from repl_trio.worker.history import History
from repl_trio.worker.source import compile_cell, run_program


def test_future_flags_are_the_interpreters() -> None:
    flags = compile_cell("from __future__ import annotations", "<repl:x>", 0).flags
    assert flags == __future__.annotations.compiler_flag
    assert compile_cell("1", "<repl:x>", flags).flags == flags


@pytest.mark.parametrize(
    ("code", "awaits"),
    [
        ("1", False),
        ("await x", True),
        ("async with x: pass\n1", True),
        ("y = 1\nawait x", True),
        ("async def f(): await x", False),
        ("[i async for i in x]", True),
        ("async for i in x: pass", True),
        ("lambda: (yield)", False),
    ],
)
def test_top_level_await_is_recognised(code: str, awaits: bool) -> None:
    assert compile_cell(code, "<repl:x>", 0).awaits is awaits


def test_docstring_and_value_of_a_cell_that_begins_with_a_string() -> None:
    namespace: dict[str, object] = {}
    assert run_program(compile_cell("'doc'\nx = 1\nx + 1", "<repl:x>", 0), namespace) == 2
    assert namespace["__doc__"] == "doc"


def test_a_history_keeps_runs_and_bytes_within_its_bounds() -> None:
    history = History(3, 100)
    for index in range(5):
        history.add(f"r{index}", "x" * 10)
    assert [run for run, _source in history.sources()] == ["r2", "r3", "r4"]
    history.add("r5", "\u00e9" * 40)
    assert [run for run, _source in history.sources()] == ["r3", "r4", "r5"]
    history.add("r6", "y" * 11)
    assert [run for run, _source in history.sources()] == ["r5", "r6"]
    history.add("r7", "z" * 1000)
    assert [run for run, _source in history.sources()] == ["r7"]
