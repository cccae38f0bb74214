"""What this kernel withholds from a guardian, in sentences: what is missing, what it costs, and how to mend it.

Loaded only where something is missing. Systems without these things by nature (macOS) have no faults: nobody can mend
them.
"""

import errno
import posix
import sys

import guardian_kernel as kernel

NO_LIST = (
    "/proc is not mounted, or shows another pid namespace: processes cannot be listed, and what has left its worker's "
    "process group may survive the worker. Mount it: mount -t proc proc /proc"
)
HIDDEN = (
    "/proc does not show the worker to its guardian: what has left the worker's process group may survive it. Mount "
    "/proc without hidepid (mount -o remount,hidepid=0 /proc)"
)
NO_CHILDREN = (
    "The kernel does not list the children of a process: each kill reads all of /proc instead, which is slower. Use a "
    "kernel with CONFIG_PROC_CHILDREN"
)
NO_CTYPES = (
    "The server's Python has no _ctypes, by which prctl is called: detached processes do not come back to the guardian "
    "and are found by their parents, group and environment alone. Use a Python that was built with libffi"
)
NO_PRCTL = (
    "The system refuses prctl(PR_SET_CHILD_SUBREAPER): detached processes do not come back to the guardian, and are "
    "found by their parents, group and environment alone. Allow prctl in the system call filter"
)
NO_ROOT = "so nobody looks after what a guardian that is killed leaves behind"


def faults(*, subreaper: bool, hidden: bool) -> list[str]:
    """The faults of this system; `hidden`: /proc does not show our own child."""
    if not kernel.LINUX:
        return []
    found = []
    if not kernel.PROC:
        found.append(NO_LIST)
    elif hidden:
        found.append(HIDDEN)
    elif not kernel.CHILDREN_FILES:
        found.append(NO_CHILDREN)
    if not subreaper:
        found.append(NO_PRCTL if _has_ctypes() else NO_CTYPES)
    if not kernel.PIDFDS:
        found.append(_about_pidfds())
    return found


def _has_ctypes() -> bool:
    try:
        import _ctypes
    except ImportError:
        return False
    return hasattr(_ctypes, "call_function")


def _about_pidfds() -> str:
    if sys.platform == "linux" and not hasattr(posix, "pidfd_open"):
        return f"The server's Python was built without pidfd_open, {NO_ROOT}. Use a Python built for Linux 5.3 or newer"
    if _refusal() == errno.ENOSYS:
        return f"The kernel has no pidfd_open, {NO_ROOT}. It came with Linux 5.3; some sandboxes leave it out"
    return (
        f"A system call filter refuses pidfd_open or pidfd_send_signal, {NO_ROOT}. Allow both in the container's "
        "seccomp profile, or update the container engine"
    )


def _refusal() -> int:
    """The errno with which pidfd_open fails, 0 when it does not."""
    if sys.platform == "linux" and hasattr(posix, "pidfd_open"):
        try:
            posix.close(posix.pidfd_open(posix.getpid(), 0))
        except OSError as error:
            return error.errno or 0
    return 0
