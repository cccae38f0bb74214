"""The forms of an object that is more than its `repr`: an image, Markdown, HTML.

Everything here runs below the gate: it calls methods of the user's objects. What they raise becomes a note and the next
form is taken; what is no form of the kind asked for is passed over. Only exceptions that are no `Exception` go on, an
interrupt above all.

Loaded on first use (`isolation.isolated_import`).
"""

from __future__ import annotations

import binascii
import sys

from ..limits import DEFAULT
from . import figures, plots
from .display import is_rich
from .preview import Preview, clip, name_of, one_line, preview, printable
from .shapes import member_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .display import Display

#: Kinds of images as they begin: every client knows these four.
SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
SVG = "image/svg+xml"
#: The method that gives each kind; the first image found is the one that is shown.
IMAGE_METHODS = (("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_svg_", SVG))
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif", SVG)
_object_repr = object.__repr__


class Item:
    """Something for a frame."""

    def __init__(self, name: str, media_type: str, content: bytes) -> None:
        self.name = name
        self.media_type = media_type
        self.content = content


class Forms:
    """What an object looks like."""

    def __init__(self) -> None:
        #: An image, or the whole of a document that the text only names.
        self.item: Item | None = None
        #: Text in place of the `repr`, when the object has one that is better, and its media type.
        self.document: str | None = None
        self.document_type = "text/markdown"
        #: HTML, for want of a `repr` that says anything.
        self.html: str | None = None
        #: One line each: what went wrong.
        self.notes: list[str] = []
        #: The image says all there is.
        self.silent = False


def image_type(content: bytes) -> str | None:
    """The media type of an image by its first bytes, None for anything else."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    for signature, media_type in SIGNATURES:
        if content.startswith(signature):
            return media_type
    return None


def forms_of(value: object, display: Display) -> Forms:
    """The forms of any value but a `str`."""
    forms = Forms()
    kind = type(value)
    if kind is bytes and image_type(value[:12]):  # type: ignore[index]
        _take_image(forms, value, "", "bytes")
    elif figures.is_figure(value):
        content = figures.content_of(value, display, forms.notes)
        if content is not None:
            forms.item, forms.silent = Item(figures.label_of(value), "image/png", content), True
    elif plots.is_plot(value):
        forms.document, content, media_type = plots.forms_of(value, forms.notes)
        forms.document_type = "text/plain"
        if content is not None:
            forms.item, forms.silent = Item(name_of(value), media_type, content), media_type == "image/png"
    elif is_rich(value):
        _ask(forms, value)
    return forms


def _ask(forms: Forms, value: object) -> None:
    """Ask an object's own methods, the dearest last."""
    bundle = _bundle(value, forms.notes)
    for media_type in IMAGE_TYPES:
        if forms.item is None and media_type in bundle:
            _take_image(forms, bundle[media_type], media_type, name_of(value))
    for method, media_type in IMAGE_METHODS:
        if forms.item is None:
            _take_image(forms, _called(value, method, forms.notes), media_type, name_of(value))
    if forms.silent:
        return
    forms.document = _text(bundle.get("text/markdown")) or _text(_called(value, "_repr_markdown_", forms.notes))
    if forms.document is None and member_of(type(value), "__repr__") is _object_repr:
        forms.document, forms.document_type = _text(bundle.get("text/plain")), "text/plain"
    if forms.document is None:
        forms.html = _text(bundle.get("text/html"))


def _bundle(value: object, notes: list[str]) -> dict[str, Any]:
    given = _called(value, "_repr_mimebundle_", notes, include=None, exclude=None)
    if not issubclass(type(given), dict):
        return {}
    return {key: form for key, form in dict.items(given) if type(key) is str}


def _called(value: object, method: str, notes: list[str], **named: object) -> Any:
    """What the method gives, without the metadata that may come with it. None when there is none, or it fails."""
    kind = type(value)
    found = member_of(kind, method)
    if found is None:
        return None
    try:
        # As the interpreter looks up its own special methods: past the object.
        bind = member_of(type(found), "__get__")
        given = (found if bind is None else bind(found, value, kind))(**named)
    except Exception as error:  # noqa: BLE001 - a form that fails is passed over, and said to be
        notes.append(f"<{name_of(value)} object; its {method} failed: {one_line(error)}>")
        return None
    return given[0] if type(given) is tuple and len(given) == 2 else given


def _text(given: object) -> str | None:
    # `type`, because `isinstance` believes what an object says of its class.
    return str.__str__(given) if issubclass(type(given), str) and str.__len__(given) else None  # type: ignore[arg-type]


