"""Results in bounds, in both forms, whatever a cell printed, returned or raised."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.errors import Busy
from repl_trio.limits import DEFAULT
from repl_trio.machines.run import FINISHED
from repl_trio.server import content
from repl_trio.server.content import Reply
from repl_trio.session.run import Run
from repl_trio.values import CLEARED, EXCEPTION, PRESERVED, Cell, ExecutionResult
from tests.e2e.oracle import Oracle

untimed = settings(deadline=None, max_examples=40)

RESULT = ExecutionResult("r7-abc", "s1-abc", 3, state_reset=False, success=True, elapsed_ms=12, state=PRESERVED)
FAILED = replace(RESULT, success=False, error="ValueError: bad", error_code=EXCEPTION)

# A flood is told by its letters and how often each is repeated: one byte and one character, escapes of 2, 6 and 12
# bytes, and what is no UTF-8.
Flood = list[tuple[str, int]]
LETTERS = ["x", "\n", '"', "\\", "\x00", "\x1b", "é", "字", "🎈", "\u2028", "\udcff"]
floods = st.lists(st.tuples(st.sampled_from(LETTERS), st.integers(0, 60_000)), max_size=3)


def text_of(flood: Flood, most: int = 200_000) -> str:
    """The text of a flood, without what is no UTF-8."""
    return "".join(letter * times for letter, times in flood if letter != "\udcff")[:most]


def bytes_of(flood: Flood) -> bytes:
    """The bytes of a flood."""
    return "".join(letter * times for letter, times in flood).encode("utf-8", "surrogateescape")


def run_of(stdout: bytes = b"", stderr: bytes = b"", result: ExecutionResult | None = RESULT) -> Run:
    """A run with this output; finished with `result` unless that is None."""
    run = Run("r7-abc", "s1-abc", Cell("", 1.0), DEFAULT)
    run.write("stdout", stdout)
    run.write("stderr", stderr)
    if result is not None:
        run.result = result
        run.machine.state = FINISHED
    return run


def judged(reply: Reply, tool: str = "execute_python") -> dict[str, Any]:
    """The structured form of a reply, after the oracle has seen both forms: schema, size, isError, whole characters."""
    blocks = [{"type": "text", "text": reply.text}]
    wire = json.loads(json.dumps({"content": blocks, "structuredContent": reply.structured, "isError": reply.is_error}))
    Oracle().check_tool_result(tool, wire)
    structured: dict[str, Any] = wire["structuredContent"]
    return structured


# -- bounds ----------------------------------------------------------------------------------------------------

values = st.one_of(
    floods.map(text_of),
    st.lists(st.integers(), max_size=400),
    st.dictionaries(st.text(max_size=9), floods.map(text_of)),
)


def result_of(error: Flood | None, preview: Flood | None, value: object, state: str) -> ExecutionResult:
    """A result as the worker bounds it, with or without each part; a value (`...`: none) has its own preview."""
    told = None if error is None else text_of(error, DEFAULT.error_bytes)
    code = None if error is None else EXCEPTION
    shown = None if preview is None else text_of(preview, DEFAULT.preview_bytes)
    made = replace(RESULT, success=error is None, error=told, error_code=code, state=state, return_value=shown)
    if value is ...:
        return made
    return replace(made, has_value=True, value=value, return_value=repr(value)[: DEFAULT.preview_bytes])


parts = st.tuples(st.none() | floods, st.none() | floods, st.just(...) | values, st.sampled_from([PRESERVED, CLEARED]))


@untimed
@given(floods, floods, parts)
async def test_a_result_stays_in_bounds(stdout: Flood, stderr: Flood, given_parts: Any) -> None:
    result = result_of(*given_parts)
    reply = content.finished(run_of(bytes_of(stdout), bytes_of(stderr), result), DEFAULT)
    structured = judged(reply)
    truncated = structured["truncated"]
    assert truncated["error"] or structured["error"] == result.error
    assert truncated["return"] or structured["return_value"] == result.return_value
    assert truncated["stdout"] or structured["stdout"] == bytes_of(stdout).decode(errors="replace")
    assert truncated["stderr"] or structured["stderr"] == bytes_of(stderr).decode(errors="replace")
    cut = truncated["stdout"] or truncated["stderr"]
    assert ("next" in structured) is cut
    assert ("after=" in reply.text) is cut


@untimed
@given(floods, floods, parts)
async def test_a_page_of_a_finished_run_stays_in_bounds(stdout: Flood, stderr: Flood, given_parts: Any) -> None:
    run = run_of(bytes_of(stdout), bytes_of(stderr), result_of(*given_parts))
    judged(content.finished(run, DEFAULT, after="0.0"), "python_run")


async def test_a_page_beside_the_largest_value_stays_in_bounds() -> None:
    big = "v" * DEFAULT.preview_bytes
    run = run_of(b"x" * 60_000, b"e" * 60_000, replace(RESULT, return_value=big, has_value=True, value=big))
    judged(content.finished(run, DEFAULT, after="0.0"), "python_run")


@untimed
@given(floods, floods)
async def test_a_page_of_an_active_run_stays_in_bounds(stdout: Flood, stderr: Flood) -> None:
    judged(content.progress(run_of(bytes_of(stdout), bytes_of(stderr), None), 1, "0.0", DEFAULT), "python_run")


@pytest.mark.parametrize("letter", ["x", "字", "\ufffd"])
async def test_names_of_background_work_are_in_the_bounds(letter: str) -> None:
    names = tuple(letter * 200 for _ in range(20))
    result = replace(RESULT, background_tasks=names, background_threads=names)
    judged(content.finished(run_of(b"x" * 60_000, result=result), DEFAULT))


BROKEN = "a\ud800b" * 300


@pytest.mark.parametrize(
    "result", [replace(FAILED, error=BROKEN), replace(RESULT, return_value=BROKEN)], ids=["error", "return_value"]
)
async def test_no_lone_surrogate_leaves(result: ExecutionResult) -> None:
    reply = content.finished(run_of(result=result), DEFAULT)
    reply.text.encode()
    json.dumps(reply.structured, ensure_ascii=False).encode()


# -- priorities ------------------------------------------------------------------------------------------------


async def test_a_flood_leaves_room_for_the_error_and_the_end() -> None:
    error = "Traceback ...\n" + "x" * 9_000 + "\nValueError: the reason"
    run = run_of(b"first\n" + b"w " * 2_000_000 + b"\nlast words", b"e" * 100_000, replace(FAILED, error=error))
    reply = content.finished(run, DEFAULT)
    structured = judged(reply)
    assert structured["error"] == error
    for text in (reply.text, structured["stdout"]):
        assert text.startswith("first\n")
        assert "bytes of output not shown" in text
    assert structured["stdout"].endswith("last words")
    assert "last words\nstderr:" in reply.text
    assert structured["truncated"] == {"stdout": True, "stderr": True, "return": False, "error": False}


async def test_a_flood_leaves_room_for_the_value() -> None:
    result = replace(RESULT, return_value="[1, 2, 3]", has_value=True, value=[1, 2, 3])
    structured = judged(content.finished(run_of(b"w " * 2_000_000, result=result), DEFAULT))
    assert (structured["return_value"], structured["value"]) == ("[1, 2, 3]", [1, 2, 3])


async def test_a_value_that_does_not_fit_is_left_out_and_its_preview_cut() -> None:
    big = "v" * DEFAULT.preview_bytes
    result = replace(RESULT, return_value=big, has_value=True, value=big)
    structured = judged(content.finished(run_of(result=result), DEFAULT))
    assert "value" not in structured
    assert structured["truncated"]["return"]
    assert structured["return_value"].startswith("vvv")
    assert "characters not shown" in structured["return_value"]


async def test_the_bound_is_a_limit() -> None:
    limits = DEFAULT.overridden({"result_bytes": "9000"})
    reply = content.finished(run_of(b"x" * 30_000), limits)
    assert len(json.dumps(reply.text)) + len(json.dumps(reply.structured)) <= 9_000


# -- pages -----------------------------------------------------------------------------------------------------


def paged(run: Run, after: str = "0.0") -> tuple[str, str]:
    """All output from a cursor on, as a client collects it with python_run."""
    stdout = stderr = ""
    for _ in range(1_000):
        page = judged(content.finished(run, DEFAULT, after), "python_run")
        stdout, stderr = stdout + page["stdout"], stderr + page["stderr"]
        if "next" not in page:
            return stdout, stderr
        assert page["next"] != after
        after = page["next"]
    raise AssertionError("the pages do not end")


def head_of(flood: Flood) -> str:
    """The text of a flood, as much as a capture's head keeps."""
    return text_of(flood).encode()[: DEFAULT.output_head].decode(errors="ignore")


