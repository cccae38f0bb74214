"""The cells: quick ones with a known value, endless ones that write markers, and those that end their worker.

Every cell can leave lines in a file of its own. A line `worker N` or `pid N` names a process of the run; every other
line is an effect, which after the run was answered may not happen any more.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path

PYTHON = sys.executable

_HEAD = """
import asyncio, os, signal, subprocess, sys, threading, time
def mark(word, path={path!r}):
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, (word + "\\n").encode())
    os.close(file)
mark(f"worker {{os.getpid()}}")
loop = "while :; do echo tick >> {path}; sleep 0.1; done"
"""

#: Cells that end by themselves: source and the value of `outcome` that they leave.
QUICK: Mapping[str, tuple[str, object]] = {
    "arithmetic": ("outcome = 6 * 7", 42),
    "print": ("print('some text'); outcome = 1", 1),
    "big output": ("print('y' * 300_000); outcome = 2", 2),
    "many lines": ("for i in range(3_000): print(i, file=sys.stderr)\noutcome = 3", 3),
    "await": ("await asyncio.sleep(0.01); outcome = 4", 4),
    "tasks": ("outcome = sum(await asyncio.gather(*[asyncio.sleep(0.01, i) for i in range(5)]))", 10),
    "task left": ("asyncio.get_running_loop().create_task(asyncio.sleep(60)); await asyncio.sleep(0); outcome = 6", 6),
    "thread": ("t = threading.Thread(target=time.sleep, args=(0.02,)); t.start(); t.join(); outcome = 7", 7),
    "sh": ("outcome = sh('echo eight').strip()", "eight"),
    "child": ("outcome = subprocess.run(['/bin/sh', '-c', 'exit 9']).returncode", 9),
    "short sleep": ("time.sleep(0.1); outcome = 10", 10),
    "swallowed": ("try: raise KeyboardInterrupt\nexcept KeyboardInterrupt: outcome = 11", 11),
    "finally": ("try: outcome = 12\nfinally: mark('finally')", 12),
    "empty": ("outcome = None", None),
}

#: Cells that fail in order: source and the error code of their result.
FAILING: Mapping[str, tuple[str, str]] = {
    "exception": ("1 / 0", "EXCEPTION"),
    "exit": ("sys.exit(3)", "SYSTEM_EXIT"),
    "syntax": ("def", "EXCEPTION"),
    "interrupt itself": ("raise KeyboardInterrupt", "EXCEPTION"),
}

#: Cells that end their worker.
FATAL: Mapping[str, str] = {
    "os._exit": "os._exit(3)",
    "segfault": "os.kill(os.getpid(), signal.SIGSEGV)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGKILL with children": "subprocess.Popen(['/bin/sh', '-c', loop], start_new_session=True)\n"
    "time.sleep(0.1)\nos.kill(os.getpid(), signal.SIGKILL)",
    "closed descriptors": "os.closerange(3, 100_000)\ntime.sleep(60)",
    "thread left": "threading.Thread(target=lambda: [(mark('thread'), time.sleep(0.1)) for _ in range(600)]).start()",
}

_FORKED = """
child = os.fork()
if child == 0:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
    mark(f"pid {os.getpid()}")
    while True: mark("forked"); time.sleep(0.05)
os.waitpid(child, 0)
"""
_DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        mark(f"pid {os.getpid()}")
        while True: mark("daemon"); time.sleep(0.05)
    os._exit(0)
os.wait()
time.sleep(60)
"""

