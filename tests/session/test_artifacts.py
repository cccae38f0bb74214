"""The store of a session: what is kept, what has to go, and what a disk that refuses leaves. No process."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_trio.errors import UnknownArtifact
from repl_trio.limits import Limits
from repl_trio.session.artifacts import Artifact, Artifacts, Draft, folders
from repl_trio.session.blocks import BLOCK
from tests.conftest import open_descriptors

BIG = 10 * BLOCK


def store_of(folder: Path | str, **numbers: int) -> Artifacts:
    limits = Limits.overridden({name: str(number) for name, number in numbers.items()})
    ids = count(1)
    return Artifacts(limits, (str(folder),), lambda: f"a{next(ids)}")


def kept(store: Artifacts, content: bytes, name: str = "x") -> Artifact:
    draft = store.begin(name, "output", "text/plain")
    draft.write(content)
    return draft.finish()


def pattern(size: int, seed: int = 1) -> bytes:
    """Bytes that look different at each place."""
    return b"".join(i.to_bytes(4, "big") for i in range(seed, seed + size // 4 + 1))[:size]


def whole(store: Artifacts, artifact: Artifact) -> bytes:
    return store.read(artifact.id, 0, artifact.size)


# -- what is kept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_what_was_written_is_read(tmp_path: Path, size: int) -> None:
    store = store_of(tmp_path)
    content = pattern(size)
    artifact = kept(store, content)
    assert (artifact.size, artifact.complete, artifact.fault) == (size, True, "")
    assert artifact.sha256 == hashlib.sha256(content).hexdigest()
    assert whole(store, artifact) == content
    assert store.read(artifact.id, size, 10) == b""
    assert store.all() == (artifact,)
    store.close()


@given(st.lists(st.binary(max_size=40_000), max_size=12), st.data())
def test_any_chunks_and_any_range(chunks: list[bytes], drawn: st.DataObject) -> None:
    with closing(store_of(tempfile.gettempdir())) as store:
        # Two that are written at the same time share the file.
        one, two = store.begin("1", "output", "text/plain"), store.begin("2", "output", "text/plain")
        for chunk in chunks:
            one.write(chunk)
            two.write(chunk[::-1])
        content = b"".join(chunks)
        first, second = one.finish(), two.finish()
        offset = drawn.draw(st.integers(0, len(content) + 5))
        size = drawn.draw(st.integers(0, len(content) + 5))
        assert store.read(first.id, offset, size) == content[offset : offset + size]
        assert whole(store, second) == b"".join(chunk[::-1] for chunk in chunks)


def test_nothing_is_open_before_the_first_and_one_descriptor_afterwards(tmp_path: Path) -> None:
    before = open_descriptors()
    store = store_of(tmp_path)
    assert open_descriptors() == before
    for _ in range(5):
        kept(store, pattern(BIG))
    assert len(open_descriptors()) == len(before) + 1
    # Nobody finds it by a name, so nothing is left of it whatever ends this process.
    assert list(tmp_path.iterdir()) == []
    store.close()
    store.close()
    assert open_descriptors() == before


def test_a_file_system_that_knows_only_names_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if sys.platform == "linux" and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    store = store_of(tmp_path)
    artifact = kept(store, b"abc")
    assert whole(store, artifact) == b"abc"
    assert list(tmp_path.iterdir()) == []
    store.close()


def test_a_draft_is_none_before_its_end_and_a_discarded_one_never(tmp_path: Path) -> None:
    store = store_of(tmp_path, artifacts_bytes=2 * BLOCK)
    draft = store.begin("x", "output", "text/plain")
    draft.write(pattern(2 * BLOCK))
    assert store.all() == ()
    draft.discard()
    assert store.all() == ()
    assert kept(store, pattern(2 * BLOCK)).complete, "its blocks are free again"
    store.close()


def test_after_its_end_a_draft_takes_nothing(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    draft = store.begin("x", "output", "text/plain")
    draft.write(b"abc")
    artifact = draft.finish()
    draft.write(b"def")
    draft.discard()
    assert whole(store, artifact) == b"abc"
    store.close()


def test_names_are_labels_on_one_line(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    assert kept(store, b"", "a\n\tb\x1b[31m\ud800").name == "a b?[31m?"
    assert len(kept(store, b"", "x" * 1_000).name) == 100
    assert kept(store, b"", " \n").name == "output"
    store.close()


# -- bounds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "complete"), [(1_000, True), (1_001, False), (500_000, False)])
def test_one_artifact_is_bounded(tmp_path: Path, size: int, *, complete: bool) -> None:
    store = store_of(tmp_path, artifact_bytes=1_000)
    content = pattern(size)
    artifact = kept(store, content)
    assert (artifact.size, artifact.complete) == (1_000, complete)
    assert whole(store, artifact) == content[:1_000]
    assert artifact.sha256 == hashlib.sha256(content[:1_000]).hexdigest()
    assert ("artifact_bytes" in artifact.fault) is not complete
    store.close()


def test_the_oldest_go_first_by_number(tmp_path: Path) -> None:
    store = store_of(tmp_path, artifacts=3)
    made = [kept(store, b"%d" % number) for number in range(4)]
    assert store.all() == tuple(made[1:])
    assert store.get(made[0].id) is None
    with pytest.raises(UnknownArtifact, match="oldest go first"):
        store.read(made[0].id, 0, 1)
    store.close()


def test_the_oldest_go_first_by_size_and_the_file_does_not_grow(tmp_path: Path) -> None:
    store = store_of(tmp_path, artifacts_bytes=4 * BLOCK)
    made: list[Artifact] = []
    for number in range(20):
        content = pattern(BLOCK + 1, number * BIG)
        made.append(kept(store, content))
        assert whole(store, made[-1]) == content
    assert store.all() == tuple(made[-2:]), "two of two blocks each"
    assert whole(store, made[-2]) == pattern(BLOCK + 1, 18 * BIG)
    assert file_of(store).st_size <= 4 * BLOCK
    store.close()


def file_of(store: Artifacts) -> os.stat_result:
    return os.fstat(store._file._fd)


def test_an_artifact_that_fills_everything_is_cut_and_is_all_there_is(tmp_path: Path) -> None:
    store = store_of(tmp_path, artifacts_bytes=2 * BLOCK)
    kept(store, b"old")
    content = pattern(BIG)
    artifact = kept(store, content)
    assert (artifact.size, artifact.complete) == (2 * BLOCK, False)
    assert "artifacts_bytes" in artifact.fault
    assert store.all() == (artifact,)
    assert whole(store, artifact) == content[: 2 * BLOCK]
    store.close()


def test_what_is_being_written_makes_no_room_for_another(tmp_path: Path) -> None:
    store = store_of(tmp_path, artifacts_bytes=2 * BLOCK)
    one, two = store.begin("1", "output", "text/plain"), store.begin("2", "output", "text/plain")
    one.write(pattern(2 * BLOCK))
    two.write(b"abc")
    assert [draft.finish().size for draft in (one, two)] == [2 * BLOCK, 0]
    store.close()


# -- disks that refuse -----------------------------------------------------------------------------------------


def test_without_a_folder_nothing_is_kept_and_nothing_is_claimed() -> None:
    store = store_of("/nonexistent/folder")
    artifact = kept(store, b"abc")
    assert (artifact.size, artifact.complete) == (0, False)
    assert "temporary folder" in artifact.fault
    assert whole(store, artifact) == b""
    store.close()


def full_after(room: int) -> Callable[[int, memoryview, int], int]:
    """A `pwrite` on a disk with `room` bytes left."""
    left = [room]
    written = os.pwrite

    def pwrite(fd: int, piece: memoryview, offset: int) -> int:
        if not left[0]:
            raise OSError(28, os.strerror(28))
        done = written(fd, piece[: left[0]], offset)
        left[0] -= done
        return done

    return pwrite


@pytest.mark.parametrize("room", [0, 10, BLOCK, BLOCK + 10])
def test_a_full_disk_keeps_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    store = store_of(tmp_path)
    monkeypatch.setattr(os, "pwrite", full_after(room))
    content = pattern(BIG)
    draft = store.begin("x", "output", "text/plain")
    for start in range(0, BIG, 1_000):
        draft.write(content[start : start + 1_000])
    artifact = draft.finish()
    assert (artifact.size, artifact.complete, artifact.fault) == (room, False, os.strerror(28))
    assert whole(store, artifact) == content[:room]
    assert artifact.sha256 == hashlib.sha256(content[:room]).hexdigest()
    monkeypatch.undo()
    assert whole(store, kept(store, content)) == content, "a disk with room again is used again"
    store.close()


def test_a_closed_store_keeps_nothing_and_opens_nothing(tmp_path: Path) -> None:
    before = open_descriptors()
    store = store_of(tmp_path)
    draft = store.begin("x", "output", "text/plain")
    draft.write(pattern(BLOCK + 1))
    store.close()
    draft.write(pattern(BIG))
    late: Draft = store.begin("y", "output", "text/plain")
    late.write(b"abc")
    assert not draft.finish().complete
    assert not late.finish().complete
    assert store.all() == ()
    assert open_descriptors() == before


def test_the_folder_is_the_users_choice_and_there_is_another() -> None:
    assert folders({"TMPDIR": "/somewhere"})[0] == "/somewhere"
    assert folders({"TMPDIR": ""}) == folders({})
    assert folders({})
