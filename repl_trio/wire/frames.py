"""The frames between server and worker: strict, versioned, one JSON object a line (`docs/wire.md`, contract v1).

Both ends use this module: the server to encode `execute` and `shutdown` and to decode what the worker says, the worker
the other way round. A frame is a plain dict with the key `frame` naming its kind; every other key is listed in the
tables below with its type. A missing key, an unknown key or a wrong type is a `FrameError`: the link is then broken and
the worker is ended, because two programs that disagree about their protocol cannot agree about the state.
"""

from __future__ import annotations

from . import jsontext

VERSION = 1

EXIT_PROTOCOL = 70
"""Exit status of a worker that got a frame which breaks the contract."""
EXIT_LINK_CLOSED = 71
"""Exit status of a worker whose descriptors were closed under it, by a cell."""

Frame = dict[str, object]


class FrameError(ValueError):
    """A frame that breaks the contract. Says which kind and key, never the content."""


Kinds = dict[str, dict[str, tuple[type, ...]]]

_NONE = type(None)
_TEXT = (str,)
_TEXT_OR_NONE = (str, _NONE)
_WHOLE = (int,)
_FLAG = (bool,)
_SECONDS = (float, int)
_OBJECT = (dict,)
_ANY = (object,)

#: Server -> worker: frame kind -> key -> accepted types.
TO_WORKER: Kinds = {
    "execute": {
        "id": _TEXT,  # the run
        "code": _TEXT_OR_NONE,  # the cell's source; None when `path` names a file
        "path": _TEXT_OR_NONE,  # a file to run as `__main__` instead of `code`
        "argv": (list, _NONE),  # sys.argv[1:] while it runs
    },
    "inspect": {
        "id": _TEXT,  # comes back in `namespace`; answered at once, also while a cell runs
    },
    "rpc_result": {
        "id": _WHOLE,  # of the `rpc`
        "result": _TEXT_OR_NONE,  # JSON text of the answer; None when there is an error
        "error": (dict, _NONE),  # code, message, sent, server, tool and artifact, as `docs/wire.md` says
    },
    "shutdown": {},
}

#: Worker -> server.
FROM_WORKER: Kinds = {
    "ready": {
        "version": _WHOLE,  # of this contract
        "pid": _WHOLE,
        "python_version": _TEXT,
        "executable": _TEXT,
        "prefix": _TEXT,
    },
    "refused": {
        "reason": _TEXT,  # why this interpreter cannot be a worker
    },
    "namespace": {
        "id": _TEXT,  # of the `inspect`
        "names": (list,),  # [name, type] pairs, the newest last, bounded
        "total": _WHOLE,
    },
    "output": {
        "id": _TEXT,  # of the run
        "stream": _TEXT,  # display: something shown; value: the whole of a trailing value whose preview is shortened
        "item": _WHOLE,  # number of the thing within the run, from 1; its frames follow one another
        "name": _TEXT,  # a label
        "media_type": _TEXT,
        "data": _TEXT,  # base64 of the next bytes of the thing
        "last": _FLAG,  # whether these are the last
        "complete": _FLAG,  # with the last: False when the worker has left out the rest, for its size
    },
    "rpc": {
        "id": _WHOLE,  # unique in the life of the worker
        "run_id": _TEXT,  # the run that asks
        "op": _TEXT,
        "params": _OBJECT,
    },
    "rpc_cancel": {
        "id": _WHOLE,  # of an `rpc` that nobody waits for any more; no `rpc_result` need follow
        "run_id": _TEXT,
    },
    "result": {
        "id": _TEXT,
        "success": _FLAG,
        "return_value": _TEXT_OR_NONE,
        "value": _ANY,  # the exact JSON equal of the trailing value, meaningful when has_value
        "has_value": _FLAG,
        "error": _TEXT_OR_NONE,
        "error_type": _TEXT_OR_NONE,  # qualified name of the exception's class
        "interrupted": _FLAG,  # an interrupt landed in user code during this run
        "keep": _FLAG,  # False: the worker cannot be trusted with another cell and must be cleared
        "exit_code": (int, _NONE),  # of SystemExit
        "truncated_return": _FLAG,
        "truncated_error": _FLAG,
        "tasks_cancelled": _WHOLE,
        "background_tasks": (list,),
        "background_threads": (list,),
    },
}


def encode(frame: Frame, limit: int) -> bytes:
    """One line of bytes. Raises `FrameError` when it would exceed `limit` bytes or is no JSON."""
    try:
        line = jsontext.dumps(frame).encode("ascii")
    except (TypeError, ValueError) as error:
        raise FrameError(f"{frame.get('frame')} frame: {error}") from None
    if len(line) >= limit:
        raise FrameError(f"{frame.get('frame')} frame of {len(line)} bytes; the limit is {limit}")
    return line + b"\n"


def decode(line: bytes, kinds: Kinds) -> Frame:
    """The frame in one line (without its newline), checked against `kinds` (`TO_WORKER` or `FROM_WORKER`)."""
    try:
        frame = jsontext.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise FrameError("not UTF-8") from None
    except jsontext.NotJSON as error:
        raise FrameError(str(error)) from None
    if type(frame) is not dict:
        raise FrameError("a frame is an object")
    kind = frame.get("frame")
    keys = kinds.get(kind) if type(kind) is str else None
    if keys is None:
        raise FrameError("unknown frame kind")
    if len(frame) != len(keys) + 1:
        strange = sorted(set(frame) ^ {*keys, "frame"})
        raise FrameError(f"{kind} frame: missing or unknown keys {', '.join(strange)[:200]}")
    for key, types in keys.items():
        if key not in frame:
            raise FrameError(f"{kind} frame: no {key}")
        if types is not _ANY and type(frame[key]) not in types:
            raise FrameError(f"{kind} frame: {key} has a wrong type")
    return frame
