"""JSON-RPC envelopes: any bytes are a message or a refusal, and what we write is what the SDK reads."""

from __future__ import annotations

import json
from typing import Any

import mcp_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.wire import jsonrpc
from repl_trio.wire.framing import LineDecoder, Oversized
from repl_trio.wire.jsonrpc import Malformed, Notification, Request, Response, parse

untimed = settings(deadline=None)
LIMIT = 1_000

keys = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "other"])
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["2.0", "1.0", "", "ping", "\ud800"])
)
fields = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
envelopes = st.dictionaries(keys, fields, max_size=6).map(lambda made: {"jsonrpc": "2.0"} | made)
lines = st.binary(max_size=60) | (envelopes | fields).map(lambda made: json.dumps(made).encode())


def message(**fields: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode()


def parsed(line: bytes | Oversized) -> Any:
    return parse(line, LIMIT)


@untimed
@given(st.lists(lines, max_size=5), st.integers(1, 70))
def test_any_bytes_in_any_chunking_give_messages_or_refusals(written: list[bytes], size: int) -> None:
    stream = b"\n".join(written)
    decoder = LineDecoder(LIMIT)
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]
    for line in [line for chunk in chunks for line in decoder.feed(chunk)] + decoder.finish():
        found = parsed(line)
        assert found is None or isinstance(found, Request | Notification | Response | Malformed)
        if isinstance(found, Malformed):
            refusal = jsonrpc.encode_error(found.id, found.code, found.reason)
            mcp_types.JSONRPCError.model_validate(json.loads(refusal))
            assert len(refusal) < 500 + 12 * len(str(found.id))


@untimed
@given(envelopes)
def test_a_message_is_what_the_sdk_takes_for_one(envelope: dict[str, object]) -> None:
    found = parsed(json.dumps(envelope).encode())
    # NaN and Infinity are no JSON, whatever the envelope around them says.
    if isinstance(found, Malformed) and found.code == jsonrpc.PARSE_ERROR:
        assert "NaN" in json.dumps(envelope) or "Infinity" in json.dumps(envelope)
    elif isinstance(found, Request):
        mcp_types.JSONRPCRequest.model_validate({"jsonrpc": "2.0", "id": found.id, "method": found.method})
        assert (found.id, found.method) == (envelope["id"], envelope["method"])
        assert found.params == (envelope.get("params") or {})
    elif isinstance(found, Notification):
        assert "id" not in envelope
        assert found.method == envelope["method"]


@pytest.mark.parametrize("request_id", ["a", "", "\ud800", 0, -1, 2**80, "7"])
def test_an_id_comes_back_as_it_was(request_id: str | int) -> None:
    found = parsed(message(id=request_id, method="ping"))
    assert isinstance(found, Request)
    for line in (jsonrpc.encode_result(found.id, {}), jsonrpc.encode_error(found.id, -1, "no")):
        returned = json.loads(line)["id"]
        assert (returned, type(returned)) == (request_id, type(request_id))


@pytest.mark.parametrize("request_id", [None, True, False, 1.5, 1.0, [1], {"a": 1}])
def test_what_is_no_id_is_refused(request_id: object) -> None:
    found = parsed(message(id=request_id, method="ping"))
    assert (found.code, found.id) == (jsonrpc.INVALID_REQUEST, None)


@pytest.mark.parametrize("line", [b"not json", b"{", b'{"a":1} x', b"\xff\xfe", b'{"id":NaN}', b"\x00", b"[" * 100_000])
def test_bytes_that_are_no_json(line: bytes) -> None:
    found = parsed(line)
    assert (found.code, found.id) == (jsonrpc.PARSE_ERROR, None)
    assert len(found.reason) < 200


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b"[]", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None),
        (b'"x"', None),
        (b"7", None),
        (b"null", None),
        (b'{"jsonrpc":"2.0"}', None),
        (b'{"id":3,"method":"ping"}', 3),
        (b'{"jsonrpc":"1.0","id":"b","method":"ping"}', "b"),
        (b'{"jsonrpc":2.0,"id":3,"method":"ping"}', 3),
        (message(id=4), 4),
        (message(id=4, method=7), 4),
        (message(id=4, method=None), 4),
    ],
)
def test_json_that_is_no_request(line: bytes, request_id: object) -> None:
    found = parsed(line)
    assert (found.code, found.id) == (jsonrpc.INVALID_REQUEST, request_id)


