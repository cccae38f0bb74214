"""JSON-RPC 2.0 envelopes: one line of bytes to one message, and back.

Total: any bytes give a message or a `Malformed` that says how to answer; nothing raises on what a client sent.
"""

from __future__ import annotations

from . import jsontext
from .framing import Oversized

RequestId = str | int
Params = dict[str, object]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNSUPPORTED_PROTOCOL_VERSION = -32022


class Request:
    """A call that gets exactly one answer, or none when it is cancelled."""

    __slots__ = ("id", "method", "params")

    def __init__(self, request_id: RequestId, method: str, params: Params) -> None:
        self.id = request_id
        self.method = method
        self.params = params


class Notification:
    """A message that gets no answer."""

    __slots__ = ("method", "params")

    def __init__(self, method: str, params: Params) -> None:
        self.method = method
        self.params = params


class Response:
    """An answer of the client to a request of ours: either its `result` or its `error` (code, message, data), not None.

    One that is neither, or not as it should be, is an error that says so: whoever waits for it need not wait longer.
    """

    __slots__ = ("error", "id", "result")

    def __init__(self, request_id: RequestId | None, result: Params | None, error: Params | None) -> None:
        self.id = request_id
        self.result = result
        self.error = error


class Malformed:
    """Bytes that are no message. `id` is the request's where it could be read, else None."""

    __slots__ = ("code", "id", "reason")

    def __init__(self, code: int, reason: str, request_id: RequestId | None = None) -> None:
        self.code = code
        self.reason = reason
        self.id = request_id


def parse(line: bytes | Oversized, limit: int) -> Request | Notification | Response | Malformed | None:
    """The message in one line; None for a blank one. `limit` is named in the answer to an oversized line."""
    if isinstance(line, Oversized):
        return Malformed(INVALID_REQUEST, f"the message has {line.size} bytes; the limit is {limit}")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return Malformed(PARSE_ERROR, f"the message is not UTF-8 (byte {error.start})")
    # A byte order mark is what Windows tools put in front of the first line.
    text = text.removeprefix("\ufeff")
    if not text or text.isspace():
        return None
    try:
        envelope = jsontext.loads(text)
    except jsontext.NotJSON as error:
        return Malformed(PARSE_ERROR, f"the message is not JSON: {error}")
    if type(envelope) is list:
        return Malformed(INVALID_REQUEST, "batches are not supported: send one message a line")
    if type(envelope) is not dict:
        return Malformed(INVALID_REQUEST, "a message is a JSON object")
    return _message(envelope)


def _message(envelope: dict[str, object]) -> Request | Notification | Response | Malformed:
    request_id = envelope.get("id")
    # type() and not isinstance(): true and false are ints in Python and no ids in JSON-RPC.
    known_id = request_id if type(request_id) is str or type(request_id) is int else None
    if envelope.get("jsonrpc") != "2.0":
        return Malformed(INVALID_REQUEST, 'a message has "jsonrpc": "2.0"', known_id)
    method = envelope.get("method")
    if method is None and ("result" in envelope or "error" in envelope):
        return _response(known_id, envelope.get("result"), envelope.get("error"))
    if type(method) is not str:
        return Malformed(INVALID_REQUEST, "a message has a method, a string", known_id)
    params = envelope.get("params")
    if params is None:
        params = {}
    if type(params) is not dict:
        if "id" not in envelope:
            return Notification(method, {})
        return Malformed(INVALID_PARAMS, "/params: an object is expected", known_id)
    if "id" not in envelope:
        return Notification(method, params)
    if known_id is None:
        return Malformed(INVALID_REQUEST, "an id is a string or a whole number")
    return Request(known_id, method, params)


def _response(request_id: RequestId | None, result: object, error: object) -> Response:
    if type(result) is dict:
        return Response(request_id, result, None)
    if type(error) is not dict or type(error.get("code")) is not int or type(error.get("message")) is not str:
        error = {"code": INTERNAL_ERROR, "message": "the client's answer is neither a result nor a proper error"}
    return Response(request_id, None, error)


def encode_result(request_id: RequestId, result: Params) -> bytes:
    """The line that answers a request."""
    return _line({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: RequestId | None, code: int, message: str, detail: object = None) -> bytes:
    """The line that refuses a request; `detail` becomes the error's `data`."""
    error: Params = {"code": code, "message": message}
    if detail is not None:
        error["data"] = detail
    return _line({"jsonrpc": "2.0", "id": request_id, "error": error})


def encode_request(request_id: RequestId, method: str, params: Params) -> bytes:
    """The line of a request."""
    return _line({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def encode_notification(method: str, params: Params) -> bytes:
    """The line of a notification."""
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def _line(envelope: Params) -> bytes:
    return jsontext.dumps(envelope).encode("ascii") + b"\n"
