"""What a worker shows beyond text: put together from its frames, strictly, and what becomes of halves and late ones."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from repl_trio.limits import Limits
from repl_trio.session.artifacts import Artifacts
from repl_trio.session.blocks import BLOCK
from repl_trio.session.generation import Generation
from repl_trio.session.items import Items
from repl_trio.session.run import Run
from repl_trio.values import Artifact, Cell
from repl_trio.wire.frames import FROM_WORKER, FrameError, decode, encode
from tests.fakes import worker as fake
from tests.session.test_generation import Step, died, open_fake

LIMITS = Limits.overridden({"displays": "3"})


def part(item: int, content: bytes = b"", **changes: Any) -> dict[str, Any]:
    """One part of an item, the last one unless told otherwise."""
    frame: dict[str, Any] = {
        "frame": "output",
        "id": "r1",
        "stream": "display",
        "item": item,
        "name": "figure 1",
        "media_type": "image/png",
        "data": base64.b64encode(content).decode(),
        "last": True,
        "complete": True,
        **changes,
    }
    return frame


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Artifacts]:
    ids = count(1)
    opened = Artifacts(LIMITS, (str(tmp_path),), lambda: f"a{next(ids)}")
    yield opened
    opened.close()


def taken(items: Items, *frames: dict[str, Any]) -> list[Artifact | None]:
    """What each frame made, as it comes over the wire."""
    return [items.take(decode(encode(frame, 1 << 20).rstrip(b"\n"), FROM_WORKER)) for frame in frames]


def test_parts_are_put_together_in_order(store: Artifacts) -> None:
    items = Items(store, "r1", LIMITS)
    made = taken(items, part(1, b"ab", last=False), part(1, b"", last=False), part(1, b"c"), part(2, b"z", name="two"))
    assert [artifact is not None for artifact in made] == [False, False, True, True]
    first, second = store.all()
    assert (first.name, first.kind, first.media_type, first.run_id) == ("figure 1", "image", "image/png", "r1")
    assert (store.read(first.id, 0, 9), store.read(second.id, 0, 9)) == (b"abc", b"z")
    assert first.complete


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "image"),
        ({"media_type": "image/svg+xml"}, "image"),
        ({"media_type": "text/html"}, "display"),
        ({"media_type": "no type", "stream": "display"}, "display"),
        ({"media_type": "application/json", "stream": "value"}, "value"),
        ({"media_type": "image/png", "stream": "value"}, "value"),
    ],
)
def test_kinds(store: Artifacts, changes: dict[str, Any], kind: str) -> None:
    taken(Items(store, "r1", LIMITS), part(1, b"x", **changes))
    assert store.all()[0].kind == kind


@pytest.mark.parametrize("told", ["", "png", "/png", "image/", "image/p ng", "image/p\n", "x" * 60 + "/" + "y" * 60])
def test_what_is_no_media_type_is_none(store: Artifacts, told: str) -> None:
    taken(Items(store, "r1", LIMITS), part(1, b"x", media_type=told))
    assert store.all()[0].media_type == "application/octet-stream"


def test_what_the_worker_left_out_is_told(store: Artifacts) -> None:
    (artifact,) = taken(Items(store, "r1", LIMITS), part(1, b"x", complete=False))
    assert artifact is not None
    assert not artifact.complete
    assert artifact.fault


@pytest.mark.parametrize(
    "frames",
    [
        [part(0)],
        [part(2)],
        [part(1), part(1)],
        [part(1), part(3)],
        [part(1, last=False), part(2)],
        [part(1, last=False), part(1, name="another")],
        [part(1, last=False), part(1, media_type="image/gif")],
        [part(1, last=False), part(1, stream="value")],
        [part(1, stream="stdout")],
        [part(1, data="no base64!")],
        [part(1, data="YW=J")],
        [part(1, data="YWI")],
        [part(1, data="YW\u0444=")],
        [part(number) for number in range(1, 6)],
    ],
    ids=lambda frames: f"{len(frames)} {frames[-1]['item']} {frames[-1]['data']}",
)
def test_what_cannot_come_now_breaks_the_protocol(store: Artifacts, frames: list[dict[str, Any]]) -> None:
    items = Items(store, "r1", LIMITS)
    taken(items, *frames[:-1])
    with pytest.raises(FrameError, match="output frame"):
        taken(items, frames[-1])


def test_as_many_as_may_be_and_the_value(store: Artifacts) -> None:
    taken(Items(store, "r1", LIMITS), *[part(number, b"x") for number in range(1, 5)])
    assert len(store.all()) == 4


# -- in a run --------------------------------------------------------------------------------------------------


def accept(generation: Generation, store: Artifacts, *steps: Step) -> Run:
    run = Run(f"r{generation.runs + 1}", "s1", Cell(fake.script(*steps), 60.0), LIMITS, store)
    generation.begin(run)
    run.machine.advance("ready")
    return run


def shows(item: int, content: bytes, **changes: Any) -> Step:
    """The step of a worker that shows something."""
    return ["frame", part(item, content, **changes), "output"]


async def test_what_a_run_shows_is_there_when_it_is_answered(tmp_path: Path, store: Artifacts) -> None:
    async with open_fake(tmp_path) as generation:
        run = accept(generation, store, shows(1, b"abc"), shows(2, b"", stream="value"), ["result"])
        await run.answered.wait()
        assert run.result is not None
        assert run.result.artifacts == tuple(run.artifacts) == store.all()
        assert [artifact.kind for artifact in run.artifacts] == ["image", "value"]


async def test_half_of_something_is_nothing_and_takes_no_room(tmp_path: Path) -> None:
    store = Artifacts(Limits.overridden({"artifacts_bytes": str(BLOCK)}), (str(tmp_path),), lambda: "a1")
    async with open_fake(tmp_path) as generation:
        with closing(store):
            run = accept(generation, store, shows(1, b"abc", last=False), ["result"])
            await run.answered.wait()
            assert (run.artifacts, store.all()) == ([], ())
            second = accept(generation, store, shows(1, b"abc", id="r2"), ["result"])
            await second.answered.wait()
            assert second.artifacts[0].complete


async def test_a_worker_that_dies_in_the_middle_leaves_what_was_whole(tmp_path: Path, store: Artifacts) -> None:
    async with open_fake(tmp_path) as generation:
        run = accept(generation, store, shows(1, b"abc"), shows(2, b"abc", last=False), ["exit", 3])
        await died(generation, run)
        run.machine.advance("died")
        run.finish("cleared", "cleared", generation.death)
        assert [artifact.id for artifact in run.artifacts] == [artifact.id for artifact in store.all()] == ["a1"]


async def test_a_late_frame_of_the_run_before_is_dropped(tmp_path: Path, store: Artifacts) -> None:
    async with open_fake(tmp_path) as generation:
        run = accept(generation, store, shows(1, b"abc"), ["result"], shows(2, b"late"))
        await run.answered.wait()
        second = accept(generation, store, shows(3, b"later"), shows(1, b"mine", id="r2"), ["result"])
        await second.answered.wait()
        assert [artifact.size for artifact in second.artifacts] == [4]
        assert len(run.artifacts) == 1
        assert len(store.all()) == 2


@pytest.mark.parametrize("wrong", [shows(1, b"x", id="r9"), shows(2, b"x"), shows(1, b"x", data="!")], ids=str)
async def test_a_frame_that_cannot_be_ends_the_worker(tmp_path: Path, store: Artifacts, wrong: Step) -> None:
    async with open_fake(tmp_path) as generation:
        run = accept(generation, store, wrong, ["hang"])
        assert "protocol" in await died(generation, run)
        assert store.all() == ()


async def test_a_frame_before_any_run_ends_the_worker(tmp_path: Path, store: Artifacts) -> None:
    start: list[Step] = [["frame", {}, "ready"], shows(1, b"x"), ["hang"]]
    async with open_fake(tmp_path, *start) as generation:
        with trio.fail_after(30):
            await generation.dead.wait()
        assert "no run" in generation.death


async def test_long_output_is_kept_whole_and_short_output_is_not(tmp_path: Path, store: Artifacts) -> None:
    size = LIMITS.output_head + LIMITS.output_tail
    async with open_fake(tmp_path) as generation:
        run = accept(generation, store, ["write", 1, "x", size], ["write", 2, "0123456789", size // 5], ["result"])
        await run.answered.wait()
        (artifact,) = run.artifacts
        assert (artifact.name, artifact.kind, artifact.media_type) == ("stderr", "output", "text/plain")
        assert store.read(artifact.id, 0, artifact.size) == b"0123456789" * (size // 5)


async def test_a_run_without_a_store_shows_nothing(tmp_path: Path) -> None:
    async with open_fake(tmp_path) as generation:
        run = Run("r1", "s1", Cell(fake.script(shows(1, b"x"), ["hang"]), 60.0), LIMITS)
        generation.begin(run)
        run.machine.advance("ready")
        assert "protocol" in await died(generation, run)