@pytest.mark.parametrize("params", [[], [1], "x", 0, False])
def test_params_that_are_no_object(params: object) -> None:
    found = parsed(message(id=5, method="ping", params=params))
    assert (found.code, found.id) == (jsonrpc.INVALID_PARAMS, 5)
    assert found.reason.startswith("/params")
    # A notification gets no answer, not even that one.
    assert parsed(message(method="n", params=params)).params == {}


@pytest.mark.parametrize("line", [b"", b"  ", b"\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf \r"])
def test_a_blank_line_is_nothing(line: bytes) -> None:
    assert parsed(line) is None


def test_a_byte_order_mark_before_the_first_message_is_skipped() -> None:
    assert parsed(b"\xef\xbb\xbf" + message(id=1, method="ping")).method == "ping"


ERROR = {"code": -1, "message": "no", "data": [1]}


@pytest.mark.parametrize(
    ("outcome", "result", "error"),
    [
        ({"result": {}}, {}, None),
        ({"result": {"a": None}}, {"a": None}, None),
        ({"error": ERROR}, None, ERROR),
        ({"result": None, "error": ERROR}, None, ERROR),
        ({"result": {"a": 1}, "error": None}, {"a": 1}, None),
        ({"method": None, "result": {}}, {}, None),
    ],
)
def test_an_answer_to_us(outcome: dict[str, object], result: object, error: object) -> None:
    found = parsed(message(id="a", **outcome))
    assert isinstance(found, Response)
    assert (found.id, found.result, found.error) == ("a", result, error)


@pytest.mark.parametrize(
    "outcome",
    [
        {"result": None},
        {"result": 7},
        {"result": []},
        {"error": None},
        {"error": {}},
        {"error": {"code": 1}},
        {"error": {"code": "1", "message": "m"}},
        {"error": {"code": True, "message": "m"}},
        {"error": {"code": 1, "message": None}},
    ],
)
def test_an_answer_that_is_none_is_an_error_that_says_so(outcome: dict[str, object]) -> None:
    found = parsed(message(id=1, **outcome))
    assert isinstance(found, Response)
    assert (found.id, found.result) == (1, None)
    mcp_types.ErrorData.model_validate(found.error)
    assert found.error is not None
    assert "neither a result nor a proper error" in str(found.error["message"])


@pytest.mark.parametrize("number", [None, True, 1.5, [1]])
def test_an_answer_without_an_id_has_none(number: object) -> None:
    assert parsed(message(id=number, result={})).id is None
    assert parsed(message(result={})).id is None


def test_null_params_are_none() -> None:
    assert parsed(message(id=1, method="ping", params=None)).params == {}


def test_an_oversized_line_names_both_sizes() -> None:
    found = parsed(Oversized(1_234))
    assert (found.code, found.id) == (jsonrpc.INVALID_REQUEST, None)
    assert "1234" in found.reason
    assert str(LIMIT) in found.reason


# The top level of a result or of params is an object; what is in it can be any JSON.
finite = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | st.integers() | finite | st.text(st.characters(codec=None, exclude_categories=()))
contents = st.dictionaries(st.text(), leaves | st.lists(leaves, max_size=3), max_size=5)


@untimed
@given(contents)
def test_what_we_write_is_one_line_of_ascii(content: dict[str, object]) -> None:
    written = [
        jsonrpc.encode_result(1, content),
        jsonrpc.encode_error(None, -32700, "\ud800 \n \u2028", content),
        jsonrpc.encode_notification("notifications/progress", content),
        jsonrpc.encode_request("ours-1", "sampling/createMessage", content),
    ]
    for line in written:
        assert line.isascii()
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        json.loads(line)
    mcp_types.JSONRPCResponse.model_validate(json.loads(written[0]))
    mcp_types.JSONRPCError.model_validate(json.loads(written[1]))
    mcp_types.JSONRPCNotification.model_validate(json.loads(written[2]))
    mcp_types.JSONRPCRequest.model_validate(json.loads(written[3]))


def test_an_error_has_data_only_when_there_is_some() -> None:
    assert "data" not in json.loads(jsonrpc.encode_error(1, -32601, "no"))["error"]
    assert json.loads(jsonrpc.encode_error(1, -32601, "no", {"a": 1}))["error"]["data"] == {"a": 1}
