"""What is told about a finished run, and the exit status it stands for."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ..session.generation import Generation
from ..values import CANCELLED, CLEARED, PRESERVED, SYSTEM_EXIT, WORKER_DIED, ExecutionResult

Lines = tuple[tuple[str, str], ...]
"""(`stdout` or `stderr`, text) pairs."""

_NO_TEXT = frozenset({"image", "display"})  # kinds of artifacts; of the others the output or preview is on the terminal
_NO_WORKER = frozenset({"INTERPRETER_BROKEN", "WORKER_START_FAILED"})


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What to write after a run's own output, and the exit status when the run was all there was to do."""

    lines: Lines
    status: int


def of_cell(result: ExecutionResult, _generation: Generation | None = None) -> Conclusion:
    """After a cell: its value on stdout; on stderr its error and what became of the namespace."""
    lines: list[tuple[str, str]] = []
    if result.lost is not None:
        lines.append(("stderr", f"[The namespace is new: the one before was lost. {result.lost}.]"))
    if result.return_value is not None:
        lines.append(("stdout", result.return_value))
    if result.error is not None:
        lines.append(("stderr", result.error))
    for artifact in result.artifacts:
        if artifact.kind in _NO_TEXT:
            told = f"[{artifact.name}: {artifact.media_type}, {artifact.size:,} bytes, which a terminal does not show]"
            lines.append(("stderr", told))
    if result.state == CLEARED and result.error_code not in _NO_WORKER:
        lines.append(("stderr", "[state: cleared. The namespace is gone; the next cell starts in a new one.]"))
    if result.tasks_cancelled:
        told = (
            f"[{result.tasks_cancelled} unfinished task(s), timer(s) or job(s) of the cell were cancelled at its end]"
        )
        lines.append(("stderr", told))
    return Conclusion(tuple(lines), 0 if result.success else 1)


def of_file(result: ExecutionResult, generation: Generation | None) -> Conclusion:
    """After a file: what `python FILE` would say and the status it would exit with."""
    error = result.error or ""
    if result.success:
        return Conclusion((), 0)
    if result.error_code == SYSTEM_EXIT and result.exit_code is not None:
        return Conclusion((), result.exit_code & 0xFF)  # the worker has written what `sys.exit("text")` prints
    if result.error_code == WORKER_DIED and generation is not None:
        return _death(generation)
    if result.error_code in _NO_WORKER:
        return Conclusion((("stderr", f"repl-trio exec: {' '.join(error.split())}"),), 1)
    if result.error_code == CANCELLED and result.state == PRESERVED:
        # The first line speaks of a namespace to go on with; a file has none.
        error = error.partition("\n")[2]
    return Conclusion((("stderr", error),) if error else (), 1)


def _death(generation: Generation) -> Conclusion:
    """The file ended its process past the interpreter: `os._exit`, a signal, a crash in C code."""
    code = generation.guard.exit_code
    if code is not None and code >= 0:
        return Conclusion((), code)
    words = generation.last_words()
    told = f"repl-trio exec: {generation.death}." + (f" It was here:\n{words}" if words else "")
    return Conclusion((("stderr", told),), 1 if code is None else 128 - code)


def of_signal(number: int) -> int:
    """The exit status of a process that was stopped by a signal."""
    return 128 + signal.Signals(number)
