"""What every line of the server must be: strict JSON, JSON-RPC, MCP of the version in force, true to our schemas.

The judges are the SDK's published models (`mcp_types`) and `jsonschema`; neither is used by the server.
"""

from __future__ import annotations

import base64
import functools
import io
import json
from typing import Any, NoReturn

import jsonschema
import mcp_types
from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from repl_trio.limits import DEFAULT
from repl_trio.server import schemas
from repl_trio.server.tools import tools

Message = dict[str, Any]

MODERN = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"


class Violation(AssertionError):
    """The server said something that it must not say."""


def strict(line: bytes) -> Any:
    """The value of one line of strict JSON: ASCII or UTF-8, no NaN, no repeated key. Raises `Violation`."""
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_constant, object_pairs_hook=_object)
    except ValueError as error:
        raise Violation(f"not JSON ({error}): {line[:500]!r}") from None


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key twice in one object")
    return made


def identity(request_id: object) -> str:
    """An id as a key that keeps 1, 1.0 and "1" apart."""
    return json.dumps(request_id)


class Oracle:
    """Judges one connection. Tell it what was `sent`, then `check` each line that came back, in order.

    `result_bytes` is the bound of text and structuredContent together; None where a test has changed that limit.
    """

    def __init__(self, result_bytes: int | None = DEFAULT.result_bytes) -> None:
        self.version: str | None = None
        self.result_bytes = result_bytes
        self._sent: dict[str, list[tuple[str, Message]]] = {}
        self._opened = False
        self._capabilities: Message = {}
        self._asked: set[str] = set()  # the server's own requests
        self._taken_back: set[str] = set()

    def sent(self, message: object) -> None:
        """Take note of something sent to the server; what is no request changes nothing."""
        if not isinstance(message, dict) or "id" not in message or not isinstance(message.get("method"), str):
            return
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        if not self._opened:
            self._opened = True
            if isinstance(meta, dict) and VERSION_KEY in meta and message["method"] != "initialize":
                self.version = MODERN
        if message["method"] == "initialize" and isinstance(capabilities := params.get("capabilities"), dict):
            self._capabilities = capabilities
        self._sent.setdefault(identity(message["id"]), []).append((message["method"], params))

    def check(self, line: bytes) -> Message:
        """The message in `line` (without its newline). Raises `Violation` when it is not what it must be."""
        message = strict(line)
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise Violation(f"no JSON-RPC message: {line[:500]!r}")
        try:
            if "method" in message and "id" in message:
                self._request(message)
            elif "method" in message:
                self._notification(message)
            elif "error" in message:
                self._error(message)
            else:
                self._result(message)
        except (ValueError, KeyError, jsonschema.ValidationError) as error:
            raise Violation(f"{type(error).__name__}: {error}\n{line[:2_000]!r}") from error
        return message

    def _notification(self, message: Message) -> None:
        _keys(message, {"jsonrpc", "method", "params"})
        mcp_types.JSONRPCNotification.model_validate(message)
        methods.parse_server_notification(message["method"], self._spoken(), message["params"])
        _whole_characters(message)

        if message["method"] == "notifications/cancelled":
            taken_back = identity(message["params"]["requestId"])
            if taken_back not in self._asked or taken_back in self._taken_back:
                raise Violation(f"cancels what was not asked, or twice: {message}")
            self._taken_back.add(taken_back)

    def _request(self, message: Message) -> None:
        """The server asks: something that we said we answer, in the words of the version, under an id of its own."""
        _keys(message, {"jsonrpc", "id", "method", "params"})
        mcp_types.JSONRPCRequest.model_validate(message)
        methods.parse_server_request(message["method"], self._spoken(), message["params"])
        needed = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling"}.get(message["method"], "")
        if needed not in self._capabilities:
            raise Violation(f"asks for what we do not offer: {message['method']}")
        if identity(message["id"]) in self._asked:
            raise Violation(f"an id twice: {message['id']!r}")
        self._asked.add(identity(message["id"]))
        _whole_characters(message)

    def _error(self, message: Message) -> None:
        _keys(message, {"jsonrpc", "id", "error"})
        mcp_types.JSONRPCError.model_validate(message)
        _keys(message["error"], {"code", "message", *(["data"] if "data" in message["error"] else [])})
        if not message["error"]["message"]:
            raise Violation(f"an error without a word: {message}")
        if message["id"] is not None:
            self._take(message)
        _whole_characters(message["error"])

    def _result(self, message: Message) -> None:
        _keys(message, {"jsonrpc", "id", "result"})
        method, params = self._take(message)
        result = message["result"]
        if method == "initialize":
            self.version = result["protocolVersion"]
        methods.validate_server_result(method, self._spoken(), result)
        if method == "tools/call":
            self.check_tool_result(params["name"], result)
        _whole_characters(result)

    def check_tool_result(self, tool: str, result: Message) -> None:
        """One `CallToolResult`: text, structuredContent under the tool's schema, and an honest `isError`."""
        structured = result["structuredContent"]
        output_validators()[tool].validate(structured)
        text, *images = result["content"] or [{}]
        if text.get("type") != "text" or not text["text"]:
            raise Violation("a result without text")
        check_artifacts(tool, structured)
        check_images(structured, images)
        failed = structured.get("success") is False
        if result["isError"] is not failed:
            raise Violation(f"isError is {result['isError']}, success {structured.get('success')}")
        if failed and not structured.get("error_code"):
            raise Violation("a failure without an error_code")
        size = sum(len(json.dumps(part, separators=(",", ":"))) for part in (text, structured))
        if self.result_bytes is not None and size > self.result_bytes:
            raise Violation(f"text and structuredContent have {size} bytes; the limit is {self.result_bytes}")

    def _take(self, message: Message) -> tuple[str, Message]:
        """The request that a message answers; each is answered once."""
        requests = self._sent.get(identity(message["id"]))
        if not requests:
            raise Violation(f"an answer to nothing, or a second one: {str(message)[:500]}")
        return requests.pop(0)

    def _spoken(self) -> str:
        # A client of the handshake era may ping before it initializes; the newest version is then as good as any.
        return self.version or HANDSHAKE_PROTOCOL_VERSIONS[-1]


