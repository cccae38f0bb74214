"""The cells that the interrupt sweeps stop: what blocks, spins, catches, delays, and what never lets go.

Every cell goes on until it is stopped. `KEPT` ones let go within the grace, by the first interrupt or by a later rung
of the ladder; `CLEARED` ones cannot; for `EITHER` it depends on the moment, or on the machine.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

KEPT, CLEARED, EITHER = "kept", "cleared", "either"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of cell: its code, a cell to run once before it, and what becomes of the namespace when it is stopped.

    `slow`: it takes a second or more until it lets go. `least`: the Python that the code needs. `says`: what it prints
    at its end when it was stopped in time, after an `in`. `packages`: it needs Trio, NumPy or pandas, which the tests'
    own environment has.
    """

    code: str
    setup: str = ""
    namespace: str = KEPT
    slow: bool = False
    least: tuple[int, int] = (3, 10)
    says: str = ""
    packages: bool = False


#: What every kind finds in the namespace. `mark` tells one namespace from the next.
PREPARED = """
import asyncio, contextlib, functools, os, queue, select, signal, socket, subprocess, sys, threading, time
def work(n=20): return work(n - 1) + 1 if n else 0
async def spin():
    while True: await asyncio.sleep(0)
async def busy():
    while True: pass
class SlowRepr:
    def __repr__(self):
        while True: pass
"""

BLOCKING = {
    "time.sleep": Kind("time.sleep(60)"),
    "lock.acquire": Kind("lock = threading.Lock(); lock.acquire(); lock.acquire()"),
    "Event.wait": Kind("threading.Event().wait()"),
    "Condition.wait": Kind("condition = threading.Condition()\nwith condition: condition.wait()"),
    "queue.get": Kind("queue.Queue().get()"),
    "SimpleQueue.get": Kind("queue.SimpleQueue().get()"),
    "queue.get, in a loop": Kind(
        "q = queue.Queue()\nwhile True:\n    try: q.get(timeout=0.005)\n    except queue.Empty: pass"
    ),
    "socket.recv": Kind("a, b = socket.socketpair(); a.recv(1)"),
    "socket.accept": Kind("with socket.create_server(('127.0.0.1', 0)) as s: s.accept()"),
    "select.select": Kind("r, w = os.pipe()\ntry: select.select([r], [], [])\nfinally: os.close(r); os.close(w)"),
    "os.read": Kind("r, w = os.pipe()\ntry: os.read(r, 1)\nfinally: os.close(r); os.close(w)"),
    "http server": Kind(
        "import http.server\nwith http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler) as s:\n"
        "    s.serve_forever()"
    ),
    "thread.join": Kind("t = threading.Thread(target=time.sleep, args=(0.3,)); t.start(); t.join(); time.sleep(60)"),
    "subprocess.run": Kind("subprocess.run(['sleep', '60'])"),
    "subprocess pipe": Kind("for line in subprocess.Popen(['sleep', '60'], stdout=subprocess.PIPE).stdout: pass"),
    "check_output": Kind("subprocess.check_output('while true; do echo x; sleep 0.01; done', shell=True)"),
    "sh": Kind("sh('sleep 60')"),
    "sh, many": Kind("while True: sh('true')"),
    "sh flood": Kind("sh('yes')"),
    "stubborn child": Kind(
        "subprocess.Popen(['sh', '-c', 'trap \"\" INT; while :; do echo late; sleep 0.002; done']); time.sleep(60)"
    ),
    "os.system": Kind("os.system('sleep 60')"),
    "os.system, in a loop": Kind("while True: os.system('sleep 60')"),
    "pool map": Kind(
        "with multiprocessing.Pool(2) as pool: pool.map(time.sleep, [60] * 4)",
        setup="import multiprocessing, warnings; warnings.simplefilter('ignore', DeprecationWarning)",
    ),
    "multiprocessing queue": Kind("multiprocessing.Queue().get()", setup="import multiprocessing"),
    "ThreadPool with": Kind(
        "with ThreadPoolExecutor(2) as pool: pool.submit(time.sleep, 3).result()",
        setup="from concurrent.futures import ThreadPoolExecutor",
        slow=True,
    ),
    "ThreadPool, user code": Kind(
        "with ThreadPoolExecutor(2) as pool: list(pool.map(lambda n: [work() for _ in iter(int, 1)], range(2)))",
        setup="from concurrent.futures import ThreadPoolExecutor",
        namespace=CLEARED,
        slow=True,
    ),
}

