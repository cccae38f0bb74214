"""What a worker shows beyond text: the parts of `output` frames, put together into artifacts."""

from __future__ import annotations

import binascii

from ..limits import Limits
from ..values import Artifact
from ..wire.frames import Frame, FrameError
from .artifacts import Artifacts, Draft

DISPLAY = "display"
VALUE = "value"


class Items:
    """The things that one run shows, one after the other, each in parts."""

    def __init__(self, artifacts: Artifacts, run_id: str, limits: Limits) -> None:
        self._artifacts = artifacts
        self._run_id = run_id
        self._most = limits.displays + 1  # and the value
        self._begun = 0
        self._draft: Draft | None = None
        self._head: tuple[object, ...] = ()  # what all parts of the open item have in common

    def take(self, frame: Frame) -> Artifact | None:
        """One part; the artifact when it was the last. Raises `FrameError` for a part that cannot come now."""
        head = (frame["item"], frame["stream"], frame["name"], frame["media_type"])
        if self._draft is None:
            self._draft = self._begin(frame)
            self._head = head
        elif head != self._head:
            raise FrameError("output frame: another item before the end of one")
        try:
            # Strict: what is no base64 is refused and not skipped.
            chunk = binascii.a2b_base64(str(frame["data"]), strict_mode=True)
        except ValueError:
            raise FrameError("output frame: data is no base64") from None
        self._draft.write(chunk)
        if not frame["last"]:
            return None
        draft, self._draft = self._draft, None
        return draft.finish(complete=frame["complete"] is True)

    def discard(self) -> None:
        """The run is over: an item whose end did not come is dropped."""
        if self._draft is not None:
            self._draft.discard()
            self._draft = None

    def _begin(self, frame: Frame) -> Draft:
        if frame["item"] != self._begun + 1 or self._begun >= self._most:
            raise FrameError("output frame: item out of order")
        if frame["stream"] not in (DISPLAY, VALUE):
            raise FrameError("output frame: unknown stream")
        self._begun += 1
        media_type = _media_type(str(frame["media_type"]))
        kind = VALUE if frame["stream"] == VALUE else "image" if media_type.startswith("image/") else DISPLAY
        return self._artifacts.begin(str(frame["name"]), kind, media_type, self._run_id)


def _media_type(text: str) -> str:
    """What user code calls its bytes, if that is a media type at all."""
    kind, slash, rest = text.partition("/")
    fine = kind and slash and rest and len(text) <= 100 and text.isascii() and text.isprintable() and " " not in text
    return text.lower() if fine else "application/octet-stream"