def check_artifacts(tool: str, structured: Message) -> None:
    """What a run's result says of artifacts: the schema of the tool leaves the form of its entries open."""
    if tool.startswith("artifact_"):
        return
    for key, validator in entry_validators().items():
        for entry in structured.get(key, []):
            validator.validate(entry)
    told = [entry["id"] for entry in structured.get("artifacts", [])]
    if len(set(told)) != len(told):
        raise Violation(f"an artifact twice: {told}")
    if not {image["artifact_id"] for image in structured.get("images", [])} <= set(told):
        raise Violation("an image that is no artifact")


def check_images(structured: Message, blocks: list[Message]) -> None:
    """The image blocks behind the text: real images, in bounds, those that the result says it shows."""
    told = [image for image in structured.get("images", []) if image["shown"]]
    if structured.get("encoding") == "image":
        told = [{"media_type": structured["media_type"], "size": structured["size"]}]
    if len(told) != len(blocks):
        raise Violation(f"{len(blocks)} image blocks, {len(told)} are told of")
    sizes = []
    for image, block in zip(told, blocks, strict=True):
        _keys(block, {"type", "data", "mimeType"})
        content = base64.b64decode(block["data"], validate=True)
        sizes.append(len(content))
        if (block["type"], block["mimeType"], len(content)) != ("image", image["media_type"], image["size"]):
            raise Violation(f"the block {block['type']} {block['mimeType']} of {len(content)} bytes is not {image}")
        width, height = pixels(content, block["mimeType"])
        if (image.get("width", width), image.get("height", height)) != (width, height):
            raise Violation(f"{image} is {width}x{height}")
    if len(sizes) > DEFAULT.images or sum(sizes) > DEFAULT.images_bytes or max(sizes, default=0) > DEFAULT.image_bytes:
        raise Violation(f"images of {sizes} bytes")


def pixels(content: bytes, media_type: str) -> tuple[int, int]:
    """Width and height of an image, decoded by somebody else. Raises `Violation` for what is none."""
    import PIL.Image  # 0.1 s that few tests need

    try:
        with PIL.Image.open(io.BytesIO(content)) as image:
            image.load()
            kind, size = image.get_format_mimetype(), image.size
    except (OSError, ValueError) as error:
        raise Violation(f"no image: {error}") from None
    if kind != media_type:
        raise Violation(f"{kind} is told to be {media_type}")
    return size


@functools.cache
def entry_validators() -> dict[str, jsonschema.Draft202012Validator]:
    """For the entries of a run's result."""
    shapes = {"artifacts": schemas.shape(schemas.ARTIFACT, required=list(schemas.ARTIFACT))}
    needed = [name for name in schemas.IMAGE if name not in ("width", "height")]
    shapes["images"] = schemas.shape(schemas.IMAGE, required=needed)
    return {key: jsonschema.Draft202012Validator(shape) for key, shape in shapes.items()}


@functools.cache
def output_validators() -> dict[str, jsonschema.Draft202012Validator]:
    """The output schema of each tool, itself checked."""
    schemas: dict[str, Any] = {str(tool["name"]): tool["outputSchema"] for tool in tools(DEFAULT)}
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    return {name: jsonschema.Draft202012Validator(schema) for name, schema in schemas.items()}


def _keys(message: Message, expected: set[str]) -> None:
    if set(message) != expected:
        raise Violation(f"keys {sorted(message)}, expected {sorted(expected)}")


def _whole_characters(part: object) -> None:
    """No lone surrogate, which half of the clients' languages cannot hold in a string."""
    try:
        json.dumps(part, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise Violation(f"a lone surrogate: {error.object[max(error.start - 60, 0) : error.end + 60]!r}") from None
