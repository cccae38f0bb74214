"""What the calls of `mcp` return and raise, and how Python values become JSON for them. Loaded on first use."""

from __future__ import annotations

import time

from ..limits import DEFAULT
from ..wire import jsontext
from .isolation import isolated_import
from .preview import INT_BITS, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

#: Characters of a string of base64 that a repr shows none of, and of a tool's own words in an error.
LONG = 200
SHOWN = 2_000
#: What is said of a call by what the server knows of it, where the message does not say it already.
_ENDINGS = {
    "no": ("not sent", "The call was not sent."),
    "done": ("is done", "The call itself is done."),
    "unknown": (
        "outcome unknown",
        "Outcome unknown: the call was sent and may have had its effect. It is not sent again; look before you do.",
    ),
}


class Envelope(dict[str, "Any"]):
    """The complete result of a tool, as the peer sent it: a `dict`, every block and unknown key kept.

        r = mcp.call("git", "git_log", repo_path=".")
        r.text                      # the text of all text blocks, joined by newlines
        r.data                      # r["structuredContent"], or None; `"structuredContent" in r` tells null from absent
        r.json()                    # r.text parsed as JSON
        r.blobs                     # images, sounds and binary resources: [("image/png", b"..."), ...]
        display(r.blobs[0][1])      # shows an image
        r["content"]                # the blocks: [{"type": "text", "text": ...}, {"type": "image", "data": ...}, ...]
        r.get("_meta"), r.get("isError", False)

    Awaiting it gives itself, so `await mcp.call(...)` works as well.
    """

    @property
    def text(self) -> str:
        """The text of all text blocks and embedded text resources, joined by newlines."""
        return text_of(self)

    @property
    def data(self) -> Any:
        """`structuredContent`, None where there is none."""
        return self.get("structuredContent")

    @property
    def blobs(self) -> list[tuple[str, bytes]]:
        """Media type and bytes of each image, sound and binary resource, in order. Raises ValueError for no base64."""
        return blobs_of(self)

    def json(self) -> Any:
        """The text parsed as JSON. Raises ValueError."""
        return jsontext.loads(self.text)

    def __await__(self) -> Generator[Any, None, Envelope]:
        return _itself(self).__await__()

    def __repr__(self) -> str:
        return repr(_shortened(dict(self)))


async def _itself(envelope: Envelope) -> Envelope:
    return envelope


class Error(Exception):
    """A call through `mcp` that has no result.

    `server`, `tool`, and `sent`: "no" (the peer was not asked to act), "done" (it answered) or "unknown" (it may have
    acted). `artifact`: the id of what was too large to be handed over, else None. `code` is stable:

    nothing was sent             UNKNOWN_SERVER UNKNOWN_TOOL BAD_ARGUMENTS NOT_GRANTED CONFIG_FAULT CONNECT_FAILED
                                 CATALOGUE_FAULT JOURNAL_UNAVAILABLE OUTSIDE_RUN; mcp.explain(server) tells more
    `sent` tells                 PEER_GONE CALL_TIMEOUT CALL_CANCELLED LIMIT_REACHED UNSUPPORTED
    the peer has answered        PROTOCOL_ERROR, its own or one that cannot be read; TOOL_ERROR of mcp.ToolError
    """

    code = "INTERNAL_ERROR"
    sent = "no"
    server: str | None = None
    tool: str | None = None
    artifact: str | None = None

    def __init__(self, message: str, **more: str | None) -> None:
        super().__init__(message)
        vars(self).update(more)

    def __reduce__(self) -> Any:
        return (type(self), self.args, vars(self))


class ToolError(Error):
    """The tool itself answered with an error (`isError`). `result` is its complete `Envelope`."""

    code = "TOOL_ERROR"
    sent = "done"
    result: Envelope


Envelope.__module__ = Error.__module__ = ToolError.__module__ = "__main__"
# Where a cell finds them.
Envelope.__qualname__, Error.__qualname__, ToolError.__qualname__ = "mcp.Envelope", "mcp.Error", "mcp.ToolError"


