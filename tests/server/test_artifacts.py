"""What results say about artifacts, and the two tools that read them, without a process."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_trio.errors import UnknownArtifact, UnknownSession
from repl_trio.limits import DEFAULT
from repl_trio.machines.run import FINISHED
from repl_trio.process.launch import Root
from repl_trio.process.root import RootWatch
from repl_trio.server import artifacts as tool
from repl_trio.server import content
from repl_trio.server.arguments import BadArguments
from repl_trio.server.content import Reply
from repl_trio.session.artifacts import Artifacts
from repl_trio.session.run import Run
from repl_trio.session.sessions import Sessions
from repl_trio.settings import Settings
from repl_trio.values import PRESERVED, Artifact, Cell, ExecutionResult
from repl_trio.wire.mcp import Call
from tests.e2e.oracle import Oracle
from tests.server.test_pictures import image_of

RESULT = ExecutionResult("r7-abc", "s1-abc", 3, state_reset=False, success=True, elapsed_ms=12, state=PRESERVED)
PNG = image_of("image/png", (64, 48))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Artifacts]:
    ids = count(1)
    opened = Artifacts(DEFAULT, (str(tmp_path),), lambda: f"a{next(ids)}-abc")
    yield opened
    opened.close()


def keep(
    store: Artifacts, body: bytes, name: str = "figure 1", kind: str = "image", media: str = "image/png"
) -> Artifact:
    draft = store.begin(name, kind, media, "r7-abc")
    draft.write(body)
    return draft.finish()


def run_of(store: Artifacts, *made: Artifact, stdout: bytes = b"", result: ExecutionResult = RESULT) -> Run:
    """A finished run with these artifacts."""
    run = Run("r7-abc", "s1-abc", Cell("", 1.0), DEFAULT, store)
    run.write("stdout", stdout)
    run.artifacts.extend(made)
    run.result = result
    run.machine.state = FINISHED
    return run


def judged(reply: Reply, name: str = "execute_python") -> dict[str, Any]:
    """The structured form, after the oracle has seen all."""
    blocks = [{"type": "text", "text": reply.text}, *reply.images]
    Oracle().check_tool_result(
        name, {"content": blocks, "structuredContent": reply.structured, "isError": reply.is_error}
    )
    return reply.structured


# -- results ---------------------------------------------------------------------------------------------------


async def test_an_image_is_shown_behind_the_text(store: Artifacts) -> None:
    made = keep(store, PNG)
    reply = content.finished(run_of(store, made, stdout=b"hello\n"), DEFAULT)
    structured = judged(reply)
    (image,) = structured["images"]
    assert image == {
        "artifact_id": made.id,
        "media_type": "image/png",
        "size": len(PNG),
        "width": 64,
        "height": 48,
        "shown": True,
    }
    assert [entry["id"] for entry in structured["artifacts"]] == [made.id]
    assert reply.text == f"hello\n[image 1: image/png, 64x48, {len(PNG)} bytes]"
    assert base64.b64decode(str(reply.images[0]["data"])) == PNG
    assert str(reply.images[0]["data"]) not in str(structured) + reply.text


@pytest.mark.parametrize(
    ("media", "body", "why"),
    [
        ("image/svg+xml", b"<svg/>", "clients do not show"),
        ("image/png", b"no image", "no such image"),
        ("image/png", image_of("image/jpeg"), "no such image"),
        ("image/png", PNG[:-20], "its end is missing"),
        ("image/png", PNG[:16] + b"\x00\x00\x1f\x41" + PNG[20:], "image_side"),
        ("image/png", PNG[:-12] + b"\x00" * DEFAULT.image_bytes + PNG[-12:], "image_bytes"),
        ("image/png", b"", "no such image"),
    ],
)
async def test_what_cannot_be_shown_is_told(store: Artifacts, media: str, body: bytes, why: str) -> None:
    made = keep(store, body, media=media)
    reply = content.finished(run_of(store, made), DEFAULT)
    assert judged(reply)["images"][0]["shown"] is False
    assert why in reply.text
    assert f"artifact_read(artifact_id={made.id!r})" in reply.text


async def test_as_many_images_as_a_result_holds(store: Artifacts) -> None:
    made = [keep(store, PNG, f"figure {number}") for number in range(DEFAULT.images + 2)]
    reply = content.finished(run_of(store, *made), DEFAULT)
    shown = [image["shown"] for image in judged(reply)["images"]]
    assert shown == [True] * DEFAULT.images + [False] * 2
    assert f"{made[-1].id!r}) shows it" in reply.text


async def test_all_images_together_are_bounded(store: Artifacts) -> None:
    big = PNG[:-12] + b"\x00" * (DEFAULT.image_bytes - len(PNG)) + PNG[-12:]
    made = [keep(store, big) for _ in range(DEFAULT.images_bytes // len(big) + 1)] + [keep(store, PNG)]
    # Padded between its chunks a PNG is none for a decoder: only what is told is looked at.
    reply = content.finished(run_of(store, *made), DEFAULT)
    shown = [image["shown"] for image in reply.structured["images"]]  # type: ignore[attr-defined]
    assert shown == [True] * (len(made) - 2) + [False, len(big) * (len(made) - 2) + len(PNG) <= DEFAULT.images_bytes]


async def test_a_page_of_output_carries_no_image_again(store: Artifacts) -> None:
    reply = content.finished(run_of(store, keep(store, PNG), stdout=b"x" * 90_000), DEFAULT, after="0.0")
    assert judged(reply, "python_run")["images"][0]["shown"] is False
    assert "shows it" in reply.text


async def test_outputs_and_values_are_told_first(store: Artifacts) -> None:
    made = [keep(store, PNG), keep(store, b"<b>", "table", "display", "text/html")]
    made += [
        keep(store, b"[1]", "value", "value", "application/json"),
        keep(store, b"xy", "stdout", "output", "text/plain"),
    ]
    reply = content.finished(run_of(store, *made), DEFAULT)
    assert [entry["kind"] for entry in judged(reply)["artifacts"]] == ["value", "output", "image", "display"]
    assert reply.text.splitlines() == [
        "[the whole of the value, 3 bytes of application/json: artifact_read(artifact_id='a3-abc')]",
        "[the whole of stdout, 2 bytes: artifact_read(artifact_id='a4-abc')]",
        f"[image 1: image/png, 64x48, {len(PNG)} bytes]",
        "[table, 3 bytes of text/html: artifact_read(artifact_id='a2-abc')]",
    ]


async def test_what_is_not_whole_is_told(store: Artifacts) -> None:
    draft = store.begin("stdout", "output", "text/plain")
    draft.write(b"abc")
    reply = content.finished(run_of(store, draft.finish(complete=False)), DEFAULT)
    assert judged(reply)["artifacts"][0]["complete"] is False
    assert "the first 3 bytes of stdout" in reply.text
    assert "the rest is not kept" in reply.text


async def test_what_could_not_be_kept_at_all_is_told() -> None:
    nowhere = Artifacts(DEFAULT, ("/nonexistent",), lambda: "a1-abc")
    reply = content.finished(run_of(nowhere, keep(nowhere, b"abc", "stdout", "output", "text/plain")), DEFAULT)
    assert (judged(reply)["artifacts"][0]["size"], judged(reply)["artifacts"][0]["complete"]) == (0, False)
    assert "stdout could not be kept: no temporary folder" in reply.text


async def test_what_is_gone_is_told(store: Artifacts) -> None:
    run = run_of(store, keep(store, PNG), keep(store, PNG))
    for number in range(DEFAULT.artifacts - 1):
        keep(store, b"%d" % number)
    reply = content.finished(run, DEFAULT)
    assert judged(reply)["artifacts_gone"] == 1
    assert len(judged(reply)["artifacts"]) == len(reply.images) == 1
    assert "1 artifact of this run is no longer kept" in reply.text
    store.close()
    reply = content.finished(run, DEFAULT)
    assert judged(reply)["artifacts_gone"] == 2
    assert reply.images == []


@settings(max_examples=25)
@given(st.sampled_from(["x", "字", "\x00", '"']), st.integers(0, 60_000), st.integers(0, DEFAULT.displays + 3))
async def test_a_result_with_many_stays_in_bounds(letter: str, size: int, many: int) -> None:
    ids = count(1)
    with_names = Artifacts(DEFAULT, ("/tmp",), lambda: f"a{next(ids)}-abc")
    try:
        made = [keep(with_names, b"x", "字" * 100, "display", "text/" + "x" * 90) for _ in range(many)]
        result = replace(RESULT, return_value=letter * 20_000, error=letter * 10_000, success=False, error_code="X")
        run = run_of(with_names, *made, stdout=(letter * size).encode(), result=result)
        for after in (None, "0.0"):
            reply = content.finished(run, DEFAULT, after)
            structured = judged(reply, "python_run")
            told = len(structured.get("artifacts", []))
            assert structured.get("artifacts_total", told) == many
            assert (f"{many - told} more: artifact_list" in reply.text) is (told < many)
    finally:
        with_names.close()


# -- the tools -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_idle_sessions() -> AsyncIterator[Sessions]:
    """Sessions that never start a worker."""
    async with trio.open_nursery() as nursery:
        sessions = Sessions(nursery, RootWatch(Root(), DEFAULT), Settings("serve"))
        try:
            yield sessions
        finally:
            for session in sessions.all:
                session.artifacts.close()


def read(sessions: Sessions, **arguments: Any) -> Reply:
    return tool.read(sessions, DEFAULT, Call(1, "artifact_read", arguments, modern=False))


TEXTS = ["", "short", "line\n" * 20_000, "x" * 50_000, "字" * 20_000, "é🎈" * 9_000, "\x00" * 40_000, '"\n' * 30_000]


@pytest.mark.parametrize("length", [None, 16_384, 1_000, 3, 1])
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text[:3]!a} {len(text)}")
async def test_text_is_read_whole_in_pages(text: str, length: int | None) -> None:
    text = text if length is None or length > 100 else text[:60]
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, text.encode(), "stdout", "output", "text/plain")
        seen, offset = "", 0
        while True:
            more = {"length": length} if length is not None else {}
            reply = read(sessions, artifact_id=made.id, offset=offset, **more)
            structured = judged(reply, "artifact_read")
            assert (structured["offset"], structured["size"], structured["encoding"]) == (offset, made.size, "text")
            assert structured["data"] in reply.text or not structured["data"]
            assert structured["length"] == len(structured["data"].encode())
            assert structured["length"] <= max(length or DEFAULT.artifact_read, 4)
            seen += structured["data"]
            following = structured["next"]
            if following is None:
                break
            assert following > offset
            assert f"offset={following})" in reply.text
            offset = following
        assert seen == text


async def test_pages_of_text_end_between_lines() -> None:
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, b"0123456789\n" * 5_000, "stdout", "output", "text/plain")
        assert judged(read(sessions, artifact_id=made.id, length=1_000), "artifact_read")["next"] == 990


@settings(max_examples=40)
@given(st.binary(max_size=300), st.integers(1, 50))
async def test_any_bytes_are_read_as_text_to_their_end(body: bytes, length: int) -> None:
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, body, "x", "display", "text/plain")
        offset: int | None = 0
        seen = 0
        while offset is not None:
            structured = judged(read(sessions, artifact_id=made.id, offset=offset, length=length), "artifact_read")
            seen += structured["length"]
            assert structured["next"] is None or structured["next"] > offset
            offset = structured["next"]
        assert seen == len(body)


async def test_bytes_are_read_whole_in_pages() -> None:
    body = bytes(range(256)) * 300
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, body, "value", "value", "application/octet-stream")
        seen = b""
        offset: int | None = 0
        while offset is not None:
            structured = judged(read(sessions, artifact_id=made.id, offset=offset), "artifact_read")
            assert structured["encoding"] == "base64"
            part = base64.b64decode(structured["data"], validate=True)
            assert len(part) == structured["length"] > 10_000 or structured["next"] is None
            seen += part
            offset = structured["next"]
        assert seen == body


@pytest.mark.parametrize(
    ("media", "encoding"),
    [
        ("text/plain", "text"),
        ("text/html", "text"),
        ("application/json", "text"),
        ("image/svg+xml", "text"),
        ("image/tiff", "base64"),
        ("application/octet-stream", "base64"),
    ],
)
async def test_the_natural_encoding_and_the_other(media: str, encoding: str) -> None:
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, b"abc", media=media)
        assert judged(read(sessions, artifact_id=made.id), "artifact_read")["encoding"] == encoding
        other = {"text": "base64", "base64": "text"}[encoding]
        structured = judged(read(sessions, artifact_id=made.id, encoding=other), "artifact_read")
        assert (structured["encoding"], structured["data"]) == (other, "YWJj" if other == "base64" else "abc")


async def test_an_image_is_read_as_an_image() -> None:
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, PNG)
        reply = read(sessions, artifact_id=made.id)
        structured = judged(reply, "artifact_read")
        assert (structured["encoding"], structured["length"], structured["next"]) == ("image", len(PNG), None)
        assert base64.b64decode(str(reply.images[0]["data"])) == PNG
        assert reply.text == f"[figure 1: image/png, 64x48, {len(PNG)} bytes]"
        for asked in ({"offset": 0}, {"length": 16_000}, {"encoding": "base64"}):
            assert judged(read(sessions, artifact_id=made.id, **asked), "artifact_read")["encoding"] == "base64"


async def test_an_image_that_is_too_large_is_read_in_parts() -> None:
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, PNG + b"\x00" * DEFAULT.image_bytes)
        assert judged(read(sessions, artifact_id=made.id), "artifact_read")["encoding"] == "base64"


async def test_an_offset_beyond_the_end_is_an_error_with_its_place() -> None:
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, b"abc", media="text/plain")
        at_end = judged(read(sessions, artifact_id=made.id, offset=3), "artifact_read")
        assert (at_end["data"], at_end["length"], at_end["next"]) == ("", 0, None)
        with pytest.raises(BadArguments, match=r"^/params/arguments/offset: "):
            read(sessions, artifact_id=made.id, offset=4)


async def test_an_id_is_enough_in_whichever_session_it_is() -> None:
    async with open_idle_sessions() as sessions:
        made = keep(sessions.default.artifacts, b"abc", media="text/plain")
        old = sessions.default
        assert read(sessions, artifact_id=made.id, session_id=old.id).structured["data"] == "abc"
        with pytest.raises(UnknownSession):
            read(sessions, artifact_id=made.id, session_id="s9-abc")
        await sessions.close(old)
        for named in ({}, {"session_id": sessions.default.id}):
            with pytest.raises(UnknownArtifact, match=r"oldest go first.*artifact_list"):
                read(sessions, artifact_id=made.id, **named)


async def test_the_list_in_both_forms() -> None:
    async with open_idle_sessions() as sessions:
        call = Call(1, "artifact_list", {}, modern=False)
        reply = tool.listed(sessions, DEFAULT, call)
        assert (judged(reply, "artifact_list")["artifacts"], judged(reply, "artifact_list")["bytes"]) == ([], 0)
        made = keep(sessions.default.artifacts, PNG)
        reply = tool.listed(sessions, DEFAULT, call)
        (entry,) = judged(reply, "artifact_list")["artifacts"]
        assert (entry["id"], entry["sha256"], entry["run_id"], entry["size"]) == (
            made.id,
            made.sha256,
            "r7-abc",
            len(PNG),
        )
        for told in (made.id, "figure 1", "image/png", "r7-abc", entry["created"]):
            assert told in reply.text


@pytest.mark.parametrize("name", ["字" * 100, "x"])
async def test_the_longest_list_stays_in_bounds(name: str) -> None:
    async with open_idle_sessions() as sessions:
        made = [keep(sessions.default.artifacts, b"", name) for _ in range(DEFAULT.artifacts)]
        reply = tool.listed(sessions, DEFAULT, Call(1, "artifact_list", {}, modern=False))
        structured = judged(reply, "artifact_list")
        assert structured["artifacts_total"] == DEFAULT.artifacts
        assert structured["artifacts"][-1]["id"] == made[-1].id
        assert ("oldest do not fit" in reply.text) is (len(structured["artifacts"]) < DEFAULT.artifacts)
