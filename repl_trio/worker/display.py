"""What a cell shows beyond text: the front of `display`, and the `output` frames that carry it.

An item (an image, the whole of a shortened text) travels in parts that follow one another; the parts of two items never
mix, and no interrupt tears one. What an object looks like is decided in `rich`, loaded on first use.
"""

from __future__ import annotations

import _signal
import _thread
import os
import sys

from ..limits import DEFAULT
from . import border, origin, threads
from .gate import interrupts, shielded
from .isolation import isolated_import
from .preview import Preview, asked, clip, name_of, preview, printable
from .shapes import members_of, mro_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _weakref import ref
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from .link import Link

#: Bytes of one part: base64 makes a third more of it, and a frame has a few words beside.
PART = min(491_520, DEFAULT.frame_bytes // 2)
#: Bytes of an item's name.
NAME_BYTES = 100
#: The methods by which a class says that its objects are more than their `repr`.
METHODS = ("_repr_mimebundle_", "_repr_png_", "_repr_jpeg_", "_repr_svg_", "_repr_markdown_", "_repr_html_")
#: By identity, because hashing a class may run its metaclass.
_PLAIN = frozenset(map(id, (int, str, float, bool, bytes, list, tuple, dict, set, type(None))))


def is_rich(value: object) -> bool:
    """Whether the value may look like more than its `repr`. Runs nothing, of a metaclass neither."""
    kind = type(value)
    if id(kind) in _PLAIN:
        return False
    for base in mro_of(kind):
        if base is not object:
            members = members_of(base)
            for name in METHODS:
                if name in members:
                    return True
    return False


class Display:
    """The items of the current run. `display` may be called on any thread; after the run's end it shows nothing."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = _thread.RLock()
        self._sending = False  # an item is on its way; read by its own thread only, which holds the lock
        self._run: str | None = None
        self._items = 0
        self._shown = 0
        #: What figures looked like when this run showed them: one that has not changed is not shown again.
        self.figures: dict[int, tuple[ref[Any], int]] = {}
        #: The threads that were there when the run began, by number. By their objects, as numbers are used again.
        self._older: dict[int, Any] = {}
        self._told = False
        self._encode: Callable[..., bytes] | None = None
        self.front = self._front()

    def _front(self) -> Callable[..., None]:
        def display(*objects: object) -> None:
            """Show objects at this place of the output.

            Images are shown as images: matplotlib and plotly figures, PIL images, PNG, JPEG, GIF or WebP in `bytes`,
            and whatever has `_repr_png_` or the like. A `str` is printed as it is; other objects as their Markdown if
            they have it, else as their repr. Open matplotlib figures are shown at the end of a cell by themselves.
            """
            isolated_import("_repl_trio.worker.rich").show(self, objects)

        return display

    def begin(self, run_id: str) -> None:
        """A run begins: what is shown from here on is its own."""
        self._run = run_id
        self._items = self._shown = 0
        self._told = False
        self.figures.clear()
        if self._older or _thread._count() > 1:
            self._older = threads.active()

    def end(self) -> None:
        """The run ends: an item on its way is finished, later ones are dropped."""
        with self._lock:
            self._run = None

    def value(self, value: object) -> Preview:
        """The preview of the trailing value; what it has beyond text, or beyond the preview's bound, is sent.

        Called outside the gate.
        """
        shown = None
        if is_rich(value):
            shown = self._rich_value(value)
        if shown is None:
            shown = preview(value)
        if shown.cut and shown.interrupt is None:
            interrupt, error, interrupted = asked(isolated_import("_repl_trio.worker.whole").keep, self, value, shown)
            # What is kept is an extra: no failure of it changes the value's own preview.
            shown.interrupt = interrupt or (error if interrupted else None)
        return shown

    def _rich_value(self, value: object) -> Preview | None:
        shown, error, interrupted = asked(isolated_import("_repl_trio.worker.rich").trailing, self, value)
        if not interrupted:
            return shown  # type: ignore[no-any-return]
        made = Preview(f"<{name_of(value)} object; showing it was interrupted>")
        made.interrupt = error
        return made

    def close_figures(self) -> BaseException | None:
        """The end of a cell: show the open figures and close them. The interrupt that landed, or None.

        The figures of a run that was interrupted are closed unseen: drawing them could outlast the grace that it has.
        """
        figures = sys.modules.get("_repl_trio.worker.figures")
        if figures is None or not figures.are_open():
            return None
        if interrupts.landed:
            asked(figures.discard)
            return None
        _none, error, interrupted = asked(figures.flush, self)
        return error if interrupted else None

    def here(self) -> bool:
        """Whether there is a run to show something in, and this is not a child forked by it."""
        return self._run is not None and os.getpid() == self._link.pid and not self._is_older()

    def _is_older(self) -> bool:
        """Whether the thread that asks is a library's that has outlived an earlier run, and not at work for this one.

        No code of a cell's outlives its run; a pool's thread may have been given something to do by this run.
        """
        number = _thread.get_ident()
        if number == interrupts.thread or number not in self._older:
            return False
        if threads.active().get(number) is not self._older[number]:
            return False
        frame: FrameType | None = sys._getframe()
        return not (origin.runs_cell_code(frame) or threads.runs_job(frame))

    def room(self) -> bool:
        """Whether the run may show one more item."""
        return self._shown < DEFAULT.displays

    def first_without_room(self) -> bool:
        """Whether this is the first time in the run that an item has no room: it is told once."""
        told, self._told = self._told, True
        return not told

    @shielded
    def send(self, stream: str, name: str, media_type: str, content: bytes, *, complete: bool = True) -> bool:
        """Send one item whole; False when it cannot be: no run, a forked child, or no room. Raises nothing of its own.

        `stream`: "display", bounded in number by `displays`, or "value", at most one in a run. `complete`: whether
        `content` is all there is.
        """
        if not self.here():
            return False
        with self._lock:
            # A finalizer of the user's may call display() while this very thread is sending, an item or another frame.
            if self._sending or self._link.is_sending():
                return False
            if self._run is None or (stream == "display" and not self.room()):
                return False
            before = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
            self._sending = True
            try:
                # A cell's handler that raises would tear the item, or a frame.
                _signal.pthread_sigmask(_signal.SIG_BLOCK, border.SIGNALS)
                self._items += 1
                self._shown += stream == "display"
                self._send_parts(stream, name, media_type, memoryview(content), complete=complete)
            finally:
                self._sending = False
                _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
        return True

    def _send_parts(self, stream: str, name: str, media_type: str, content: memoryview, *, complete: bool) -> None:
        if self._encode is None:
            self._encode = isolated_import("binascii").b2a_base64
        label, _cut = clip(printable(name), NAME_BYTES)
        for start in range(0, max(1, len(content)), PART):
            last = start + PART >= len(content)
            self._link.send(
                {
                    "frame": "output",
                    "id": self._run,
                    "stream": stream,
                    "item": self._items,
                    "name": label,
                    "media_type": media_type,
                    "data": self._encode(content[start : start + PART], newline=False).decode("ascii"),
                    "last": last,
                    "complete": complete if last else True,
                }
            )
