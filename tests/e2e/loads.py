"""What a worker may have started or be doing when somebody ends: the columns of the survivors matrix.

A cell made by `cell` plants its load, then writes the pids it knows of into a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LEFT, RUNNING = "left", "running"
"""The two states: the cell has completed and left the load behind, or still runs."""


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of load. `code` leaves the pids of what it has started in `told`.

    `count`: processes beside the worker that must be there, or more. `states`: those it can be in. `holds`: what the
    cell does then, where waiting is not enough. `busy`: it takes a processor of its own.
    """

    code: str = "told = []"
    count: int = 1
    states: tuple[str, ...] = (LEFT, RUNNING)
    holds: str = ""
    busy: bool = False


_DAEMON = """
read, write = os.pipe()
if (child := os.fork()) == 0:
    try:
        os.setsid()
        if os.fork() == 0:
            os.write(write, b"%d\\n" % os.getpid())
            while True: signal.pause()
    finally:
        os._exit(0)
os.waitpid(child, 0)
told = [int(os.read(read, 20))]
"""
_NOHUP = """
command = "nohup setsid sh -c 'echo $$ >&3; exec 3>&-; exec sleep 600' 3>&1 >/dev/null 2>&1 &"
told = [int(subprocess.run(command, shell=True, stdout=subprocess.PIPE).stdout)]
"""
_CROWD = """
told = []
for _ in range(200):
    if (child := os.fork()) == 0:
        try:
            while True: signal.pause()
        finally:
            os._exit(0)
    told.append(child)
"""
_STOPPED = """
stopped = subprocess.Popen(["sh", "-c", "kill -STOP $$; exec sleep 600"], start_new_session=True)
os.waitpid(stopped.pid, os.WUNTRACED)
told = [stopped.pid]
"""
_DEAF = """
deaf = ["sh", "-c", "trap '' TERM INT HUP; echo ready; sleep 600; sleep 600"]
deaf = subprocess.Popen(deaf, stdout=subprocess.PIPE, start_new_session=True)
deaf.stdout.readline()
told = [deaf.pid]
"""
_HOLDS_OUTPUT = """
told = [subprocess.Popen(["sleep", "600"], start_new_session=own).pid for own in (False, True)]
"""
_POOL = """
import multiprocessing, pool_work
pool = multiprocessing.get_context({method!r}).Pool(2)
pool.map_async(pool_work.nap, range(2))
told = [process.pid for process in pool._pool]
"""
_UNREAD = """
import select
unread = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
select.select([unread.stdout], [], [])
told = [unread.pid]
"""
_FLOOD = """
def flood():
    while True: os.write(1, b"y" * 65_536)
threading.Thread(target=flood, daemon=True).start()
told = []
"""

POOL_WORK = "import time\ndef nap(_): time.sleep(600)\n"
"""The module `pool_work`, which must be importable: spawned processes load the function from it."""

LOADS = {
    "sleeping child": Load('told = [subprocess.Popen(["sleep", "600"]).pid]'),
    "start_new_session child": Load('told = [subprocess.Popen(["sleep", "600"], start_new_session=True).pid]'),
    "double-forked daemon": Load(_DAEMON),
    "nohup setsid &": Load(_NOHUP),
    "200 forked processes": Load(_CROWD, count=200),
    "stopped child": Load(_STOPPED),
    "child ignoring SIGTERM": Load(_DEAF, count=2),
    "children holding the output": Load(_HOLDS_OUTPUT, count=2),
    "fork pool": Load(_POOL.format(method="fork"), count=2),
    "spawn pool": Load(_POOL.format(method="spawn"), count=3),
    "forkserver pool": Load(_POOL.format(method="forkserver"), count=4),
    "child whose output nobody reads": Load(_UNREAD),
    "child flooding the output": Load('told = [subprocess.Popen(["yes"]).pid]', busy=True),
    "cell flooding the output": Load(_FLOOD, count=0, states=(RUNNING,), busy=True),
    "GIL held by foreign C code": Load(
        count=0, states=(RUNNING,), holds="import ctypes; ctypes.PyDLL(None).sleep(600)"
    ),
    "GIL held by sum": Load(count=0, states=(RUNNING,), holds="sum(range(10 ** 12))", busy=True),
}

#: How a worker ends itself: (from Python, from C code that holds the GIL).
FATAL = {
    "worker segfault": ("import ctypes; ctypes.string_at(0)", "import ctypes; ctypes.PyDLL(None).strlen(None)"),
    "os._exit": ("os._exit(7)", "import ctypes; ctypes.PyDLL(None)._exit(7)"),
}


def cell(load: Load, told: Path) -> str:
    """The cell that plants a load and writes "worker pid pid ...\\n" into the file `told`."""
    return (
        "import os, signal, subprocess, sys, threading, time\n"
        # Or a server that some other test starts meanwhile would sweep what is left, and hide it.
        "os.environ.pop('REPL_TRIO_SERVER', None)\n"
        f"{load.code}\n"
        f"with open({str(told)!r}, 'w') as file: file.write(' '.join(map(str, [os.getpid(), *told])) + '\\n')\n"
    )


def then(load: Load, how: str, order: Path) -> str:
    """What a running cell does then: it waits in its own way, or for a line in `order`, to end its worker."""
    if how not in FATAL:
        return load.holds or "time.sleep(600)"
    from_python, from_c = FATAL[how]
    return f"with open({str(order)!r}) as file: file.readline()\n{from_c if load.holds else from_python}"