class Told(str):
    """A text that a trailing expression shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


class Listing(list["Any"]):
    """A list of definitions, complete as the peer sent them, whose repr is a line for each.

    `invalid`: sentences about definitions of the peer that cannot be used. `note`: what else there is to say, or None.
    `templates`: of a list of resources, the templates.
    """

    def __init__(self, items: list[Any], lines: list[str], invalid: Any = (), note: str | None = None) -> None:
        super().__init__(items)
        self._lines = lines
        self.invalid: list[str] = list(invalid)
        self.note = note
        self.templates: list[Any] = []

    def __repr__(self) -> str:
        if len(self) + len(self.templates) != len(self._lines):
            # A cell has changed the list.
            return list.__repr__(self)
        more = [*self.invalid, *([self.note] if self.note else [])]
        return "\n".join([*self._lines, *more]) or "[]"


class Facts(dict[str, "Any"]):
    """A dict whose repr is a line for each item that says something."""

    def __repr__(self) -> str:
        said = {key: value for key, value in self.items() if value is not None and value != []}
        return "\n".join(f"{key}: {words(value)}" for key, value in said.items()) or "{}"


def words(value: Any) -> str:
    """The state of a server, or any other value, in words; the further lines of a text stand below its first."""
    if isinstance(value, dict) and "state" in value and "tools" in value:
        count = "" if value["tools"] is None else f", {value['tools']} tool{'' if value['tools'] == 1 else 's'}"
        value = f"{value['state']}{count}{': ' + value['reason'] if value['reason'] else ''}"
    if not isinstance(value, str):
        return repr(value)
    text = value.rstrip()
    # Mostly what a peer has logged, of which the end tells most.
    text = text if len(text) <= SHOWN else f"[{len(text) - SHOWN:,} characters before] ...{text[-SHOWN:]}"
    return text.replace("\n", "\n    ")


def line(definition: dict[str, Any], key: str) -> str:
    """The name of a definition and the first line of what it says of itself."""
    said = definition.get("description") or definition.get("title") or ""
    first = str(said).strip().partition("\n")[0][:120]
    return f"{definition.get(key)} - {first}" if first else str(definition.get(key))


def prompt_line(prompt: dict[str, Any]) -> str:
    """A prompt as its call, and what it says of itself. Whatever shape the peer has sent."""
    listed = prompt.get("arguments")
    arguments = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    shown = [f"{one.get('name')}" if one.get("required") is True else f"{one.get('name')}=..." for one in arguments]
    return line({**prompt, "name": f"{prompt.get('name')}({', '.join(shown)})"}, "name")


def record_line(one: dict[str, Any]) -> str:
    """A record of the journal."""
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["started"]))
    took = "" if one["finished"] is None else f" after {one['finished'] - one['started']:.3f} s"
    return f"{one['id']}: {started} {one['server']}.{one['tool']} {one['status']}{took} ({one['run_id']})"


def text_of(envelope: Any) -> str:
    """The texts of a result, joined by newlines: of blocks, of embedded resources, of a resource, of a prompt."""
    return "\n".join(text for text in map(_block_text, _blocks(envelope)) if text is not None)


def blobs_of(envelope: Any) -> list[tuple[str, bytes]]:
    """The binary blocks of a result, decoded. Raises ValueError."""
    # A light module of C, which `base64` wraps.
    decode = isolated_import("binascii").a2b_base64
    found = []
    for block in _blocks(envelope):
        held = block.get("resource") if isinstance(block, dict) and block.get("type") == "resource" else block
        if not isinstance(held, dict):
            continue
        text = held.get("blob", held.get("data"))
        if isinstance(text, str):
            found.append((str(held.get("mimeType") or "application/octet-stream"), decode(text)))
    return found


def _blocks(envelope: Any) -> list[Any]:
    blocks: list[Any] = []
    for key in ("content", "contents", "messages"):
        found = envelope.get(key)
        blocks += found if isinstance(found, list) else ()
    # The messages of a prompt hold one block each.
    return [block["content"] if isinstance(block, dict) and "role" in block else block for block in blocks]


def _block_text(block: Any) -> str | None:
    if not isinstance(block, dict):
        return None
    resource = block.get("resource")
    if block.get("type") == "resource" and isinstance(resource, dict):
        block = resource
    elif block.get("type", "text") != "text":
        return None
    text = block.get("text")
    return text if isinstance(text, str) else None


def _shortened(value: Any) -> Any:
    """The value without its long runs of base64, for a repr."""
    if isinstance(value, dict):
        return {
            key: _Base64(len(item))
            if key in ("data", "blob") and isinstance(item, str) and len(item) > LONG and " " not in item[:LONG]
            else _shortened(item)
            for key, item in value.items()
        }
    return [_shortened(item) for item in value] if isinstance(value, list) else value


class _Base64:
    """Stands in a repr where a long string is."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __repr__(self) -> str:
        return f"<{self._length:,} characters>"


