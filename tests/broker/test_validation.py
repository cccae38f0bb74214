"""Arguments are checked before anything is sent: here when that is quick, by the judge when it is not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from repl_trio.broker.tools.findings import Finding, Verdict
from repl_trio.broker.tools.judge import Judge
from repl_trio.broker.tools.validation import Validation
from repl_trio.errors import BrokerError
from repl_trio.limits import Limits

LIMITS = Limits()
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["title"],
}


class FakeJudge:
    """Gives the verdict that it holds, and remembers what it was asked."""

    def __init__(self, answer: Verdict | BrokerError = Verdict()) -> None:  # noqa: B008 - frozen
        self.answer = answer
        self.asked: list[tuple[object, str, object]] = []

    async def verdict(self, schema: object, dialect: str, arguments: object) -> Verdict:
        self.asked.append((schema, dialect, arguments))
        if isinstance(self.answer, BrokerError):
            raise self.answer
        return self.answer


async def check(schema: object, arguments: dict[str, object], judge: FakeJudge | None = None) -> str:
    return await Validation(LIMITS, cast(Judge, judge or FakeJudge())).check(schema, arguments, "tracker", "open")


async def refused(schema: object, arguments: dict[str, object], judge: FakeJudge | None = None) -> BrokerError:
    with pytest.raises(BrokerError) as raised:
        await check(schema, arguments, judge)
    assert (raised.value.sent, raised.value.server, raised.value.tool) == ("no", "tracker", "open")
    return raised.value


async def test_arguments_that_fit_are_nobodys_business() -> None:
    judge = FakeJudge()
    assert await check(SCHEMA, {"title": "x"}, judge) == ""
    assert judge.asked == []


async def test_arguments_that_do_not_fit() -> None:
    error = await refused(SCHEMA, {"n": "my-secret"})
    assert error.code == "BAD_ARGUMENTS"
    assert error.message == (
        "the arguments do not fit open of tracker: /n must be of type integer (rule type); the object lacks 'title' "
        "(rule required). It takes open(title: str, n: int = None)"
    )


@pytest.mark.parametrize("schema", [True, {}, {"type": "object"}])
async def test_a_schema_that_asks_for_nothing(schema: object) -> None:
    assert await check(schema, {"anything": [1, {"at": "all"}]}) == ""


@pytest.mark.parametrize("schema", [None, [], {"type": "any"}, {"properties": {"required": ["x"]}}, {"$ref": "#/gone"}])
async def test_a_broken_schema_is_no_reason_to_refuse(schema: object) -> None:
    note = await check(schema, {"x": 1})
    assert note.startswith("the arguments were not checked, because the schema of open is broken: ")


async def test_a_reference_to_elsewhere_is_refused() -> None:
    judge = FakeJudge(Verdict(outside="https://example.org/s"))
    error = await refused({"$ref": "https://example.org/s"}, {}, judge)
    assert error.code == "CATALOGUE_FAULT"
    assert "https://example.org/s, which is not in it; nothing is fetched" in error.message


async def test_patterns_are_the_judges() -> None:
    schema = {"properties": {"a": {"pattern": "^(a+)+$"}}}
    judge = FakeJudge(Verdict((Finding("/a", "pattern", "must match"),)))
    error = await refused(schema, {"a": "x"}, judge)
    assert (error.code, judge.asked) == ("BAD_ARGUMENTS", [(schema, "2020-12", {"a": "x"})])
    assert "/a must match (rule pattern)" in error.message


async def test_what_takes_too_many_steps_is_the_judges() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    judge = FakeJudge()
    assert await check(schema, {"a": [1] * 10}, judge) == ""
    assert judge.asked == []
    assert await check(schema, {"a": [1] * 10_000}, judge) == ""
    assert len(judge.asked) == 1


async def test_a_judge_without_a_verdict() -> None:
    judge = FakeJudge(BrokerError("LIMIT_REACHED", "too long"))
    error = await refused({"patternProperties": {}}, {}, judge)
    assert (error.code, error.message) == ("LIMIT_REACHED", "open of tracker: too long")


@pytest.mark.parametrize(
    ("schema", "arguments", "limit"),
    [
        ({"enum": [1, 2, 3]}, {}, "schema_nodes"),
        ({"title": "x" * 100}, {}, "schema_bytes"),
        ({}, {"a": [1, 2, 3]}, "argument_nodes"),
        ({}, {"a": [[[[1]]]]}, "schema_depth"),
    ],
)
async def test_bounds(schema: object, arguments: dict[str, object], limit: str) -> None:
    numbers = {"schema_nodes": "4", "schema_bytes": "90", "argument_nodes": "4", "schema_depth": "3"}
    if limit == "schema_depth":
        numbers["argument_nodes"] = "40"
    validation = Validation(Limits.overridden(numbers), cast(Judge, FakeJudge()))
    with pytest.raises(BrokerError, match=f"open of tracker: .*the limit {limit} is") as raised:
        await validation.check(schema, arguments, "tracker", "open")
    assert raised.value.code == "LIMIT_REACHED"


async def test_arguments_that_are_not_json() -> None:
    error = await refused(SCHEMA, {"title": {1}})
    assert (error.code, error.message) == ("BAD_ARGUMENTS", "open of tracker: the arguments are not JSON")


async def test_schemas_are_read_once_and_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    validation = Validation(LIMITS, cast(Judge, FakeJudge()))
    for _ in range(3):
        await validation.check(dict(SCHEMA), {"title": "x"}, "tracker", "open")
    assert len(validation._known) == 1
    monkeypatch.setattr("repl_trio.broker.tools.validation._KEPT", 200)
    for number in range(50):
        schema: Any = {"title": f"number {number}", "minProperties": 1}
        assert (await refused_by(validation, schema)).code == "BAD_ARGUMENTS"
    assert len(validation._known) <= 5
    assert validation._kept == sum(map(len, validation._known))


async def refused_by(validation: Validation, schema: object) -> BrokerError:
    with pytest.raises(BrokerError) as raised:
        await validation.check(schema, {}, "tracker", "open")
    return raised.value


async def test_no_thread_is_a_refusal_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl_trio.broker.tools.validation._Library.verdict", None)

    async def no_thread(*_arguments: object) -> object:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("trio.to_thread.run_sync", no_thread)
    error = await refused(SCHEMA, {"title": "x"})
    assert error.code == "LIMIT_REACHED"