#: Cells that never end by themselves and have effects all the time.
ENDLESS: Mapping[str, str] = {
    "sleep": "while True: mark('awake'); time.sleep(0.05)",
    "one long sleep": "time.sleep(1.2); mark('late'); time.sleep(60)",
    "busy loop": "n = 0\nwhile True:\n    n += 1\n    if n % 200_000 == 0: mark('busy')",
    "finally writes": "try: time.sleep(60)\nfinally:\n    mark('finally'); time.sleep(0.2); mark('finally ended')",
    "sh": "sh(loop, timeout=60)",
    "os.system": "os.system(loop)",
    "subprocess.run": "subprocess.run(['/bin/sh', '-c', loop])",
    "detached child": "p = subprocess.Popen(['/bin/sh', '-c', loop], start_new_session=True); mark(f'pid {p.pid}')\n"
    "p.wait()",
    "nohup": "os.system(f'setsid nohup /bin/sh -c \"{loop}\" >/dev/null 2>&1 &')\ntime.sleep(60)",
    "deaf child": "p = subprocess.Popen(['/bin/sh', '-c', \"trap '' INT TERM HUP; \" + loop]); mark(f'pid {p.pid}')\n"
    "time.sleep(60)",
    "stopped child": "p = subprocess.Popen(['/bin/sh', '-c', 'kill -STOP $$; ' + loop]); mark(f'pid {p.pid}')\n"
    "time.sleep(60)",
    "forking child": "subprocess.Popen(['/bin/sh', '-c', loop.replace('sleep', '(sleep 0.2; :) & sleep')])\n"
    "time.sleep(60)",
    "child holds output": "subprocess.Popen(['/bin/sh', '-c', 'while :; do echo out; sleep 0.1; done'])\n"
    "time.sleep(60)",
    "forked": _FORKED,
    "daemon": _DAEMON,
    "await": "await asyncio.sleep(60)",
    "awaited task": "async def ticks():\n    while True:\n        mark('task'); await asyncio.sleep(0.05)\n"
    "await asyncio.gather(ticks(), ticks())",
    "awaited finally": "try: await asyncio.sleep(60)\nfinally:\n    mark('finally'); await asyncio.sleep(0.1)\n"
    "    mark('end')",
    "awaited child": "p = await asyncio.create_subprocess_shell(loop)\nmark(f'pid {p.pid}')\nawait p.wait()",
    "thread": "def ticks():\n    while True: mark('thread'); time.sleep(0.05)\n"
    "t = threading.Thread(target=ticks); t.start(); t.join()",
    "daemon thread": "def ticks():\n    while True: mark('thread'); time.sleep(0.05)\n"
    "threading.Thread(target=ticks, daemon=True).start(); time.sleep(60)",
    "swallows": "while True:\n    try:\n        while True: mark('on'); time.sleep(0.05)\n"
    "    except KeyboardInterrupt: mark('swallowed')",
    "swallows once": "try: time.sleep(60)\nexcept KeyboardInterrupt: mark('swallowed')\ntime.sleep(60)",
    "C loop": "sum(range(10**13))",
    "flood": "while True: print('x' * 1_000)",
    "child floods": "subprocess.run(['/bin/sh', '-c', 'while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done'])",
}

#: Cells that leave a process behind on purpose; their value is its pid.
KEPT: Mapping[str, str] = {
    "child": "subprocess.Popen(['sleep', '3600']).pid",
    "detached": "subprocess.Popen(['sleep', '3600'], start_new_session=True).pid",
    "server": f"subprocess.Popen([{PYTHON!r}, '-I', '-S', '-c', 'import time; time.sleep(3600)'], "
    "stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid",
}


class Marks:
    """The file that one cell writes its lines into."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.answered: int | None = None  # its size when the run was answered

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def lines(self) -> list[str]:
        """What was written so far."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    @property
    def processes(self) -> set[int]:
        """The processes of the run that told their pid, but for the worker."""
        return {int(line.split()[1]) for line in self.lines if line.startswith("pid ")}

    def freeze(self) -> None:
        """The run has been answered: what is written from here on is late."""
        self.answered = self.size

    @property
    def late(self) -> str:
        """What was written after the answer."""
        if self.answered is None or self.size <= self.answered:
            return ""
        return self.path.read_bytes()[self.answered :][:200].decode(errors="replace")


def head(marks: Marks) -> str:
    """What every cell begins with."""
    return _HEAD.format(path=str(marks.path))


def quick(marks: Marks, body: str) -> str:
    """A quick cell: its value is what was planted in the namespace and its outcome."""
    return f"{head(marks)}{body}\n[globals().get('planted'), outcome]"


def choose(kinds: Mapping[str, object], rng: random.Random) -> str:
    """One of the kinds."""
    return rng.choice(list(kinds))
