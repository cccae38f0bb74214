"""What a session keeps outside the conversation: whole outputs, whole values, images. Bounded, the oldest go first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import UnknownArtifact
from ..limits import Limits
from ..values import Artifact
from .blocks import BLOCK, BlockFile

if TYPE_CHECKING:
    import hashlib

__all__ = ["Artifact", "Artifacts", "Draft", "folders", "label", "unknown"]

_LABEL = 100  # characters of a name or a media type


class Artifacts:
    """The artifacts of one session, on disk in a file without a name.

    At most `limits.artifacts` of them and `limits.artifacts_bytes` bytes; a new one makes room by dropping the oldest
    finished ones. One that the disk or its own bound cuts short is kept as far as it got and is not `complete`.
    """

    def __init__(self, limits: Limits, folders: Sequence[str], next_id: Callable[[], str]) -> None:
        self._limits = limits
        self._next_id = next_id
        self._file = BlockFile(max(1, limits.artifacts_bytes // BLOCK), folders)
        self._finished: OrderedDict[str, tuple[Artifact, list[int]]] = OrderedDict()
        self._closed = False

    def begin(self, name: str, kind: str, media_type: str, run_id: str = "") -> Draft:
        """A new artifact to be written. It takes no place in `all` before it is finished."""
        return Draft(self, name, kind, media_type, run_id)

    def all(self) -> tuple[Artifact, ...]:
        """The finished ones, oldest first."""
        return tuple(artifact for artifact, _ in self._finished.values())

    def get(self, artifact_id: str) -> Artifact | None:
        """A finished artifact that is still kept, else None."""
        found = self._finished.get(artifact_id)
        return found[0] if found is not None else None

    def read(self, artifact_id: str, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on, empty at the end. Raises `UnknownArtifact`."""
        found = self._finished.get(artifact_id)
        if found is None:
            raise unknown(artifact_id, self._limits)
        artifact, blocks = found
        end = min(offset + size, artifact.size)
        parts = []
        while offset < end:
            block, start = divmod(offset, BLOCK)
            part = self._file.read(blocks[block], start, min(BLOCK - start, end - offset))
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Drop everything. Drafts that are still written to keep nothing. Idempotent."""
        self._closed = True
        self._finished.clear()
        self._file.close()

    # -- for drafts --------------------------------------------------------------------------------------------

    def _take_block(self) -> int | None:
        """A block to write to, for which the oldest may have to go; None when there is nothing to be had."""
        while self._file.full and self._finished:
            self._drop_oldest()
        return self._file.take()

    def _drop_oldest(self) -> None:
        self._file.give_back(self._finished.popitem(last=False)[1][1])

    def _keep(self, artifact: Artifact, blocks: list[int]) -> None:
        if self._closed:
            return
        while len(self._finished) >= self._limits.artifacts:
            self._drop_oldest()
        self._finished[artifact.id] = (artifact, blocks)


class Draft:
    """An artifact that is being written. Ends with `finish` or `discard`; afterwards nothing is taken any more."""

    def __init__(self, artifacts: Artifacts, name: str, kind: str, media_type: str, run_id: str) -> None:
        self.name = label(name) or kind
        self.kind = kind
        self.media_type = media_type
        self._artifacts = artifacts
        self._run_id = run_id
        self._blocks: list[int] = []
        self._size = 0
        self._fault = ""  # why the rest is not kept
        self._ended = False
        self._digest = _sha256()

    def write(self, chunk: bytes) -> None:
        """Append bytes. Never raises: what finds no room is dropped, and the artifact is then not complete."""
        if self._fault or self._ended:
            return
        limit = self._artifacts._limits.artifact_bytes
        rest = memoryview(chunk)[: limit - self._size]
        if len(rest) < len(chunk):
            self._fault = f"the limit artifact_bytes is {limit}"
        while rest:
            written = self._write_part(rest)
            if not written:
                break
            self._digest.update(rest[:written])
            self._size += written
            rest = rest[written:]

    def finish(self, *, complete: bool = True) -> Artifact:
        """The end: what was kept, for everybody to read. `complete` False: its writer has left out the rest."""
        if not complete:
            self._fault = self._fault or "it was too large to be sent whole"
        artifact = Artifact(
            id=self._artifacts._next_id(),
            name=self.name,
            kind=self.kind,
            media_type=self.media_type,
            size=self._size,
            sha256=self._digest.hexdigest(),
            created=time.time(),
            complete=not self._fault,
            run_id=self._run_id,
            fault=self._fault,
        )
        if not self._ended:
            self._ended = True
            self._artifacts._keep(artifact, self._blocks)
        return artifact

    def discard(self) -> None:
        """The end of one that will never be whole: nothing of it is kept."""
        if not self._ended:
            self._ended = True
            self._artifacts._file.give_back(self._blocks)

    def _write_part(self, rest: memoryview) -> int:
        """Write what fits into one block; 0 when nothing more can be kept."""
        file = self._artifacts._file
        start = self._size % BLOCK
        if not start and len(self._blocks) * BLOCK == self._size:
            block = self._artifacts._take_block()
            if block is None:
                limit = self._artifacts._limits.artifacts_bytes
                room = f"the limit artifacts_bytes is {limit}" if file.full else file.fault
                self._fault = "its session was closed" if self._artifacts._closed else room
                return 0
            self._blocks.append(block)
        part = rest[: BLOCK - start]
        written = file.write(self._blocks[-1], start, part)
        if written < len(part):
            self._fault = file.fault
        return written


def unknown(artifact_id: str, limits: Limits) -> UnknownArtifact:
    """The error for an id that names nothing that is kept."""
    return UnknownArtifact(
        f"There is no artifact {artifact_id[:80]!r}. A session keeps at most {limits.artifacts} artifacts and "
        f"{limits.artifacts_bytes} bytes, the oldest go first, and none outlives its session. artifact_list names what "
        "is kept; running the cell again makes it anew."
    )


def folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where temporary files may go, the best place first."""
    asked = environment.get("TMPDIR")
    return ((asked,) if asked else ()) + ("/tmp", "/var/tmp")


def label(text: str) -> str:
    """A name on one line, bounded and printable, for sentences and lists."""
    line = " ".join(text[: 2 * _LABEL].encode("utf-8", "replace").decode("utf-8").split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:_LABEL]


def _sha256() -> hashlib._Hash:
    import hashlib  # an idle server needs none

    return hashlib.sha256(usedforsecurity=False)