def checked(answer: dict[str, Any], server: str, tool: str) -> Envelope:
    """The envelope of a call's answer; raises `ToolError` when it is that of an error."""
    envelope = Envelope(answer)
    if envelope.get("isError") is not True:
        return envelope
    words = envelope.text.strip()[:SHOWN] or "the tool reports an error and says nothing about it"
    error = ToolError(f"{server}.{tool}: {words}", server=server, tool=tool)
    error.result = envelope
    raise error


def failed(op: str, error: dict[str, Any]) -> Error:
    """The exception for the error of an `rpc_result`."""
    message = error["message"].rstrip()
    known, sentence = _ENDINGS.get(error["sent"], ("", ""))
    if error["sent"] == "done" and error["code"] != "LIMIT_REACHED":
        # The message is the peer's answer.
        known = ""
    if op == "call" and known and known not in message.lower():
        # What a peer has written on stderr ends without a full stop, and must not run into ours.
        message = f"{message}\n{sentence}" if "\n" in message else f"{message.rstrip('.')}. {sentence}"
    names = ".".join(name for name in (error["server"], error["tool"]) if name)
    said = {word.strip("'\"`.,:;()") for word in message.split()}
    if names and said.isdisjoint((error["server"], names)):
        message = f"{names}: {message}"
    return Error(message, **{key: value for key, value in error.items() if key != "message"})


def refused(code: str, message: str) -> Error:
    """The exception for what the worker does not even ask."""
    return Error(message, code=code)


def plain(value: Any, place: str = "", depth: int = 0) -> Any:
    """The JSON equal of an argument: dicts with str keys, lists, tuples, str, int, finite float, bool and None.

    Raises `Error`, with a JSON pointer to the place and never the value.
    """
    if value is None or isinstance(value, bool):
        return value
    if depth > DEFAULT.schema_depth:
        raise _bad(place[:LONG], f"is nested deeper than {DEFAULT.schema_depth} levels")
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, int):
        number = int(value)
        if number.bit_length() > INT_BITS:
            raise _bad(place, f"is an integer of {number.bit_length():,} bits; give it as a str")
        return number
    if isinstance(value, float):
        if value - value != 0.0:
            raise _bad(place, "is NaN or infinite, which JSON has not")
        return float(value)
    if isinstance(value, dict):
        return {_key(key, place): plain(item, f"{place}/{_token(key)}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{place}/{index}", depth + 1) for index, item in enumerate(value)]
    raise _bad(place, f"is of type {name_of(value)}, which is no JSON value; convert it (str, list, dict, int, float)")


def _text(text: str, place: str) -> str:
    text = str.__str__(text)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _bad(place, "holds a lone surrogate, which has no UTF-8 form") from None
    return text


def _key(key: Any, place: str) -> str:
    if not isinstance(key, str):
        raise _bad(place, f"has a key of type {name_of(key)}; JSON keys are str")
    return _text(key, place)


def _token(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _bad(place: str, what: str) -> Error:
    return refused("BAD_ARGUMENTS", f"The value at {place or 'the top'} of the arguments {what}. Not sent.")
