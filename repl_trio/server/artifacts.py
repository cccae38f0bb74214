"""The tools `artifact_list` and `artifact_read`."""

from __future__ import annotations

import time

from ..limits import Limits
from ..session.artifacts import Artifacts, unknown
from ..session.cuts import CHARACTER, length_of, until_boundary, until_line
from ..session.sessions import Sessions
from ..values import Artifact
from ..wire.jsonrpc import Params
from ..wire.mcp import Call
from .arguments import BadArguments
from .content import Reply
from .shown import block, look
from .sizes import FRAMEWORK, base64_of, cost, within

TEXT = "text"
BASE64 = "base64"
IMAGE = "image"  # the encoding that only a reply can have: an image as a content block

_TEXTS = ("application/json", "image/svg+xml")


def listed(sessions: Sessions, limits: Limits, call: Call) -> Reply:
    """The artifacts of one session, oldest first; when a result cannot hold them all, the newest."""
    session = sessions.get(_optional(call, "session_id"))
    artifacts = session.artifacts.all()
    newest = within([_described(artifact) for artifact in reversed(artifacts)], limits.result_bytes * 2 // 5)
    shown = artifacts[len(artifacts) - len(newest) :]
    size = sum(artifact.size for artifact in artifacts)
    structured: Params = {
        "session_id": session.id,
        "artifacts": newest[::-1],
        "artifacts_total": len(artifacts),
        "bytes": size,
    }
    lines = [f"Session {session.id} keeps {len(artifacts)} artifact(s), {size:,} bytes."]
    if len(shown) < len(artifacts):
        lines.append(f"The {len(artifacts) - len(shown)} oldest do not fit into this reply.")
    lines += [_line(artifact) for artifact in shown]
    return Reply("\n".join(lines), structured)


def read(sessions: Sessions, limits: Limits, call: Call) -> Reply:
    """A part of an artifact, or the whole of an image as such. Raises `BadArguments` and `UnknownArtifact`."""
    store, artifact = _find(sessions, limits, call)
    given = call.arguments
    if artifact.kind == IMAGE and not given.keys() & {"offset", "length", "encoding"}:
        picture = look(store, artifact, limits)
        if picture.fault is None:
            return _image(store, artifact, f"[{artifact.name}: {picture.words}]")
    offset = _whole(given.get("offset"), 0)
    if offset > artifact.size:
        raise BadArguments("/params/arguments/offset", f"is beyond the {artifact.size} bytes of this artifact")
    encoding = str(given.get("encoding") or _natural(artifact.media_type))
    room = (limits.result_bytes - FRAMEWORK) // 2
    asked = _whole(given.get("length"), limits.artifact_read)
    while True:
        piece = _piece(store, artifact, offset, asked, encoding)
        told = piece.decode("utf-8", "replace") if encoding == TEXT else base64_of(piece)
        spent = cost(told)
        if spent <= room or asked <= CHARACTER:
            return _part(artifact, offset, len(piece), encoding, told)
        # Escapes make it longer than its bytes: ask for less, by what was too much.
        asked = max(min(asked * room // spent, asked - 64), CHARACTER)


def _find(sessions: Sessions, limits: Limits, call: Call) -> tuple[Artifacts, Artifact]:
    """The artifact a call names; its id alone is enough, in whichever session it is."""
    artifact_id = str(call.arguments["artifact_id"])
    named = _optional(call, "session_id")
    for session in sessions.all if named is None else (sessions.get(named),):
        artifact = session.artifacts.get(artifact_id)
        if artifact is not None:
            return session.artifacts, artifact
    raise unknown(artifact_id, limits)


def _image(store: Artifacts, artifact: Artifact, text: str) -> Reply:
    structured = _range(artifact, 0, artifact.size) | {"encoding": IMAGE, "media_type": artifact.media_type}
    reply = Reply(text, structured)
    reply.images = [block(store, artifact)]
    return reply


def _piece(store: Artifacts, artifact: Artifact, offset: int, asked: int, encoding: str) -> bytes:
    """At most `asked` bytes; text ends between two lines or characters, and a single character is never split."""
    if encoding != TEXT:
        # Whole groups of base64, so that the pages of a client can be joined as they are.
        return store.read(artifact.id, offset, asked - asked % 3 or asked)
    piece = store.read(artifact.id, offset, max(asked, CHARACTER))
    if len(piece) <= asked and offset + len(piece) == artifact.size:
        return piece
    return until_line(piece[:asked]) or until_boundary(piece[:asked]) or _first_character(piece)


def _first_character(piece: bytes) -> bytes:
    return piece[: length_of(piece[0])]


def _part(artifact: Artifact, offset: int, length: int, encoding: str, told: str) -> Reply:
    structured = _range(artifact, offset, length) | {"encoding": encoding, "data": told}
    end = offset + length
    text = told if not told or told.endswith("\n") else f"{told}\n"
    if end < artifact.size:
        how = f"artifact_read(artifact_id={artifact.id!r}, offset={end}) goes on"
        text += f"[bytes {offset:,} to {end:,} of {artifact.size:,}; {how}]"
    elif not artifact.complete:
        text += f"[the rest is not kept: {artifact.fault}]"
    else:
        text = told
    return Reply(text or "[Nothing follows: this is the end of the artifact.]", structured)


def _range(artifact: Artifact, offset: int, length: int) -> Params:
    end = offset + length
    return {
        "artifact_id": artifact.id,
        "offset": offset,
        "length": length,
        "size": artifact.size,
        "next": end if end < artifact.size else None,
    }


def _natural(media_type: str) -> str:
    return TEXT if media_type.startswith("text/") or media_type in _TEXTS else BASE64


def _described(artifact: Artifact) -> Params:
    described: Params = {
        "id": artifact.id,
        "name": artifact.name,
        "kind": artifact.kind,
        "media_type": artifact.media_type,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "created": _moment(artifact.created),
        "complete": artifact.complete,
    }
    return described | ({"run_id": artifact.run_id} if artifact.run_id else {})


def _line(artifact: Artifact) -> str:
    cut = "" if artifact.complete else ", not complete"
    return (
        f"{artifact.id} {artifact.name}: {artifact.kind}, {artifact.media_type}, {artifact.size:,} bytes{cut}, "
        f"{artifact.run_id}, {_moment(artifact.created)}"
    )


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _optional(call: Call, name: str) -> str | None:
    given = call.arguments.get(name)
    return given if isinstance(given, str) else None


def _whole(value: object, default: int) -> int:
    """A number from checked arguments; JavaScript clients send whole ones as 3.0, too."""
    return int(value) if isinstance(value, int | float) else default
