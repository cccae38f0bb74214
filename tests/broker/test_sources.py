"""Files that are not ours: whatever lies at their path, looking at it ends at once and says what is wrong."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from repl_trio.broker.config.sources import Source, Unusable

LIMIT = 4_096


def source(path: Path, *, exact: bool = True, needed: bool = False) -> Source[Any]:
    return Source(str(path), ("config_bytes", LIMIT), lambda parsed: parsed, exact=exact, needed=needed)


def settle(path: Path) -> None:
    """As if written long ago: a file written just now is read again, because its times may not tell the next write."""
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1}',
        b'\xef\xbb\xbf{"a":1}',
        b'\xef\xbb\xbf{\r\n  "a": 1\r\n}\r\n',
        b'\n\t {"a" : 1 } \n',
    ],
)
def test_bom_and_line_ends_make_no_difference(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(raw)
    found = source(path)
    assert found.look()
    assert (found.content, found.fault) == ({"a": 1}, None)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf \n", "is empty"),
        ('{"a":1}'.encode("utf-16"), "UTF-16"),
        ('{"a":1}'.encode("utf-16-be"), "UTF-16"),
        ('{"a":1}'.encode("utf-16-le"), "UTF-16"),
        (b'{"a":"\xff"}', "is not UTF-8 text (byte 6)"),
        (b'{"a":1,}', "is not JSON: line 1, column 8"),
        (b'{\r\n"a": 1\r\n"b": 2}', "is not JSON: line 3, column 1: Expecting ',' delimiter"),
        (b'{"a": 1 // note\n}', "line 1, column 9: Expecting ',' delimiter; comments are not JSON"),
        (b'/* note */ {"a": 1}', "comments are not JSON"),
        (b'{"a": NaN}', "is not JSON: NaN"),
        (b'{"a": ' + b"9" * 4_000 + b"}", None),
        (b'{"a":1} {"b":2}', "line 1, column 9: Extra data"),
        (b'{"m":{"a":1,"b":2,"a":3}}', "the key 'a' is there twice in one object"),
        (b'{"' + b"k" * 300 + b'":1,"' + b"k" * 300 + b'":1}', "the key '" + "k" * 100 + "' is there twice"),
        (b"[" * LIMIT, "is not JSON"),
        (b"x" * (LIMIT + 1), f"is larger than the {LIMIT} bytes that the limit `config_bytes` allows"),
    ],
)
def test_what_cannot_be_read_says_why_and_stays_as_it_is(tmp_path: Path, raw: bytes, fault: str | None) -> None:
    path = tmp_path / "f"
    path.write_bytes(raw)
    settle(path)
    before = os.stat(path)
    found = source(path)
    found.look()
    if fault is None:
        assert found.fault is None
    else:
        assert found.content is None
        assert fault in (found.fault or "")
    after = os.stat(path)
    assert path.read_bytes() == raw
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_nesting_without_end_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"[" * 200_000)
    found: Source[object] = Source(str(path), ("config_bytes", 1 << 20), lambda parsed: parsed)
    found.look()
    assert found.fault in ("is not JSON: nested too deeply", "is not JSON: not JSON")


def test_a_number_of_thousands_of_digits_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"9" * 5_000)
    found: Source[object] = Source(str(path), ("config_bytes", 1 << 20), lambda parsed: parsed)
    found.look()
    assert (found.fault or "").startswith("is not JSON")


def test_a_file_of_the_limits_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b" " * (LIMIT - 2) + b"{}")
    found = source(path)
    found.look()
    assert (found.content, found.fault) == ({}, None)


def test_another_programs_file_is_taken_as_that_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text('{"a":1,"a":2}')
    found = source(path, exact=False)
    found.look()
    assert found.content == {"a": 2}


@pytest.mark.parametrize("kind", ["FIFO", "directory", "device", "socket", "loop", "link to a FIFO"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "f"
    listener = None
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.relpath(path))
    elif kind == "loop":
        path.symlink_to("g")
        (tmp_path / "g").symlink_to("f")
    else:
        os.mkfifo(tmp_path / "g")
        path.symlink_to("g")
    found = source(path)
    found.look()
    expected = (
        "symbolic links lead in a circle" if kind == "loop" else f"is a {kind.removeprefix('link to a ')}, not a file"
    )
    assert found.fault == expected
    assert not found.look()
    if listener is not None:
        listener.close()


def test_a_file_without_permission_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = tmp_path / "f"
    path.write_text("{}")
    monkeypatch.setattr(os, "open", refuse)  # root, who may run the tests, reads everything
    found = source(path)
    found.look()
    assert found.fault == "cannot be read (Permission denied)"


def test_a_system_error_is_told_by_its_words(tmp_path: Path) -> None:
    found = source(tmp_path / ("n" * 300))
    found.look()
    assert found.fault == "cannot be read (File name too long)"


def test_a_missing_file_is_a_fault_only_where_it_was_named(tmp_path: Path) -> None:
    optional, needed = source(tmp_path / "f"), source(tmp_path / "f", needed=True)
    behind_a_file = source(Path(__file__) / "f")
    for found in (optional, needed, behind_a_file):
        found.look()
    assert (optional.content, optional.fault) == (None, None)
    assert (behind_a_file.content, behind_a_file.fault) == (None, None)
    assert needed.fault == "does not exist"


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "g").write_text("{}")
    (tmp_path / "f").symlink_to("g")
    found = source(tmp_path / "f")
    found.look()
    assert found.content == {}


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_text("{}")
    settle(path)
    found = source(path)
    monkeypatch.setattr("repl_trio.broker.config.sources._RACY", -(10**18))
    assert found.look()
    monkeypatch.setattr("repl_trio.broker.config.sources._read", lambda *_: pytest.fail("read again"))
    assert not found.look()


def test_a_change_that_no_time_tells_is_seen_while_the_file_is_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes within one tick of the file system's clock leave the same times."""
    path = tmp_path / "f"
    path.write_text('{"a": 1}')
    same = (time.time_ns(), time.time_ns(), 8)
    monkeypatch.setattr("repl_trio.broker.config.sources._signature", lambda _path: same)
    found = source(path)
    assert found.look()
    path.write_text('{"a": 2}')
    assert found.look()
    assert found.content == {"a": 2}


