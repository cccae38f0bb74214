"""The guardian seen from the server's side: start, descriptors, signals, and the records it writes."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.process.guardian_driver import (
    Guarded,
    guarded,
    order,
    pipes,
    python,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

NOTHING = "import time; time.sleep(600)"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os._exit(255)", 255),
        ("import os; os.kill(os.getpid(), 11)", -11),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_exit_code_is_reported_before_the_clean_record(source: str, code: int) -> None:
    with guarded() as guardian:
        guardian.spawn(python(source))
        seen, clean = guardian.ending()
        assert seen == code
        assert clean.pop("ms") >= 0
        assert clean == {"ev": "clean", "killed": 0, "left": [], "why": None}


def test_spawned_names_the_child_and_the_guardian() -> None:
    with guarded() as guardian:
        guardian.order(order(python(NOTHING)))
        answer = guardian.frame()
        assert answer is not None
        assert answer["guardian"] == guardian.pid
        assert answer["subreaper"] is True
        assert os.getpgid(guardian.pid) == guardian.pid
        assert os.getsid(answer["pid"]) == os.getpgid(answer["pid"]) == answer["pid"]


@pytest.fixture
def unusable(tmp_path: Path) -> Path:
    """A folder with a file that is not executable, a script without interpreter, and a script that works."""
    (tmp_path / "plain").write_text("nothing")
    for name, text in (("torn", "#!/no/such/interpreter\n"), ("works", "#!/bin/sh\nexit 7\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("argv", "fields", "error"),
    [
        (["{}/none"], {}, "FileNotFoundError: [Errno 2] No such file or directory: '{}/none'"),
        (["no-such-command"], {}, "FileNotFoundError: [Errno 2] No such file or directory: 'no-such-command'"),
        (["none/x"], {"cwd": "{}"}, "FileNotFoundError: [Errno 2] No such file or directory: 'none/x'"),
        (["{}/plain"], {}, "PermissionError: [Errno 13] Permission denied: '{}/plain'"),
        (["plain"], {"env": {"PATH": "/none:{}"}}, "PermissionError: [Errno 13] Permission denied: '{}/plain'"),
        (["{}"], {}, "PermissionError: [Errno 13] Permission denied: '{}'"),
        (["{}/torn"], {}, "FileNotFoundError: [Errno 2] No such file or directory: '{}/torn'"),
        (["true"], {"cwd": "{}/none"}, "FileNotFoundError: [Errno 2] No such file or directory: '{}/none'"),
        (["true"], {"cwd": "{}/plain"}, "NotADirectoryError: [Errno 20] Not a directory: '{}/plain'"),
        (["{}/works", "a\0b"], {}, "ValueError: embedded null byte"),
        (["{}/works"], {"env": {"A=B": "x"}}, "ValueError: illegal environment variable name"),
    ],
)
def test_spawn_errors_come_back_by_name(unusable: Path, argv: list[str], fields: dict[str, object], error: str) -> None:
    def fill(value: object) -> object:
        return json.loads(json.dumps(value).replace("{}", str(unusable)))

    with guarded() as guardian:
        guardian.order(order([str(fill(part)) for part in argv], **{key: fill(value) for key, value in fields.items()}))
        says = {"pid": None, "guardian": guardian.pid, "subreaper": True, "error": fill(error), "faults": []}
        assert guardian.rest() == [{"ev": "spawned", **says}]


def test_command_without_slash_is_found_on_the_path_of_the_order(unusable: Path) -> None:
    with guarded() as guardian:
        guardian.spawn(["works"], env={"PATH": f"/none:{unusable / 'plain'}:{unusable}"})
        assert guardian.ending()[0] == 7


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"op": "signal"},
        {"argv": []},
        {"argv": ["true", 1]},
        {"argv": ["true", "\ud800"]},
        {"env": []},
        {"env": {"A": None}},
        {"cwd": None},
        {"fds": [0, 1]},
        {"fds": [0, 1, 1]},
        {"fds": [0, 1, -1]},
        {"fds": [0, 1, True]},
        {"oom": "much"},
        {"orphan": [[15]]},
        {"leftover": [[99, 1]]},
        {"server": "me"},
    ],
    ids=repr,
)
def test_malformed_order_starts_nothing_and_says_why(change: dict[str, object]) -> None:
    with guarded() as guardian:
        guardian.order(order(python(NOTHING)) | change)
        (answer,) = guardian.rest()
        assert answer["pid"] is None
        assert "Error: " in answer["error"]


@pytest.mark.parametrize("line", [b"", b"{", b"nonsense\n"])
def test_end_before_an_order_is_the_end(line: bytes) -> None:
    with guarded() as guardian:
        guardian.send_raw(line)
        guardian.socket.shutdown(1)
        assert all(frame["pid"] is None for frame in guardian.rest())


def test_order_from_another_process_than_the_parent_is_not_obeyed(tmp_path: Path) -> None:
    with guarded() as guardian:
        guardian.order(order(["touch", str(tmp_path / "started")], server=1))
        assert guardian.rest() == []
        assert list(tmp_path.iterdir()) == []


def test_order_may_come_in_pieces() -> None:
    with guarded() as guardian:
        line = json.dumps(order(python("raise SystemExit(4)"), env={"LONG": "x" * 100_000})).encode() + b"\n"
        with open(os.devnull, "r+b", buffering=0) as null:
            guardian.send_raw(line[:10], [null.fileno()] * 3)
        guardian.send_raw(line[10:])
        assert [frame.get("code") for frame in guardian.rest()] == [None, 4, None]


@pytest.mark.parametrize("targets", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [7, 0, 1, 5, 2], [20, 0, 1, 14, 2]])
def test_descriptors_are_handed_over_exactly(targets: list[int]) -> None:
    source = """