def _take_image(forms: Forms, given: object, media_type: str, name: str) -> None:
    """Take an image as it was given: bytes, base64 text, or the text of an SVG."""
    content: bytes | None = None
    if media_type == SVG:
        text = given.decode("utf-8", "replace") if type(given) is bytes else _text(given)
        content = printable(text).encode() if text and "<svg" in text else None
    elif issubclass(type(given), (bytes, bytearray, memoryview)):
        content = bytes(memoryview(given))  # type: ignore[arg-type]
    elif (text := _text(given)) is not None:
        try:
            content = binascii.a2b_base64(text)
        except ValueError:
            content = None
    if content is None:
        return
    if media_type != SVG:
        # A client may refuse a whole conversation for an image that is not what it is said to be.
        found = image_type(content)
        if found is None:
            forms.notes.append(f"<{name} object; what it gave as {media_type} is none>")
            return
        media_type = found
        forms.silent = True
    forms.item = Item(name, media_type, content)


def _uninformative(value: object, text: str) -> bool:
    """Whether a repr says no more than the class's name."""
    if member_of(type(value), "__repr__") is _object_repr:
        return True
    return text.startswith("<") and "\n" not in text and (text.endswith(" object>") or " object at 0x" in text)


def text_of(value: object, forms: Forms) -> Preview:
    """The text of an object within `preview_bytes`: Markdown or HTML source, else its repr. Raises its interrupt."""
    if forms.document is None:
        shown = preview(value)
        if shown.interrupt is not None:
            raise shown.interrupt
        if forms.silent or not _uninformative(value, shown.text):
            return shown
        if forms.html is None:
            forms.html = _text(_called(value, "_repr_html_", forms.notes))
        if forms.html is None:
            return shown
        forms.document, forms.document_type = forms.html, "text/html"
    # More characters than bytes that fit need not be looked at.
    text, cut = clip(printable(forms.document[: DEFAULT.preview_bytes + 1]), DEFAULT.preview_bytes)
    return Preview(text, cut=cut)


def no_room(display: Display, notes: list[str]) -> None:
    """Note that nothing more can be shown, once in a run: an exception would end the loop that shows too much."""
    if display.here() and display.first_without_room():
        notes.append(f"<display: a run shows at most {DEFAULT.displays} images and documents; the rest is left out>")


def send(display: Display, item: Item, notes: list[str]) -> bool:
    """Send an item of the current run; a reason why that cannot be is noted, once in a run for want of room."""
    size = len(item.content)
    if size > DEFAULT.artifact_bytes:
        notes.append(
            f"<{item.name}: {item.media_type} of {size:,} bytes; artifact_bytes allows {DEFAULT.artifact_bytes:,}>"
        )
        return False
    if not display.room():
        no_room(display, notes)
        return False
    return display.send("display", item.name, item.media_type, item.content)


def _send_document(display: Display, value: object, forms: Forms) -> None:
    """Send the whole of a text that had to be cut."""
    content = printable(forms.document or "").encode()
    send(display, Item(name_of(value), forms.document_type, content), forms.notes)


def _lines(display: Display, value: object) -> Iterator[str]:
    """Send what an object has beyond text: its text and notes, to be printed."""
    # Where nothing can be shown, in a forked child or after the run, an image is its repr.
    forms = forms_of(value, display) if display.here() else Forms()
    sent = forms.item is not None and send(display, forms.item, forms.notes)
    # That there is no room for an image is said once; thousands of reprs in its place would help nobody.
    if not forms.silent or (not sent and display.room()):
        shown = text_of(value, forms)
        yield f"{shown.text}..." if shown.cut and forms.document is not None else shown.text
        if shown.cut and forms.document is not None:
            _send_document(display, value, forms)
    yield from forms.notes


def show(display: Display, objects: tuple[object, ...]) -> None:
    """`display(*objects)`."""
    for value in objects:
        # No bound for a str: it is printed like any other, and the server bounds what is printed.
        for line in (value,) if type(value) is str else _lines(display, value):
            print(line, file=sys.stdout)


def trailing(display: Display, value: object) -> Preview:
    """Send what the trailing value has beyond text: its text, with the notes."""
    forms = forms_of(value, display)
    if forms.item is not None:
        send(display, forms.item, forms.notes)
    figures.retire(value)
    shown = text_of(value, forms)
    if forms.document is not None and shown.cut:
        _send_document(display, value, forms)
    if forms.notes:
        shown.text, cut = clip("\n".join((shown.text, *forms.notes)), DEFAULT.preview_bytes)
        shown.cut = shown.cut or cut
    return shown