PYTHON = {
    "while True": Kind("while True: pass"),
    "calls": Kind("while True: work()"),
    "comprehension": Kind("[n for n in iter(int, 1)]"),
    "generators": Kind("def g():\n    while True: yield from range(9)\nfor n in g(): pass"),
    "print flood": Kind("while True: print('flood')"),
    "write flood": Kind("while True: os.write(1, b'x' * 4000)"),
    "logging": Kind("import logging\nlog = logging.getLogger('k')\nwhile True: log.warning('again')"),
    "deep recursion": Kind("while True: work(900)"),
    "endless recursion": Kind(
        "def g(): g()\nwhile True:\n    try: g()\n    except RecursionError: pass", namespace=EITHER
    ),
    "settrace": Kind(
        "def trace(frame, event, arg): return trace\nsys.settrace(trace)\ntry:\n    while True: work()\n"
        "finally: sys.settrace(None)"
    ),
    "setprofile": Kind(
        "sys.setprofile(lambda frame, event, arg: None)\ntry:\n    while True: work()\nfinally: sys.setprofile(None)"
    ),
    "class bodies": Kind("while True:\n    class C:\n        x = property(lambda self: 1)\n    C().x"),
    "eval": Kind("while True: eval(compile('[n * n for n in range(9)]', 'made', 'eval'))"),
    "deepcopy": Kind("import copy\nx = [[n] for n in range(999)]\nwhile True: copy.deepcopy(x)"),
    "import": Kind(
        "while True:\n    for name in ('decimal', 'email.message', 'xml.dom.minidom', 'unittest'):\n"
        "        sys.modules.pop(name, None); __import__(name)"
    ),
    "sort with key": Kind("while True: sorted(range(99999), key=lambda n: -n)"),
    "regex": Kind("import re; re.match('^(a+)+$', 'a' * 40 + 'b')"),
    "10**10**8": Kind("10**10**8; time.sleep(60)"),
    "__del__": Kind(
        "class D:\n    def __del__(self): work()\nwhile True: D()",
        namespace=EITHER,
        slow=True,
    ),
    "repr": Kind("SlowRepr()"),
    "nested repr": Kind("[1, {'a': [SlowRepr(), (SlowRepr(), 2)]}, SlowRepr()]"),
    "slow picture": Kind("class P:\n    def _repr_png_(self):\n        while True: work()\nP()"),
    "slow picture, shown": Kind("class P:\n    def _repr_html_(self):\n        while True: work()\ndisplay(1, P(), 2)"),
    "str of an error": Kind("class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"),
    "contexts": Kind(
        "while True:\n    with contextlib.suppress(ValueError), contextlib.ExitStack() as stack:\n"
        "        stack.callback(work); raise ValueError"
    ),
}

