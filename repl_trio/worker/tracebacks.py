"""The text of an error: type, message, and the traceback as far as it concerns the user.

Frames of the worker are left out, neighbouring library frames become one line with their number, user frames keep their
source lines. The layout is the interpreter's own (`traceback.TracebackException`), so causes, contexts, notes, groups,
carets and folded recursion look as everywhere. Everything here runs below the gate: formatting calls the exception's
`__str__`, and suggestions call `__dir__` of the user's objects.

Loaded on the first error (`isolation.isolated_import`), because `traceback` is no light import.
"""

from __future__ import annotations

import ast
import linecache
import os
import tokenize
import traceback
import unicodedata

from . import notebook, origin
from .preview import INTERRUPTS, clip, name_of, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

#: What `traceback` and `linecache` import at the moment they need it: then it would come from the project's folder.
PRELOADED = (ast, linecache, os, tokenize, unicodedata)
#: Bytes of the beginning of an error that are kept when it must be shortened; the end gets the rest.
HEAD = 3_000
#: Innermost frames looked at in one traceback: a raised recursion limit can make a million of them.
FRAMES = 2_000
#: Entries at the beginning and at the end of one traceback that are shown. Functions that call one another without end
#: make a thousand that the interpreter's own folding of equal ones does not meet.
FIRST = 12
LAST = 24
#: Bytes of a class's or module's name.
NAME = 200
#: Exceptions followed along causes, contexts and groups.
EXCEPTIONS = 200

_OURS, _LIBRARY, _USER = range(3)
_trace_of = BaseException.__dict__["__traceback__"].__get__
_plain_name = type.__dict__["__qualname__"].__get__
_plain_module = type.__dict__["__module__"].__get__


class _Frames(list):  # type: ignore[type-arg]
    """The frames of one exception, in runs of user frames (a StackSummary) and of library frames (their number)."""

    def format(self, **_options: Any) -> list[str]:
        """The entries, as `StackSummary.format` gives them; the middle of a long list is left out."""
        entries: list[str] = []
        for piece in self:
            if isinstance(piece, int):
                entries.append(f"  [{piece} library frame{'' if piece == 1 else 's'}]\n")
            else:
                entries += piece.format()
        left_out = len(entries) - FIRST - LAST
        if left_out > 1:
            entries[FIRST:-LAST] = [f"  [{left_out} frames left out]\n"]
        return entries


def _kinds(trace: TracebackType | None) -> list[int]:
    kinds = []
    while trace is not None:
        frame = trace.tb_frame
        if origin.is_ours(frame):
            kinds.append(_OURS)
        elif origin.is_library(frame.f_code.co_filename):
            kinds.append(_LIBRARY)
        else:
            kinds.append(_USER)
        trace = trace.tb_next
    return kinds


def _collapsed(stack: Any, kinds: list[int]) -> _Frames:
    frames = _Frames()
    kinds = kinds[-len(stack) :] if stack else []
    users: list[Any] = []
    hidden = 0
    for entry, kind in zip(stack, kinds):  # noqa: B905 - `strict` would turn a surprise in the interpreter into a lost error
        if kind == _LIBRARY:
            if users:
                frames.append(traceback.StackSummary.from_list(users))
                users = []
            hidden += 1
        elif kind == _USER:
            if hidden:
                frames.append(hidden)
                hidden = 0
            users.append(entry)
    if users:
        frames.append(traceback.StackSummary.from_list(users))
    if hidden:
        frames.append(hidden)
    return frames


def _tidy(report: Any, error: BaseException) -> None:
    """Replace the stacks of a report and of everything it hangs together with."""
    work: list[tuple[Any, BaseException | None]] = [(report, error)]
    left = EXCEPTIONS
    while work and left:
        left -= 1
        report, exception = work.pop()
        if report is None or exception is None or isinstance(report.stack, _Frames):
            continue
        report.stack = _collapsed(report.stack, _kinds(exception.__traceback__))
        work.append((report.__cause__, exception.__cause__))
        work.append((report.__context__, exception.__context__))
        for part, member in zip(getattr(report, "exceptions", None) or (), getattr(exception, "exceptions", ())):  # noqa: B905 - see above
            work.append((part, member))


def exception_text(error: BaseException) -> str:
    """The whole text, unbounded but for the number of frames."""
    try:
        text = _report(error)
    except Exception as failure:  # noqa: BLE001 - whatever the exception's own attributes and methods raise
        return _plain_report(error, failure)
    if type(error) is SyntaxError and origin.is_cell(error.filename or "") and type(error.text) is str:
        text += notebook.hint(error.text)
    elif type(error) is NameError:
        text += notebook.command_hint(error, _trace_of(error))
    return text


def _report(error: BaseException) -> str:
    report = traceback.TracebackException(
        type(error), error, error.__traceback__, limit=-FRAMES, lookup_lines=False, compact=True
    )
    _tidy(report, error)
    return "".join(report.format())


def _plain_report(error: BaseException, failure: BaseException) -> str:
    """Frames, type and arguments' text without asking the exception anything."""
    trace = _trace_of(error)
    frames = _collapsed(traceback.StackSummary.extract(traceback.walk_tb(trace), limit=-FRAMES), _kinds(trace))
    lines = ["Traceback (most recent call last):\n", *frames.format()] if frames else []
    return "".join([*lines, f"{name_of(error)}: (its text cannot be shown: {name_of(failure)})\n"])


def interrupt_text(error: BaseException) -> str:
    """The text of an interrupt that landed in user code, wherever it was."""
    if name_of(error) in INTERRUPTS:
        shown = KeyboardInterrupt().with_traceback(error.__traceback__)
        lines = exception_text(shown).rstrip("\n").rpartition("\n")[0]
        return f"KeyboardInterrupt: interrupted\n{lines}\n" if lines else "KeyboardInterrupt: interrupted\n"
    return f"Interrupted, and the cell then ended with this error:\n{exception_text(error)}"


def bounded(text: str, size: int) -> tuple[str, bool]:
    """(a printable text of at most `size` bytes of UTF-8 that keeps beginning and end, whether it was shortened)."""
    raw = printable(text).encode("utf-8")
    if len(raw) <= size:
        return raw.decode("utf-8"), False
    head = min(HEAD, size // 3)
    marker = f"\n[... {len(raw) - size:,} bytes and a little left out ...]\n"
    tail = size - head - len(marker) - 8
    return raw[:head].decode("utf-8", "ignore") + marker + raw[-tail:].decode("utf-8", "ignore"), True


def type_name(error: BaseException) -> str:
    """The class of an exception, with its module unless that is builtins or the cells' own. No code of its own runs."""
    kind = type(error)
    module, name = _plain_module(kind), clip(printable(_plain_name(kind)), NAME)[0]
    return name if type(module) is not str or module in ("builtins", "__main__") else f"{clip(module, NAME)[0]}.{name}"
