"""The result of a run, as its frame has it."""

from __future__ import annotations

import sys

from ..limits import DEFAULT
from . import gate
from .exact import exact_json
from .isolation import isolated_import, with_standard_path
from .preview import INTERRUPTS, clip, name_of, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeGuard

    from ..wire.frames import Frame
    from .display import Display

#: Names of background tasks and threads in a result, and bytes of each: a session may keep thousands.
NAMES = 100
NAME_BYTES = 100

_code_of: Callable[[SystemExit], object] = SystemExit.__dict__["code"].__get__


class Result:
    """The result frame of one run, as it comes together."""

    def __init__(self, run_id: str) -> None:
        self._id = run_id
        self.error: str | None = None
        self._error_type: str | None = None
        self._return: str | None = None
        self._value: Any = None
        self._has_value = False
        self._keep = True
        self._exit_code: int | None = None
        self._truncated_return = False
        self._truncated_error = False
        self.tasks_cancelled = 0
        self.background_tasks: list[str] = []
        self.background_threads: list[str] = []

    def show(self, value: object, display: Display) -> None:
        """Take the value of the trailing expression."""
        shown = display.value(value)
        self._return, self._truncated_return = shown.text, shown.cut
        if shown.interrupt is not None:
            self.fail(shown.interrupt)
            return
        self._has_value, self._value = exact_json(value)

    def fail(self, error: BaseException) -> None:
        """Take the exception that ended the run."""
        text, failure = gate.outcome_of(_describe, error)
        if failure is not None and (not gate.interrupts.landed or name_of(error) in INTERRUPTS):
            # A module of the user's that shadows one of `traceback`'s is a common reason; out of sight it does no harm.
            # Or a second interrupt fell into the text of the first, which has no code of the user's.
            text, failure = gate.outcome_of(with_standard_path, _describe, error)
        if failure is not None:
            # Formatting runs the exception's own methods; when those fail or are interrupted its class must do.
            text = name_of(error), f"{name_of(error)}: (its text cannot be shown: {name_of(failure)})", False
        self._error_type, self.error, self._truncated_error = text
        if is_exit(error):
            self._exit_code = _exit_code(error)

    def leave(self, error: SystemExit) -> None:
        """Take the `SystemExit` of a script: status 0 is success, anything but a number goes to stderr."""
        status = _exit_code(error)
        code = _code_of(error)
        if code is not None and type(code) is not int:
            gate.outcome_of(_to_stderr, code)
        if status == 0:
            self._exit_code = status
        else:
            self.fail(error)

    def clear(self, reason: str) -> None:
        """The worker cannot be trusted with another cell, for this reason."""
        self._keep = False
        self.error = f"{self.error.rstrip()}\n\n{reason}" if self.error is not None else reason
        self._error_type = self._error_type or "RuntimeError"

    def exit_status(self) -> int:
        """What a child process that ends like this run exits with."""
        if self._exit_code is not None:
            return self._exit_code & 0xFF
        return 0 if self.error is None else 1

    def frame(self) -> Frame:
        """The frame. Every part of it is bounded, so the whole stays far below the frame limit."""
        return {
            "frame": "result",
            "id": self._id,
            "success": self.error is None,
            "return_value": self._return,
            "value": self._value,
            "has_value": self._has_value,
            "error": self.error,
            "error_type": self._error_type,
            "interrupted": gate.interrupts.landed,
            "keep": self._keep,
            "exit_code": self._exit_code,
            "truncated_return": self._truncated_return,
            "truncated_error": self._truncated_error,
            "tasks_cancelled": self.tasks_cancelled,
            "background_tasks": _names(self.background_tasks),
            "background_threads": _names(self.background_threads),
        }


def _names(names: list[str]) -> list[str]:
    return [clip(printable(str(name)), NAME_BYTES)[0] for name in names[:NAMES]]


def _describe(error: BaseException) -> tuple[str, str, bool]:
    tracebacks = isolated_import("_repl_trio.worker.tracebacks")
    text = tracebacks.interrupt_text(error) if gate.interrupts.landed else tracebacks.exception_text(error)
    shown, cut = tracebacks.bounded(text, DEFAULT.error_bytes)
    return tracebacks.type_name(error), shown.rstrip("\n"), cut


def _to_stderr(message: object) -> None:
    print(message, file=sys.stderr)


def is_exit(error: BaseException | None) -> TypeGuard[SystemExit]:
    """Whether it is a `SystemExit`, without a look at attributes that the cell may have made."""
    # Of an exception's own attributes even `__class__` may raise; `isinstance` looks at that.
    return issubclass(type(error), SystemExit)


def _exit_code(error: SystemExit) -> int:
    code = _code_of(error)
    if code is None:
        return 0
    # As the kernel sees it; an int of any size would not fit into a frame.
    return code & 0xFF if type(code) is int else 1