ASYNC = {
    "await sleep": Kind("await asyncio.sleep(60)"),
    "await busy": Kind("await busy()"),
    "await spin": Kind("await spin()"),
    "await gather": Kind("await asyncio.gather(*(asyncio.sleep(60) for _ in range(200)), spin())"),
    "await tasks": Kind("tasks = [asyncio.create_task(spin()) for _ in range(5)]; await asyncio.wait(tasks)"),
    "await wait_for": Kind("await asyncio.wait_for(spin(), 60)"),
    "await shield": Kind("await asyncio.shield(spin())"),
    "await to_thread": Kind("await asyncio.to_thread(time.sleep, 0.4); await asyncio.sleep(60)"),
    "await subprocess": Kind("p = await asyncio.create_subprocess_exec('sleep', '60'); await p.wait()"),
    "await, blocking": Kind("time.sleep(60); await asyncio.sleep(0)"),
    "TaskGroup": Kind(
        "async with asyncio.TaskGroup() as group: group.create_task(spin()); group.create_task(asyncio.sleep(60))",
        least=(3, 11),
    ),
    "asyncio.timeout": Kind("async with asyncio.timeout(60): await spin()", least=(3, 11)),
    "async generator": Kind(
        "async def numbers():\n    try:\n        while True:\n            yield 1; await asyncio.sleep(0)\n"
        "    finally:\n        await asyncio.sleep(0.02)\nasync for n in numbers(): pass"
    ),
    "clean-up of 50 ms": Kind(
        "print('in')\ntry: await asyncio.sleep(60)\nfinally: await asyncio.sleep(0.05); print('saved')",
        says="saved\n",
    ),
    "goes on once": Kind(
        "try: await asyncio.sleep(60)\nexcept asyncio.CancelledError: pass\nawait asyncio.sleep(60)", slow=True
    ),
    "asyncio.run": Kind("asyncio.run(asyncio.sleep(60))"),
    "asyncio.run spin": Kind("asyncio.run(spin())"),
    "asyncio.run busy": Kind("asyncio.run(busy())"),
    "run_forever": Kind("loop = asyncio.new_event_loop()\ntry: loop.run_forever()\nfinally: loop.close()"),
    "debug mode": Kind("asyncio.run(spin(), debug=True)"),
    "debug mode, await": Kind(
        "loop = asyncio.get_running_loop(); loop.set_debug(True)\ntry: await asyncio.gather(spin(), spin())\n"
        "finally: loop.set_debug(False)"
    ),
    "protocol": Kind(
        "class P(asyncio.Protocol):\n    def data_received(self, data): self.t.write(data)\n"
        "    def connection_made(self, t): self.t = t\nloop = asyncio.get_running_loop()\n"
        "server = await loop.create_server(P, '127.0.0.1', 0)\n"
        "try:\n    r, w = await asyncio.open_connection(*server.sockets[0].getsockname())\n"
        "    while True: w.write(b'x' * 99); await r.readexactly(99)\nfinally: server.close(); w.close()"
    ),
    "async repr": Kind("await asyncio.sleep(0)\n[SlowRepr()]"),
}

STUBBORN = {
    "finally of 50 ms": Kind(
        "print('in')\ntry:\n    while True: time.sleep(0.001)\nfinally:\n    time.sleep(0.05); print('saved')",
        says="saved\n",
    ),
    "finally of 0.7 s": Kind(
        "print('in')\ntry: time.sleep(60)\nfinally: time.sleep(0.7); print('saved')", says="saved\n"
    ),
    "finally of 60 s": Kind("try: time.sleep(60)\nfinally: time.sleep(60)", slow=True),
    "except, finish": Kind(
        "print('in')\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('caught')\n7", says="caught\n"
    ),
    "except, go on": Kind("try: time.sleep(60)\nexcept KeyboardInterrupt: pass\ntime.sleep(60)", slow=True),
    "except, another error": Kind("try: time.sleep(60)\nexcept KeyboardInterrupt: raise ValueError from None"),
    "suppress, finish": Kind("with contextlib.suppress(KeyboardInterrupt): time.sleep(60)"),
    "suppress, go on": Kind(
        "for _ in range(2):\n    with contextlib.suppress(KeyboardInterrupt):\n        while True: work()", slow=True
    ),
    "except BaseException, for ever": Kind(
        "while True:\n    try: time.sleep(0.01)\n    except BaseException: pass", namespace=CLEARED, slow=True
    ),
    "sys.exit": Kind("try: time.sleep(60)\nexcept KeyboardInterrupt: sys.exit(3)"),
    "SIG_IGN": Kind("signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: work()", slow=True),
    "SIG_DFL": Kind("signal.signal(signal.SIGINT, signal.SIG_DFL)\nwhile True: work()", namespace=CLEARED),
    "default_int_handler": Kind("signal.signal(signal.SIGINT, signal.default_int_handler)\nwhile True: work()"),
    "own handler, raises": Kind("def stop(*_): raise ValueError\nsignal.signal(signal.SIGINT, stop)\ntime.sleep(60)"),
    "own handler, ignores": Kind("signal.signal(signal.SIGINT, lambda *_: None)\nwhile True: work()", slow=True),
    "own handler, takes 0.6 s": Kind(
        "seen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1)); print('in')\n"
        "while not seen: time.sleep(0.001)\n"
        "time.sleep(0.6); print('saved')",
        says="saved\n",
    ),
    "own handler, leaves its loop": Kind(
        "seen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\nwhile not seen: time.sleep(0.001)"
    ),
    "set_wakeup_fd": Kind(
        "a, b = socket.socketpair(); b.setblocking(False); signal.set_wakeup_fd(b.fileno())\n"
        "try: time.sleep(60)\nfinally: signal.set_wakeup_fd(-1)"
    ),
    "SIGINT blocked": Kind("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\ntime.sleep(60)", slow=True),
    "all signals blocked": Kind(
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\ntime.sleep(60)", namespace=CLEARED, slow=True
    ),
    "SIGALRM ticks": Kind(
        "signal.signal(signal.SIGALRM, lambda *_: work()); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "try:\n    while True: work()\nfinally: signal.setitimer(signal.ITIMER_REAL, 0)"
    ),
    "SIGALRM retries": Kind(
        "signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "try: time.sleep(60)\nfinally: signal.setitimer(signal.ITIMER_REAL, 0)"
    ),
}

