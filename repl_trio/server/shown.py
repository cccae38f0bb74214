"""What a result says about the artifacts of its run, and the images that go with it."""

from __future__ import annotations

from ..limits import Limits
from ..session.artifacts import Artifacts
from ..session.run import Run
from ..values import Artifact
from ..wire.jsonrpc import Params
from .pictures import HEADER, TRAILER, Dimensions, dimensions, is_shown, is_whole
from .sizes import base64_of, cost, in_words

_SHARE = 6  # of a result: artifacts may take this part of it, the rest of them is only counted


class Shown:
    """The artifacts of one run, as far as a result tells of them.

    `lines` for the text form, `structured` for the other, `blocks` for the images; `cost` is what the first two take on
    the wire.
    """

    __slots__ = ("_images", "_images_bytes", "_limits", "_store", "blocks", "cost", "lines", "structured")

    def __init__(self, run: Run, store: Artifacts, limits: Limits, *, with_images: bool) -> None:
        self.lines: list[str] = []
        self.structured: Params = {}
        self.blocks: list[Params] = []
        self.cost = 0
        self._store = store
        self._limits = limits
        self._images = limits.images if with_images else 0
        self._images_bytes = limits.images_bytes
        self._tell(run)

    def _tell(self, run: Run) -> None:
        """Of what is still kept, and how much is not."""
        kept = [artifact for artifact in run.artifacts if self._store.get(artifact.id) is not None]
        # The whole of what stands in this very result comes first: a crowd of images must not push it out.
        kept.sort(key=lambda artifact: artifact.kind in ("image", "display"))
        entries: list[Params] = []
        images: list[Params] = []
        for artifact in kept:
            entry, image, line = _entry(artifact), None, ""
            if artifact.kind == "image":
                image, line = self._image(artifact, len(images) + 1)
            line = line or _sentence(artifact)
            spent = cost([entry, image, line])
            if self.cost + spent > self._limits.result_bytes // _SHARE:
                break
            self.cost += spent
            entries.append(entry)
            self.lines.append(line)
            if image is not None:
                images.append(image)
            if image is not None and image["shown"]:
                self.blocks.append(block(self._store, artifact))
                self._images_bytes -= artifact.size
        self._count(run, len(kept), len(entries))
        self.structured |= {"artifacts": entries} if entries else {}
        self.structured |= {"images": images} if images else {}

    def _count(self, run: Run, kept: int, told: int) -> None:
        if told < kept:
            self.structured["artifacts_total"] = kept
            self.lines.append(f"[{kept - told} more: artifact_list(session_id={run.session_id!r}) names them]")
        gone = len(run.artifacts) - kept
        if gone:
            self.structured["artifacts_gone"] = gone
            many = f"{gone} artifacts of this run are" if gone > 1 else "1 artifact of this run is"
            self.lines.append(f"[{many} no longer kept: the oldest go first]")

    def _image(self, artifact: Artifact, number: int) -> tuple[Params, str]:
        """The entry of an image and its sentence."""
        picture = look(self._store, artifact, self._limits)
        fits = self._images > len(self.blocks) and artifact.size <= self._images_bytes
        entry: Params = {"artifact_id": artifact.id, "media_type": artifact.media_type, "size": artifact.size}
        if picture.pixels is not None:
            entry |= {"width": picture.pixels[0], "height": picture.pixels[1]}
        entry["shown"] = shown = fits and picture.fault is None
        told = f"image {number}: {picture.words}"
        if shown:
            return entry, f"[{told}]"
        if picture.fault is None:
            return entry, f"[{told}; {_reading(artifact)} shows it]"
        return entry, f"[{told}; not shown: {picture.fault}; {_reading(artifact)} reads its bytes]"


class Picture:
    """What is known of an image: its `pixels` where they are, itself in a few `words`, and why it cannot be shown."""

    __slots__ = ("fault", "pixels", "words")

    def __init__(self, artifact: Artifact, pixels: Dimensions | None, fault: str | None) -> None:
        self.pixels = pixels
        self.fault = fault
        told = f"{pixels[0]}x{pixels[1]}, " if pixels is not None else ""
        self.words = f"{artifact.media_type}, {told}{in_words(artifact.size)}"


def look(store: Artifacts, artifact: Artifact, limits: Limits) -> Picture:
    """Look at both ends of an image."""
    header = store.read(artifact.id, 0, HEADER)
    pixels = dimensions(artifact.media_type, header)
    fault = None
    if not is_shown(artifact.media_type):
        fault = "clients do not show this kind"
    elif not artifact.complete:
        fault = f"its end is not kept ({artifact.fault})"
    elif artifact.size > limits.image_bytes:
        fault = f"the limit image_bytes is {limits.image_bytes}"
    elif pixels is None:
        fault = "its bytes are no such image"
    elif max(pixels) > limits.image_side:
        fault = f"the limit image_side is {limits.image_side}"
    else:
        trailer = store.read(artifact.id, max(0, artifact.size - TRAILER), TRAILER)
        if not is_whole(artifact.media_type, header, trailer, artifact.size):
            fault = "its end is missing"
    return Picture(artifact, pixels, fault)


def block(store: Artifacts, artifact: Artifact) -> Params:
    """An image as a content block."""
    content = store.read(artifact.id, 0, artifact.size)
    return {"type": "image", "data": base64_of(content), "mimeType": artifact.media_type}


def _entry(artifact: Artifact) -> Params:
    return {
        "id": artifact.id,
        "name": artifact.name,
        "kind": artifact.kind,
        "media_type": artifact.media_type,
        "size": artifact.size,
        "complete": artifact.complete,
    }


def _sentence(artifact: Artifact) -> str:
    """What is kept of a stream, a value or something displayed, and how to read it."""
    what = "the value" if artifact.kind == "value" else artifact.name
    kind = "" if artifact.kind == "output" else f" of {artifact.media_type}"
    if not artifact.complete and not artifact.size:
        return f"[{what} could not be kept: {artifact.fault}]"
    if not artifact.complete:
        told = f"the first {artifact.size:,} bytes of {what}: {_reading(artifact)}"
        return f"[{told}; the rest is not kept: {artifact.fault}]"
    told = what if artifact.kind == "display" else f"the whole of {what}"
    return f"[{told}, {artifact.size:,} bytes{kind}: {_reading(artifact)}]"


def _reading(artifact: Artifact) -> str:
    return f"artifact_read(artifact_id={artifact.id!r})"
