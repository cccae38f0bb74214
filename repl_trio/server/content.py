"""Results as a client gets them: text blocks and structuredContent, each enough to act on, together in bounds.

Both carry the output, so what one of them may take is a little less than half of `result_bytes`. When everything does
not fit, the error and the end of stdout come first; the rest is read with `python_run(after=...)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ReplError
from ..limits import Limits
from ..session.capture import Capture
from ..session.run import Run
from ..values import CLEARED, ExecutionResult
from ..wire.jsonrpc import Params
from .shown import Shown
from .sizes import FRAMEWORK, cost

_NAMES = 1_500  # bytes of JSON for the names of background tasks, and of threads
_FEW = 1_000  # characters that fit in any case, even with every one escaped to 12 bytes


class Reply:
    """What answers a call: text for the content block, structuredContent, and whether it is an error.

    `images` are the content blocks behind the text.
    """

    __slots__ = ("images", "is_error", "structured", "text")

    def __init__(self, text: str, structured: Params, *, is_error: bool = False) -> None:
        self.text = text
        self.structured = structured
        self.is_error = is_error
        self.images: list[Params] = []


def refusal(error: ReplError, session_id: str | None = None, *, run_shaped: bool = False) -> Reply:
    """The reply for a call that was not carried out."""
    structured: Params = {"success": False, "error": error.message, "error_code": error.code}
    if run_shaped:
        structured["status"] = "refused"
        if session_id is not None:
            structured["session_id"] = session_id
        if error.run_id is not None:
            structured["run_id"] = error.run_id
        if error.state is not None:
            structured["state"] = error.state
    return Reply(f"{error.code}: {error.message}", structured, is_error=True)


def started(run: Run, generation: int) -> Reply:
    """The reply of `python_start`, and of `execute_python` when its `wait` is over."""
    structured = _identity(run, generation) | {"poll_tool": "python_run", "cancel_tool": "python_cancel"}
    text = (
        f"Run {run.id} is {run.status} in session {run.session_id}. Read it with python_run(run_id={run.id!r}, "
        f"wait=...), stop it with python_cancel(run_id={run.id!r})."
    )
    return Reply(text, structured)


def progress(run: Run, generation: int, after: str | None, limits: Limits) -> Reply:
    """The reply of `python_run` for an active run: its output since the cursor `after`."""
    stdout, stderr, cursor = _page(run, after, _room(None, limits))
    structured = _identity(run, generation) | {"stdout": stdout, "stderr": stderr, "next": cursor}
    head = f"Run {run.id} is {run.status} ({run.elapsed_ms / 1000:.1f} s). Go on with after={cursor!r}."
    return Reply(_join([head, *_output_parts(stdout, stderr)]), structured)


def finished(run: Run, limits: Limits, after: str | None = None) -> Reply:
    """The reply for a finished run; with a cursor, its output from there on, the rest only if short."""
    result = run.result
    assert result is not None
    # Images come with the result and not with every further page of its output.
    shown = None
    if run.artifacts and run.store is not None:
        shown = Shown(run, run.store, limits, with_images=after is None)
    taken = shown.cost if shown is not None else 0
    if after is None:
        fitted = _fit(run, result, limits, taken)
    else:
        fitted = _fit_page(run, result, after, _room(result, limits, taken))
    structured = _structured(run, fitted, result)
    if shown is None:
        return Reply(_text(fitted, result, []), structured, is_error=not result.success)
    reply = Reply(_text(fitted, result, shown.lines), structured | shown.structured, is_error=not result.success)
    reply.images = shown.blocks
    return reply


def check_cursor(after: str) -> bool:
    """Whether `after` is a cursor that a reply could have carried."""
    return _offsets(after) is not None


# -- fitting ---------------------------------------------------------------------------------------------------


class _Fitted:
    """The parts of one result, as long as they may be."""

    __slots__ = ("cut", "error", "error_cut", "more", "return_cut", "return_value", "stderr", "stdout", "with_value")

    def __init__(self, result: ExecutionResult) -> None:
        self.stdout = ""
        self.stderr = ""
        self.cut = (False, False)
        self.more: str | None = None
        self.error = _clean(result.error)
        self.error_cut = result.truncated_error
        self.return_value = _clean(result.return_value)
        self.return_cut = result.truncated_return
        self.with_value = result.has_value


def _clean(text: str | None) -> str | None:
    """Text without lone surrogates, which many clients' JSON cannot hold: they are shown as escapes."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _fit(run: Run, result: ExecutionResult, limits: Limits, taken: int) -> _Fitted:
    fitted = _Fitted(result)
    names = sum(map(len, result.background_tasks + result.background_threads))
    texts = len(fitted.return_value or "") + len(fitted.error or "")
    if texts + names + run.stdout.total + run.stderr.total <= _FEW and not (fitted.with_value and texts > _FEW):
        fitted.stdout, fitted.stderr = run.stdout.render()[0], run.stderr.render()[0]
        return fitted
    room = _fit_parts(fitted, result, _room(result, limits, taken), 55, 40)
    fitted.stderr, stderr_gap = _render(run.stderr, room * 30 // 100)
    fitted.stdout, stdout_gap = _render(run.stdout, room - cost(fitted.stderr))
    fitted.cut = (stdout_gap is not None, stderr_gap is not None)
    if stdout_gap is not None or stderr_gap is not None:
        fitted.more = _cursor(
            run.stdout.total if stdout_gap is None else stdout_gap,
            run.stderr.total if stderr_gap is None else stderr_gap,
        )
    return fitted


def _fit_page(run: Run, result: ExecutionResult, after: str, room: int) -> _Fitted:
    fitted = _Fitted(result)
    room = _fit_parts(fitted, result, room, 15, 10)
    fitted.stdout, fitted.stderr, cursor = _page(run, after, room)
    if cursor != _cursor(run.stdout.total, run.stderr.total):
        fitted.more = cursor
    return fitted


def _room(result: ExecutionResult | None, limits: Limits, taken: int = 0) -> int:
    """Bytes of JSON that parts which stand in both forms may take together, when `taken` bytes go to something else."""
    others = 0
    if result is not None:
        others = cost(_few(result.background_tasks) + _few(result.background_threads)) + 2 * cost(_steps(result))
    return (limits.result_bytes - FRAMEWORK - others - taken) // 2


def _few(names: Sequence[str]) -> list[str]:
    """The first names, as far as they are worth their bytes."""
    kept: list[str] = []
    for name in names:
        if cost([*kept, name]) > _NAMES:
            break
        kept.append(name)
    return kept


def _fit_parts(fitted: _Fitted, result: ExecutionResult, room: int, error_share: int, value_share: int) -> int:
    """Shorten error, preview and value to their shares (in percent of what is left); the room that remains."""
    if fitted.error is not None:
        fitted.error, cut = _shorten(fitted.error, room * error_share // 100)
        fitted.error_cut |= cut
        room -= cost(fitted.error)
    if fitted.return_value is not None:
        fitted.return_value, cut = _shorten(fitted.return_value, room * value_share // 100)
        fitted.return_cut |= cut
        room -= cost(fitted.return_value)
    if fitted.with_value:
        # The value stands once where the parts stand twice.
        spent = cost(result.value) // 2
        fitted.with_value = spent <= room * value_share // 100
        room -= spent if fitted.with_value else 0
    return room


def _render(capture: Capture, room: int) -> tuple[str, int | None]:
    """A capture's text whose JSON takes at most `room` bytes, and where it has its gap."""
    asked = room
    while True:
        text, gap = capture.render(max(asked, 0))
        spent = cost(text)
        if spent <= room or asked <= 0:
            return text, gap
        # Escapes make it longer than its bytes: ask for less, by what was too much.
        asked = min(asked * room // spent, asked - 64)


def _shorten(text: str, room: int) -> tuple[str, bool]:
    """`text` cut in its middle so that its JSON takes at most `room` bytes, and whether it was cut."""
    if len(text) * 12 <= room or cost(text) <= room:
        return text, False
    kept = len(text)
    while True:
        kept = min(kept * room // max(cost(text[:kept]), 1), kept - 64)
        if kept <= 0:
            return "", True
        first = kept // 3
        shorter = (
            f"{text[:first]}\n[... {len(text) - kept} characters not shown ...]\n{text[len(text) - (kept - first) :]}"
        )
        if cost(shorter) <= room:
            return shorter, True


# -- pages -----------------------------------------------------------------------------------------------------


def _cursor(stdout: int, stderr: int) -> str:
    return f"{stdout}.{stderr}"


def _offsets(after: str) -> tuple[int, int] | None:
    first, separator, second = after.partition(".")
    if not separator or not (first.isdecimal() and second.isdecimal()) or len(after) > 40:
        return None
    return int(first), int(second)


def _page(run: Run, after: str | None, room: int) -> tuple[str, str, str]:
    """Output of both streams from a cursor on, within `room`, and the cursor to go on from."""
    offsets = (_offsets(after) if after is not None else None) or (0, 0)
    stderr, stderr_next = _read(run.stderr, offsets[1], room // 3, ended=run.finished)
    stdout, stdout_next = _read(run.stdout, offsets[0], room - cost(stderr), ended=run.finished)
    return stdout, stderr, _cursor(stdout_next, stderr_next)


def _read(capture: Capture, after: int, room: int, *, ended: bool) -> tuple[str, int]:
    asked = room
    while True:
        text, following = capture.read(after, max(asked, 16), ended=ended)
        spent = cost(text)
        if spent <= room or asked <= 16:
            return text, following
        asked = min(asked * room // spent, asked - 64)


# -- the two forms ---------------------------------------------------------------------------------------------


def _identity(run: Run, generation: int) -> Params:
    return {
        "run_id": run.id,
        "session_id": run.session_id,
        "generation": generation,
        "status": run.status,
        "elapsed_ms": run.elapsed_ms,
    }


def _structured(run: Run, fitted: _Fitted, result: ExecutionResult) -> Params:
    structured: Params = {
        "run_id": result.run_id,
        "session_id": result.session_id,
        "generation": result.generation,
        "status": run.status,
        "state_reset": result.state_reset,
        "success": result.success,
        "stdout": fitted.stdout,
        "stderr": fitted.stderr,
        "return_value": fitted.return_value,
        "error": fitted.error,
        "elapsed_ms": result.elapsed_ms,
        "truncated": {
            "stdout": fitted.cut[0],
            "stderr": fitted.cut[1],
            "return": fitted.return_cut,
            "error": fitted.error_cut,
        },
        "state": result.state,
    }
    if fitted.with_value:
        structured["value"] = result.value
    optional: Params = {
        "error_code": result.error_code,
        "background_tasks_cancelled": result.tasks_cancelled or None,
        "background_tasks": _few(result.background_tasks) or None,
        "background_threads": _few(result.background_threads) or None,
        "exit_code": result.exit_code,
        "steps": _steps(result) or None,
        "next": fitted.more,
    }
    structured.update((key, value) for key, value in optional.items() if value is not None)
    return structured


def _steps(result: ExecutionResult) -> list[Params]:
    """How a run was stopped: what was done when, in milliseconds after the first step."""
    return [
        {"step": step.name, "after_ms": round(step.after * 1000), "processes": step.processes} for step in result.steps
    ]


def _text(fitted: _Fitted, result: ExecutionResult, about_artifacts: list[str]) -> str:
    parts: list[str] = []
    if result.lost is not None:
        parts.append(f"[The namespace is new: the one before was lost. {result.lost}.]")
    parts += _output_parts(fitted.stdout, fitted.stderr)
    if fitted.return_value is not None:
        parts.append(fitted.return_value)
    if fitted.error is not None:
        parts.append(fitted.error)
    met = [f"{step.name} ({step.after:.2f} s)" for step in result.steps if step.processes]
    if met:
        parts.append(f"[stopped by: {', '.join(met)}]")
    if result.state == CLEARED:
        parts.append("[state: cleared]")
    parts += about_artifacts
    if fitted.more is not None:
        parts.append(f"[more output: python_run(run_id={result.run_id!r}, after={fitted.more!r})]")
    if result.tasks_cancelled:
        parts.append(
            f"[{result.tasks_cancelled} unfinished task(s), timer(s) or job(s) of the cell were cancelled at its end]"
        )
    text = _join(parts)
    if text.strip():
        return text
    # Some clients refuse an empty text block, and an agent that sees nothing asks again.
    return "The cell ran; all it shows is white space." if parts else "The cell ran without output or value."


def _output_parts(stdout: str, stderr: str) -> list[str]:
    parts = [stdout] if stdout else []
    if stderr:
        parts.append(f"stderr:\n{stderr}")
    return parts


def _join(parts: list[str]) -> str:
    return "\n".join(part.rstrip("\n") for part in parts)
