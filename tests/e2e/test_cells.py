"""The public reports turned into cases: each is one test for each Python, its cells run in order in one fresh session.

A case runs on all Pythons at the same time, each in a session of its own on one server: most of its time is waiting.

`expect` has what every implementation must hold to, `also` what a full one must; `product_only` names checks that are a
product's own choice, which `PRODUCT` records for this one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client, Message
from tests.process.worker_driver import VERSIONS, interpreter

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("cells.json").read_text(encoding="utf-8"))
DEFAULT_TIMEOUT = 30
"""seconds. For a cell whose case names none."""

PRODUCT: dict[tuple[str, int], dict[str, Any]] = {
    ("INT-A05", 0): {},  # the deadline and the end of the cell race: either is right
    ("LIFE-A11", 0): {"success": False},
}
"""(case, index of the cell) -> what this product chose where the case leaves the choice."""


def listed(expected: Any) -> list[Any]:
    return expected if isinstance(expected, list) else [expected]


def same(found: Any, expected: Any) -> bool:
    """Equality including types: 1 is neither True nor 1.0."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    return bool(found == expected)


def contains(text: str | None, expected: Any) -> bool:
    return text is not None and all(part in text for part in listed(expected))


CHECKS: dict[str, Callable[[Message, Any], bool]] = {
    "success": lambda result, wanted: result["success"] is wanted,
    "state": lambda result, wanted: result["state"] == wanted,
    "value": lambda result, wanted: "value" in result and same(result["value"], wanted),
    "return_value_contains": lambda result, wanted: contains(result["return_value"], wanted),
    "stdout_contains": lambda result, wanted: contains(result["stdout"], wanted),
    "stderr_contains": lambda result, wanted: contains(result["stderr"], wanted),
    "error_contains": lambda result, wanted: contains(result["error"], wanted),
    "max_ms": lambda result, wanted: result["elapsed_ms"] <= wanted,
    "stdout_not_contains": lambda result, wanted: not any(part in result["stdout"] for part in listed(wanted)),
    "error_not_contains": lambda result, wanted: not any(part in result["error"] for part in listed(wanted)),
    "error_contains_any": lambda result, wanted: any(part in result["error"] for part in wanted),
    "error_max_chars": lambda result, wanted: len(result["error"]) <= wanted,
    "any_output_contains": lambda result, wanted: contains(result["stdout"] + result["stderr"], wanted),
    "truncated": lambda result, wanted: wanted.items() <= result["truncated"].items(),
    "value_absent": lambda result, wanted: ("value" not in result) is wanted,
    "state_reset": lambda result, wanted: result["state_reset"] is wanted,
}


def arguments(cell: dict[str, Any]) -> dict[str, Any]:
    given = {"timeout": cell.get("timeout", DEFAULT_TIMEOUT)}
    return given | ({"reset": True} if cell.get("reset") else {})


def expectations(case: str, index: int, cell: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, wanted in (cell.get("expect", {}) | cell.get("also", {})).items():
        # The first cell of a session is in a new namespace whether or not something was lost.
        if key not in cell.get("product_only", []) and not (index == 0 and key == "state_reset" and wanted is False):
            yield key, wanted
    yield from PRODUCT.get((case, index), {}).items()


class Cases:
    """One server, and what the cases gave on it: case id -> Python version -> the results of its cells."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pythons = {version: path for version in VERSIONS if (path := found(version)) is not None}
        self._results: dict[str, dict[str, list[Message]]] = {}

    def results(self, case: dict[str, Any], version: str) -> list[Message]:
        """The results of a case's cells. The first to ask runs it on every Python."""
        if case["id"] not in self._results:
            self._results[case["id"]] = self._run(case)
        return self._results[case["id"]][version]

    def _run(self, case: dict[str, Any]) -> dict[str, list[Message]]:
        sessions = {
            version: str(self._client.structured("python_session_open", python=python)["session_id"])
            for version, python in self._pythons.items()
        }
        results: dict[str, list[Message]] = {version: [] for version in sessions}
        try:
            for cell in case["cells"]:
                requests = {
                    version: self._client.start_call(
                        "execute_python", code=cell["code"], session_id=session, **arguments(cell)
                    )
                    for version, session in sessions.items()
                }
                for version, request in requests.items():
                    results[version].append(self._client.result(request, bound=60)["structuredContent"])
        finally:
            for session in sessions.values():
                self._client.structured("python_session_close", session_id=session)
        return results


def found(version: str) -> str | None:
    """The path of a Python of this version, None when there is none."""
    try:
        return interpreter(version)
    except pytest.skip.Exception:
        return None


@pytest.fixture(scope="module")
def cases() -> Iterator[Cases]:
    with Client() as client:
        client.execute("1")  # starts the root guardian, which stays with the server and is no test's own
        yield Cases(client)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(cases: Cases, case: dict[str, Any], version: str) -> None:
    interpreter(version)
    for index, (cell, result) in enumerate(zip(case["cells"], cases.results(case, version), strict=True)):
        for key, wanted in expectations(case["id"], index, cell):
            assert CHECKS[key](result, wanted), f"cell {index + 1}: {key} is not {wanted!r}: {result}"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_session_is_of_the_python_that_was_asked_for(version: str) -> None:
    with Client() as client:
        session = client.structured("python_session_open", python=interpreter(version))["session_id"]
        told = client.execute("import sys\n'%d.%d' % sys.version_info[:2]", session_id=session)
        assert told["value"] == version


def test_every_key_of_the_cases_is_checked() -> None:
    cells = [cell for case in CASES for cell in case["cells"]]
    assert {key for cell in cells for key in cell.get("expect", {}) | cell.get("also", {})} <= CHECKS.keys()
    assert {key for cell in cells for key in cell} <= {
        "code",
        "timeout",
        "reset",
        "expect",
        "also",
        "product_only",
    }
    chosen = {(case["id"], i) for case in CASES for i, cell in enumerate(case["cells"]) if cell.get("product_only")}
    assert chosen == PRODUCT.keys()