import os
held = {}
for name in os.listdir("/proc/self/fd"):
    try:
        held[int(name)] = (os.fstat(int(name)).st_ino, os.get_inheritable(int(name)))
    except OSError:
        pass
os.write(%d, repr(held).encode())
"""
    with guarded() as guardian, pipes(5) as (readers, writers):
        leaked = os.dup(writers[0])
        os.set_inheritable(leaked, True)
        with guarded() as other:
            os.close(leaked)
            other.spawn(python(NOTHING))
            assert not {os.fstat(fd).st_ino for fd in writers} & held_inodes(other.pid)
        guardian.spawn(python(source % targets[-1]), writers, fds=targets)
        assert not {os.fstat(fd).st_ino for fd in writers} & held_inodes(guardian.pid)
        inodes = [os.fstat(fd).st_ino for fd in writers]
        assert guardian.ending()[0] == 0
        expected = {target: (inode, True) for target, inode in zip(targets, inodes, strict=True)}
        assert eval(os.read(readers[-1], 65536)) == expected


def held_inodes(pid: int) -> set[int]:
    return {os.stat(f"/proc/{pid}/fd/{fd}").st_ino for fd in os.listdir(f"/proc/{pid}/fd")}


def test_missing_standard_descriptors_are_the_null_device() -> None:
    source = "import os; os.write(5, b'%d %d %d' % tuple(os.fstat(fd).st_rdev for fd in (0, 1, 2)))"
    with guarded() as guardian, pipes(1) as (readers, writers):
        guardian.spawn(python(source), writers, fds=[5])
        assert guardian.ending()[0] == 0
        number = os.stat(os.devnull).st_rdev
        assert os.read(readers[0], 100).split() == [str(number).encode()] * 3


def test_bytes_of_arguments_and_environment_arrive_unchanged() -> None:
    odd = bytes(range(1, 256)) + "\u20ac\U0001f600".encode()
    source = "import os, sys; os.write(1, os.fsencode(sys.argv[1]) + os.environb[b'ODD'] + os.getcwdb())"
    with guarded() as guardian, pipes(3) as (readers, writers):
        text = odd.decode("utf-8", "surrogateescape")
        guardian.spawn(python(source, text), [readers[0], writers[1], writers[2]], env={"ODD": text}, cwd="/usr")
        assert guardian.ending()[0] == 0
        assert os.read(readers[1], 65536) == odd + odd + b"/usr"


def test_secrets_are_not_in_what_others_can_read_of_the_guardian() -> None:
    with guarded() as guardian:
        child = guardian.spawn(python(NOTHING, "secret-argument"), env={"TOKEN": "secret-value"})
        assert b"secret-value" in Path(f"/proc/{child}/environ").read_bytes()
        shown = b"".join(Path(f"/proc/{guardian.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        assert b"secret" not in shown


def test_child_starts_with_default_signals_whatever_the_server_had() -> None:
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        guardian = Guarded(default_signals=())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        for number, action in before.items():
            signal.signal(number, action)
    try:
        child = guardian.spawn(["sleep", "600"])
        fields = dict(line.split(":\t") for line in Path(f"/proc/{child}/status").read_text().splitlines())
        # 32 and 33 belong to the C library, which lets nobody change them.
        assert int(fields["SigIgn"], 16) & ~(0b11 << 31) == int(fields["SigBlk"], 16) == 0
        assert guardian.ask("signal", sig=2, to="child")["n"] == 1
        assert guardian.ending()[0] == -2
    finally:
        guardian.close()


def test_child_is_offered_to_the_oom_killer_before_the_server() -> None:
    with guarded() as guardian:
        child = guardian.spawn(["sleep", "600"], oom=300)
        ours = int(Path("/proc/self/oom_score_adj").read_text())
        assert int(Path(f"/proc/{child}/oom_score_adj").read_text()) == min(ours + 300, 1000)
        assert int(Path(f"/proc/{guardian.pid}/oom_score_adj").read_text()) == ours