COMPILED = {
    "sum(range)": Kind("sum(range(10**13))", namespace=CLEARED, slow=True),
    "sqlite": Kind(
        "import sqlite3\nsqlite3.connect(':memory:').execute('WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 "
        "FROM c) SELECT count(*) FROM c').fetchall()",
        namespace=CLEARED,
        slow=True,
    ),
    "pbkdf2": Kind(
        "import hashlib; hashlib.pbkdf2_hmac('sha256', b'p', b's', 2 * 10**9)", namespace=CLEARED, slow=True
    ),
    "json.dumps": Kind("import json\nwhile True: json.dumps(large)", "large = [{'a': n} for n in range(200_000)]"),
    "decompress": Kind(
        "while True: zlib.decompress(packed)", setup="import zlib; packed = zlib.compress(bytes(50_000_000))"
    ),
}

PACKAGES = {
    "trio.run": Kind("trio.run(trio.sleep_forever)", setup="import trio", packages=True),
    "trio.run spin": Kind(
        "trio.run(endless)",
        setup="import trio\nasync def endless():\n    while True: await trio.lowlevel.checkpoint()",
        packages=True,
    ),
    "trio nursery": Kind(
        "async def main():\n    async with trio.open_nursery() as nursery:\n"
        "        for _ in range(20): nursery.start_soon(trio.sleep, 60)\ntrio.run(main)",
        setup="import trio",
        packages=True,
    ),
    "trio thread": Kind(
        "trio.run(trio.to_thread.run_sync, functools.partial(time.sleep, 0.3))\ntime.sleep(60)",
        setup="import trio",
        packages=True,
    ),
    "numpy steps": Kind(
        "while True: numpy.linalg.svd(a)", setup="import numpy; a = numpy.random.rand(60, 60)", packages=True
    ),
    "pandas": Kind(
        "while True: frame.groupby('a').apply(lambda part: part.b.sum(), include_groups=False)",
        setup="import pandas; frame = pandas.DataFrame({'a': range(50), 'b': 1})",
        packages=True,
    ),
}

KINDS: dict[str, Kind] = BLOCKING | PYTHON | ASYNC | STUBBORN | COMPILED | PACKAGES


def python_of(kind: Kind, python: str) -> str:
    """The interpreter that runs a kind: `python`, or the tests' own where packages are needed."""
    return sys.executable if kind.packages else python
