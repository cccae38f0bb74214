"""What a guardian says of a kernel that withholds something: what is missing, what it costs, how it is mended."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repl_trio.process.launch import Root
from tests.process.guardian_driver import ALONE, BOUND, KERNELS, base_python, guarded, order, python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

IDLE = "import time; time.sleep(600)"
KERNEL = "import guardian_kernel as kernel;"
REFUSED = """
def refuse(*_):
    raise OSError({number}, "refused")
posix.pidfd_open = refuse
"""

WITHHELD = {
    "no prctl": ("sys.modules['_ctypes'] = None;", False, ["no _ctypes", "libffi"]),
    "prctl refused": (f"{KERNEL} kernel.prctl = lambda *_: False;", False, ["refuses prctl", "Allow prctl"]),
    "pidfds not built": ("import posix; del posix.pidfd_open;", True, ["without pidfd_open", "Python built for"]),
    "pidfds unknown": (f"import posix; exec({REFUSED.format(number=38)!r});", True, ["kernel has no", "Linux 5.3"]),
    "pidfds refused": (f"import posix; exec({REFUSED.format(number=1)!r});", True, ["filter refuses", "seccomp"]),
    "no signals by pidfd": (
        f"import _signal; exec({REFUSED.format(number=1).replace('posix.pidfd_open', '_signal.pidfd_send_signal')!r});",
        True,
        ["pidfd_send_signal", "seccomp"],
    ),
    "no lists of children": (f"{KERNEL} kernel.CHILDREN_FILES = False;", True, ["slower", "CONFIG_PROC_CHILDREN"]),
    "no /proc": (f"{KERNEL} kernel.PROC = kernel.CHILDREN_FILES = False;", False, ["not mounted", "mount -t proc"]),
    "child hidden": (
        f"{KERNEL} read = kernel.read_process; kernel.read_process = lambda pid: pid == 1 and read(pid) or None;",
        False,
        ["does not show", "hidepid=0"],
    ),
}


@pytest.mark.parametrize(("prelude", "subreaper", "words"), WITHHELD.values(), ids=WITHHELD)
def test_each_fault_is_told_with_its_fix_and_stops_nothing(prelude: str, words: list[str], *, subreaper: bool) -> None:
    with guarded(prelude=prelude) as guardian:
        guardian.order(order(python(IDLE)))
        answer = guardian.frame()
        assert answer is not None
        assert answer["error"] is None
        assert answer["subreaper"] is subreaper
        (fault,) = answer["faults"]
        assert all(word in fault for word in words), fault
        guardian.send({"op": "stop", "id": 1})
        code, clean = guardian.ending()
        assert (code, clean["left"]) == (-9, [])


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_a_system_has_not_by_nature_is_no_fault(kernel: str) -> None:
    with guarded(kernel=kernel) as guardian:
        guardian.order(order(python("")))
        answer = guardian.frame()
        assert answer is not None
        assert answer["subreaper"] is (kernel not in ALONE)
        assert len(answer["faults"]) == (kernel == "Linux without prctl")


TELL = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from tests.process.guardian_driver import guarded, order
nap = "import os, time; os.fork(); time.sleep(600)"
with guarded() as guardian:
    guardian.order(order([sys.executable, "-I", "-S", "-c", nap]))
    print(json.dumps([guardian.frame()]))
    guardian.send({"op": "stop", "id": 1})
    print(json.dumps(guardian.rest()))
"""
"""A server in a world of its own prints what its guardian says."""

WORLDS = {
    "without /proc": ("-Urm", "mount -t tmpfs none /proc"),
    "with the /proc of another pid namespace": ("-Urpf", "true"),
}


@pytest.mark.parametrize(("how", "first"), WORLDS.values(), ids=WORLDS)
def test_a_proc_that_is_not_ours_is_not_read(how: str, first: str) -> None:
    program = [base_python(), "-I", "-S", "-c", TELL, str(Path(__file__).parents[2])]
    inside = ["unshare", how, "sh", "-c", f'{first} && exec "$@"', "sh"]
    try:
        subprocess.run([*inside, "true"], capture_output=True, timeout=BOUND, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces are not allowed here")
    done = subprocess.run([*inside, *program], capture_output=True, timeout=BOUND, check=True)
    (spawned,), (exited, clean) = map(json.loads, done.stdout.splitlines())
    assert spawned["subreaper"] is False
    (fault,) = spawned["faults"]
    assert "shows another pid namespace" in fault
    assert exited["code"] == -9
    assert (clean["why"], clean["left"]) == ("stop", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who is at the limit")
def test_no_more_processes_is_told_with_the_fix() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0));"
    with guarded(prelude=f"import guardian, posix; {limit} posix.setresuid(65534, 65534, 65534);") as guardian:
        guardian.order(order(python(IDLE)))
        (answer,) = guardian.rest()
        assert answer["pid"] is None
        assert "the limit on processes is reached" in answer["error"]
        assert "ulimit -u" in answer["error"]


def test_a_server_that_may_start_nothing_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **_more: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refuse)
    with pytest.raises(BlockingIOError, match="limit on processes is reached"):
        Root().order({"op": "kill", "id": 1})


@pytest.mark.parametrize(("name", "error"), [("none", FileNotFoundError), ("plain", PermissionError)])
def test_an_interpreter_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[OSError]
) -> None:
    (tmp_path / "plain").touch()
    monkeypatch.setattr(sys, "_base_executable", str(tmp_path / name), raising=False)
    with pytest.raises(error, match=f"{name}, the server's own interpreter; install it"):
        Root().order({"op": "kill", "id": 1})