@untimed
@given(floods, floods)
async def test_pages_give_every_byte_once(stdout: Flood, stderr: Flood) -> None:
    run = run_of(head_of(stdout).encode(), head_of(stderr).encode())
    assert paged(run) == (head_of(stdout), head_of(stderr))


@pytest.mark.parametrize("letter", ["x", "é", "字", "🎈"])
async def test_pages_of_all_that_is_kept(letter: str) -> None:
    # Head and tail are full and nothing is missing between them.
    text = (letter * DEFAULT.output_head).encode()[: DEFAULT.output_head + DEFAULT.output_tail].decode(errors="ignore")
    assert paged(run_of(text.encode())) == (text, "")


async def test_pages_name_what_is_not_kept() -> None:
    stream = b"h" * DEFAULT.output_head + b"m" * 12_345 + b"t" * DEFAULT.output_tail
    stdout, _ = paged(run_of(stream))
    marker = "\n[... 12,345 bytes of output not kept ...]\n"
    assert stdout == "h" * DEFAULT.output_head + marker + "t" * DEFAULT.output_tail


@pytest.mark.parametrize("size", [19_000, 30_000, 50_000, 200_000])
async def test_next_of_a_cut_result_goes_on_where_the_gap_is(size: int) -> None:
    numbers = "".join(f"{number:07}\n" for number in range(size // 8))
    first = judged(content.finished(run_of(numbers.encode()), DEFAULT))
    before = first["stdout"].partition("[... ")[0]
    if "next" not in first:
        assert first["stdout"] == numbers
        return
    rest, _ = paged(run_of(numbers.encode()), first["next"])
    whole = before + rest
    lost = size - DEFAULT.output_head - DEFAULT.output_tail
    if lost <= 0:
        assert whole == numbers
    else:
        marker = f"\n[... {lost:,} bytes of output not kept ...]\n"
        assert whole == numbers[: DEFAULT.output_head] + marker + numbers[-DEFAULT.output_tail :]


async def test_an_active_run_is_followed_without_a_gap() -> None:
    run = run_of(result=None)
    seen, after = "", None
    for number in range(200):
        run.write("stdout", f"{number:0500}字\n".encode())
        page = judged(content.progress(run, 1, after, DEFAULT), "python_run")
        assert page["status"] == "running"
        seen, after = seen + page["stdout"], page["next"]
    assert seen == "".join(f"{number:0500}字\n" for number in range(200))


@pytest.mark.parametrize(
    "after", ["", "x", "1", "1.", ".1", "-1.0", "1.0.0", "1 .0", "0x1.0", "².1", "1" * 50 + ".0", "NaN.0"]
)
def test_what_is_no_cursor(after: str) -> None:
    assert not content.check_cursor(after)


@pytest.mark.parametrize("after", ["0.0", "12.345", "99999999999.0"])
async def test_a_cursor_beyond_the_end_is_the_end(after: str) -> None:
    assert content.check_cursor(after)
    page = judged(content.finished(run_of(b"abc"), DEFAULT, after), "python_run")
    assert "next" not in page


# -- the two forms ---------------------------------------------------------------------------------------------


async def test_each_form_alone_tells_everything() -> None:
    run = run_of(b"out\n", b"warn\n", replace(FAILED, state=CLEARED, return_value="41", lost="The worker was killed"))
    reply = content.finished(run, DEFAULT)
    for told in ("out", "stderr:\nwarn", "ValueError: bad", "41", "state: cleared", "The worker was killed"):
        assert told in reply.text
    structured = judged(reply)
    assert (structured["stdout"], structured["stderr"], structured["return_value"]) == ("out\n", "warn\n", "41")
    assert (structured["success"], structured["error"], structured["error_code"]) == (
        False,
        "ValueError: bad",
        "EXCEPTION",
    )
    assert (structured["state"], structured["state_reset"], structured["generation"]) == ("cleared", False, 3)


async def test_nothing_is_said_in_a_sentence() -> None:
    reply = content.finished(run_of(), DEFAULT)
    assert reply.text == "The cell ran without output or value."
    assert judged(reply)["success"] is True


async def test_what_was_left_and_cancelled_is_told() -> None:
    result = replace(
        RESULT, tasks_cancelled=2, background_tasks=("watcher",), background_threads=("pool",), exit_code=3
    )
    reply = content.finished(run_of(result=result), DEFAULT)
    structured = judged(reply)
    assert structured["background_tasks_cancelled"] == 2
    assert (structured["background_tasks"], structured["background_threads"]) == (["watcher"], ["pool"])
    assert structured["exit_code"] == 3
    assert "2 unfinished" in reply.text


async def test_a_started_run_says_how_to_go_on() -> None:
    reply = content.started(run_of(result=None), 4)
    structured = judged(reply, "python_start")
    assert (structured["poll_tool"], structured["cancel_tool"]) == ("python_run", "python_cancel")
    assert (structured["generation"], structured["status"]) == (4, "running")
    for told in ("r7-abc", "python_run", "python_cancel"):
        assert told in reply.text


@pytest.mark.parametrize("run_shaped", [True, False])
def test_a_refusal_in_both_forms(*, run_shaped: bool) -> None:
    error = Busy("Run r1 is active.", run_id="r1", state=PRESERVED)
    reply = content.refusal(error, "s1", run_shaped=run_shaped)
    structured = judged(reply, "execute_python" if run_shaped else "python_session_list")
    assert (structured["success"], structured["error"], structured["error_code"]) == (
        False,
        "Run r1 is active.",
        "BUSY",
    )
    assert reply.text == "BUSY: Run r1 is active."
    assert (structured.get("state") == PRESERVED) is run_shaped
    assert (structured.get("run_id") == "r1") is run_shaped


def test_a_refusal_says_only_what_is_known() -> None:
    structured = judged(content.refusal(Busy("no"), run_shaped=True))
    assert set(structured) == {"success", "error", "error_code", "status"}


async def test_elapsed_time_of_an_active_run_is_told() -> None:
    reply = content.progress(run_of(b"hello\n", result=None), 1, None, DEFAULT)
    assert judged(reply, "python_run")["elapsed_ms"] >= 0
    assert "hello" in reply.text
    assert "6.0" in reply.text