def test_a_large_file_is_read_again_once_it_is_no_longer_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client writes its state file all the time, and each call looks."""
    now = 10**18
    monkeypatch.setattr(time, "time_ns", lambda: now)
    monkeypatch.setattr("repl_trio.broker.config.sources._signature", lambda _path: (10**18, 10**18, 100_000))
    path = tmp_path / "f"
    path.write_text('{"a": 1}')
    found = source(path)
    assert found.look()
    path.write_text('{"a": 2}')
    now += 1_900_000_000
    assert not found.look()
    now += 200_000_000
    assert found.look()
    assert found.content == {"a": 2}
    path.write_text('{"a": 3}')  # after that the times would tell
    assert not found.look()


@pytest.mark.parametrize("edit", ["content", "same size and time", "replaced", "removed", "into a fifo"])
def test_every_change_is_seen(tmp_path: Path, edit: str) -> None:
    path = tmp_path / "f"
    path.write_text('{"a": 1}')
    settle(path)
    found = source(path)
    assert found.look()
    assert not found.look()
    if edit == "content":
        path.write_text('{"a": 22}')
    elif edit == "same size and time":
        path.write_text('{"a": 2}')
        settle(path)
    else:
        path.unlink()
        if edit == "replaced":
            path.write_text('{"a": 2}')
        elif edit == "into a fifo":
            os.mkfifo(path)
    assert found.look()
    expected = {"removed": None, "into a fifo": None, "content": {"a": 22}}.get(edit, {"a": 2})
    assert found.content == expected
    assert not found.look()


def test_a_file_that_comes_back_after_a_fault_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("{}")
    found = source(path)
    found.look()
    path.write_text("{")
    found.look()
    assert found.fault
    path.write_text("{}")
    assert found.look()
    assert found.content == {}
    assert found.fault is None


def test_writing_the_same_again_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("{}")
    found = source(path)
    assert found.look()
    path.write_text("{}")
    assert not found.look()


def test_forgetting_reads_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("{}")
    settle(path)
    found = source(path)
    found.look()
    found.forget()
    assert found.look()


def test_what_is_kept_may_refuse(tmp_path: Path) -> None:
    def refuse(_parsed: object) -> object:
        raise Unusable("is not what it should be")

    path = tmp_path / "f"
    path.write_text("{}")
    found: Source[object] = Source(str(path), ("config_bytes", LIMIT), refuse)
    assert found.look()
    assert found.fault == "is not what it should be"


def test_a_file_that_grows_while_it_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of /proc tell a size of 0 as well."""
    path = tmp_path / "f"
    path.write_bytes(b"")
    monkeypatch.setattr(os, "read", lambda _fd, size: b"x" * size)
    found = source(path)
    found.look()
    assert "is larger than" in (found.fault or "")


@pytest.mark.parametrize("kind", ["device", "FIFO"])
def test_a_file_replaced_between_look_and_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "f"
    if kind == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    regular = os.stat(__file__)
    monkeypatch.setattr(os, "stat", lambda _path: regular)
    found = source(path)
    found.look()
    assert found.fault == f"is a {kind}, not a file"
    assert stat.S_ISREG(regular.st_mode)


def test_a_large_file_without_faults_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    content = {f"key{index}": "v" * 100 for index in range(30_000)}
    path.write_text(json.dumps(content))
    found: Source[object] = Source(str(path), ("config_bytes", 8 << 20), lambda parsed: parsed, exact=True)
    found.look()
    assert found.content == content
