"""The tools of a peer as Python functions in a cell: signatures, docstrings, and schemas of any shape."""

import sys
from pathlib import Path

import pytest

from tests.process.rpc_driver import RpcDriver, text, value
from tests.process.worker_driver import EACH, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="drives workers through pidfds")


@pytest.mark.parametrize("version", EACH)
def test_a_stub_has_true_signatures_and_sends_what_it_is_given(version: str, tmp_path: Path) -> None:
    with RpcDriver(interpreter(version), tmp_path) as worker:
        worker.ready()
        worker.cell("import inspect; files = mcp.stub('files')")
        shown = "(path: str, *, max_lines: int | None = 10, class_: Literal['text', 'binary'] = ...)"
        told = value(worker.cell("str(inspect.signature(files.read_file))"))
        assert told.replace("typing.", "").replace("Optional[int]", "int | None") == shown
        assert value(worker.cell("files.read_file('p').data")) == {"path": "p"}
        sent = value(worker.cell("files.read_file(path='p', max_lines=None, class_='text').data"))
        assert sent == {"path": "p", "max-lines": None, "class": "text"}
        assert value(worker.cell("(await files.read_file.acall('p')).data")) == {"path": "p"}
        assert value(worker.cell("files._2nd(anything=1).data")) == {"anything": 1}
        assert worker.asked[-1]["params"]["tool"] == "2nd"
        assert "read_file is read-file" in value(worker.cell("files.__doc__"))
        assert "sent as 'max-lines'" in value(worker.cell("files.read_file.__doc__"))
        assert "missing a required argument: 'path'; it is read_file(path" in worker.cell("files.read_file()").error
        assert "there are: read_file, _2nd" in worker.cell("files.nope").error


def test_a_stub_tells_what_objects_inside_arguments_hold_and_what_it_has_not(plain: RpcDriver) -> None:
    line = {"type": "object", "properties": {"sku": {"type": "string"}, "n": {"default": 1}}, "required": ["sku"]}
    lines = {"type": "array", "items": {"$ref": "#/$defs/line"}}
    to = {"anyOf": [{"$ref": "#/$defs/line"}, {"type": "null"}], "description": "Where to"}
    itself = {"type": "object", "properties": {"again": {"$ref": "#/$defs/of"}}}
    asked = {"lines": lines, "to": to, "of": {"$ref": "#/$defs/of"}}
    schema = {"properties": asked, "$defs": {"line": line, "of": itself}}
    tool = {"name": "order", "description": "Order it.\nNow.", "inputSchema": schema, "outputSchema": line}
    plain.reply = lambda _frame: {"tools": [tool], "invalid": [], "note": "not granted: drop"}
    doc = value(plain.cell("s = mcp.stub('s'); s.order.__doc__"))
    assert "\n    lines: list[{sku: str, n: Any = 1}]\n" in doc
    assert "\n    to: {sku: str, n: Any = 1} | None; Where to\n" in doc
    assert "\n    of: {again: {again: {again: " in doc
    assert doc.endswith("Its .data: {sku: str, n: Any = 1}")
    shown = plain.cell("s").return_value
    assert "= ...) - Order it.\n" in shown
    assert shown.endswith("\nnot granted: drop")
    assert value(plain.cell("dir(s)")) == ["order"]
    assert plain.cell("s.drop").error.endswith("there are: order; not granted: drop")
    assert "mcp.call('s', 'order', timeout=...) sets a time limit" in plain.cell("s.order(timeout=3)").error


def test_a_schema_made_to_take_long_takes_no_time(plain: RpcDriver) -> None:
    found: dict[str, object] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 12} for n in range(8)}
    slow = {"$defs": found | {"d8": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}
    names = [f"p{number}" for number in range(15_000)]
    many = {"properties": dict.fromkeys(names, True), "required": [f"q{name}" for name in names]}
    tools = [{"name": "slow", "inputSchema": slow}, {"name": "many", "inputSchema": many}]
    tools += [{"name": "a" + "-+*"[n % 3] + "/.:"[n // 3 % 3] * (n // 9), "inputSchema": {}} for n in range(300)]
    plain.reply = lambda _frame: {"tools": tools, "invalid": [], "note": None}
    # Minutes and more, if each member of each level were looked at.
    assert value(plain.cell("import time; t = time.process_time(); s = mcp.stub('s'); time.process_time() - t < 5"))


def test_names_that_collide_get_numbers_and_schemas_of_any_shape_are_taken(plain: RpcDriver) -> None:
    schemas: list[object] = [
        True,
        None,
        {"type": "object", "properties": {"a b": {}, "a-b": True, "a_b": {"$ref": "#/nowhere"}, "²": {"type": 7}}},
        {"properties": {"x": {"$ref": "#/properties/x"}, "more": {"anyOf": []}, "self": {"enum": []}}, "required": 3},
        {"properties": [], "additionalProperties": {"type": "string"}},
        {"properties": {"l": {"type": "array", "items": {"oneOf": [{"type": "string"}, {"const": 3}]}}}},
    ]
    tools = [{"name": f"t{'-_'[i % 2]}x" if i < 2 else f"t{i}", "inputSchema": s} for i, s in enumerate(schemas)]
    plain.reply = lambda frame: (
        {"tools": tools, "invalid": [], "note": None}
        if frame["op"] == "tools"
        else text("", structuredContent=frame["params"])
    )
    plain.cell("import inspect; s = mcp.stub('s'); names = s.__dir__()")
    run = plain.cell("[n + str(inspect.signature(getattr(s, n))) for n in names]")
    assert value(run) == [
        "t_x_2(**more)",
        "t_x(**more)",
        "t2(*, a_b_2: Any = ..., a_b_3: Any = ..., a_b: Any = ..., _: Any = ...)",
        "t3(*, x: Any = ..., more_: Any = ..., self: Any = ...)",
        "t4(**more)",
        "t5(*, l: list[typing.Union[str, typing.Literal[3]]] = ...)",
    ]
    assert value(plain.cell("s.t2(a_b_2=1, a_b_3=2, a_b=3).data['arguments']")) == {"a b": 1, "a-b": 2, "a_b": 3}
    assert value(plain.cell("s.t3(self=1, more_=2).data['arguments']")) == {"self": 1, "more": 2}
