"""A session of a real server beside a plain model of it: a dict, a generation, and what the next result must say.

Each method sends one or two cells and judges every part of the answers: output to the byte, value, error, state,
generation. Nothing here is random; who calls draws the steps.
"""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Callable
from typing import Any

from tests.e2e.client import Client, Message
from tests.e2e.watch import eventually, session_of

Value = int | str | bool | float | list[Any] | dict[str, Any]

GAP = re.compile(r"\n?\[\.\.\. ([\d,]+) bytes of output not shown \.\.\.\]\n")
ENDLESS = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(60)",
    "await": "import asyncio; await asyncio.sleep(60)",
    "busy await": "import asyncio\nwhile True: await asyncio.sleep(0)",
    "sh": "sh('sleep 60')",
    "lock": "import _thread; lock = _thread.allocate_lock(); lock.acquire(); lock.acquire()",
}
DEATHS = {"SIGKILL": "import os; os.kill(os.getpid(), 9)", "exit": "import os; os._exit(3)"}


class ModelledSession:
    """One session of `client`; `names`, `generation` and `fresh` are what the server must agree with."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cells = 0
        self.runs: set[str] = set()
        self.generation = 0
        self.fresh = True  # the next cell finds a new namespace
        self.names: dict[str, Value] = {}
        self.id = str(client.structured("python_session_open", name="modelled")["session_id"])

    def close(self) -> None:
        """Close the session; its worker is gone afterwards."""
        self.client.structured("python_session_close", session_id=self.id)

    # -- sending and judging -----------------------------------------------------------------------------------

    def execute(self, code: str, **arguments: Any) -> Message:
        """Run a cell to its end."""
        return self.client.execute(code, session_id=self.id, **arguments)

    def begun(self) -> None:
        """A cell reached a worker: a new one if there was none."""
        self.cells += 1
        if self.fresh:
            self.generation += 1
            self.names.clear()

    def cleared(self) -> None:
        """The namespace is gone."""
        self.names.clear()
        self.fresh = True

    def judge(
        self,
        result: Message,
        *,
        stdout: str = "",
        stderr: str = "",
        value: Value | None = None,
        failure: tuple[str, str] | None = None,
        state: str = "preserved",
    ) -> None:
        """A finished run is exactly this. `failure`: its error_code, and words of its error."""
        case = f"cell {self.cells}: {result}"
        told = (result["generation"], result["state_reset"], result["session_id"], result["state"])
        assert told == (self.generation, self.fresh, self.id, state), case
        assert result["run_id"] not in self.runs, case
        self.runs.add(result["run_id"])
        assert (result["stdout"], result["stderr"]) == (stdout, stderr), case
        code, words = failure or (None, "")
        assert result["success"] is (failure is None), case
        assert result.get("value") == value, case
        assert type(result.get("value")) is type(value), case
        assert result.get("error_code") == code, case
        assert words in (result["error"] or ""), case
        assert "repl_trio" not in (result["error"] or ""), case
        self.fresh = False
        if state == "cleared":
            self.cleared()

    def cell(self, source: str, **expected: Any) -> Message:
        """Run a cell and judge its result."""
        self.begun()
        result = self.execute(source)
        self.judge(result, **expected)
        return result

    # -- the steps ---------------------------------------------------------------------------------------------

    def assign(self, name: str, value: Value) -> None:
        self.cell(f"{name} = {value!r}")
        self.names[name] = value

    def read(self, name: str) -> None:
        self.begun()
        result = self.execute(name)
        if name in self.names:
            self.judge(result, value=self.names[name])
        else:
            self.judge(result, failure=("EXCEPTION", f"NameError: name '{name}' is not defined"))

    def delete(self, name: str) -> None:
        self.begun()
        result = self.execute(f"del {name}")
        if name in self.names:
            self.judge(result)
            del self.names[name]
        else:
            self.judge(result, failure=("EXCEPTION", "NameError"))

    def everything(self) -> None:
        """The whole namespace is the model's."""
        listing = "{n: v for n, v in globals().items() if n.startswith('name_')}"
        self.cell(listing, value=dict(self.names))

    def fail(self, name: str, value: Value, text: str) -> None:
        """What was assigned before the error stays."""
        words = f"told {len(text)}"
        code = f"{name} = {value!r}\nprint({text!r})\nraise ValueError({words!r})"
        self.cell(code, stdout=text + "\n", failure=("EXCEPTION", f"ValueError: {words}"))
        self.names[name] = value

    def leave(self, status: int) -> None:
        result = self.cell(f"import sys; sys.exit({status})", failure=("SYSTEM_EXIT", "SystemExit"))
        assert result["exit_code"] == status, result

    def misspell(self) -> None:
        self.cell("print('never')\nif True print(1)", failure=("EXCEPTION", "SyntaxError"))

    def empty(self) -> None:
        self.cell("")

    def wait_for_it(self, name: str, value: Value) -> None:
        self.cell(f"import asyncio\n{name} = await asyncio.sleep(0, {value!r})\n{name}", value=value)
        self.names[name] = value

    def leave_tasks(self, count: int) -> None:
        """Tasks of a cell that still run are cancelled at its end, and counted."""
        code = (
            "import asyncio\nasync def endless():\n    while True: await asyncio.sleep(0.001)\n"
            f"tasks = [asyncio.create_task(endless()) for _ in range({count})]; await asyncio.sleep(0.002)"
        )
        result = self.cell(code)
        assert result["background_tasks_cancelled"] == count, result
        self.cell("[task.cancelled() for task in tasks]", value=[True] * count)

    def write(self, parts: list[tuple[str, str]]) -> None:
        """Pieces from Python, from below it, and from a child, on both streams: each stream in its order, whole."""
        ways = {
            "print": "print({text!r})",
            "stderr": "print({text!r}, file=sys.stderr)",
            "low": "sys.stdout.flush(); os.write(1, {text!r}.encode() + b'\\n')",
            "child": "sys.stdout.flush(); subprocess.run(['printf', '%s\\n', {text!r}])",
        }
        lines = ["import os, subprocess, sys", *(ways[way].format(text=text) for way, text in parts), "None"]
        stdout = "".join(text + "\n" for way, text in parts if way != "stderr")
        stderr = "".join(text + "\n" for way, text in parts if way == "stderr")
        self.cell("\n".join(lines), stdout=stdout, stderr=stderr)

    def flood(self, lines: int) -> None:
        """More than a result holds: its two ends are right, its gap is counted, and nothing of it comes later."""
        self.begun()
        result = self.execute(f"for n in range({lines}): print(f'line {{n:08}} of the flood')")
        whole = "".join(f"line {n:08} of the flood\n" for n in range(lines))
        gaps = GAP.findall(result["stdout"])
        if gaps:
            head, _count, tail = GAP.split(result["stdout"])
            head += "\n" if not head.endswith("\n") else ""
            assert whole.startswith(head), result
            assert whole.endswith(tail), result
            assert len(head) + int(gaps[0].replace(",", "")) + len(tail) == len(whole), result
            assert result["truncated"]["stdout"] is True, result
            result["stdout"] = whole
        self.judge(result, stdout=whole)

    def shell(self, text: str) -> None:
        self.cell(f"str(sh(['printf', '%s', {text!r}]))", stdout=text, value=text)

    def thread(self, name: str, value: Value) -> None:
        code = (
            f"import threading\ndef work():\n    global {name}\n    {name} = {value!r}; print('in the thread')\n"
            "thread = threading.Thread(target=work); thread.start(); thread.join()"
        )
        self.cell(code, stdout="in the thread\n")
        self.names[name] = value

    def fork(self) -> None:
        """A forked child that ends like a cell writes no frame and takes none."""
        code = (
            "import os\npid = os.fork()\nif pid == 0: raise SystemExit(7)\n"
            "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        )
        self.cell(code, value=7)

    def spoil_streams(self, text: str) -> None:
        """What a cell does to its streams ends with it."""
        self.cell(f"import sys\nprint({text!r}, flush=True)\nsys.stdout.close(); sys.stderr = None", stdout=text + "\n")
        self.cell(f"print({text!r})", stdout=text + "\n")

    def pages(self, lines: int) -> None:
        """Output that is read while the run goes on: the pages together are the whole."""
        self.begun()
        code = f"import time\nfor n in range({lines}):\n    print('page', n)\n    time.sleep(0.001)\n{lines}"
        run = self.client.structured("python_start", code=code, session_id=self.id)
        text, cursor = "", "0.0"
        while True:
            arguments = {"run_id": run["run_id"], "session_id": self.id, "after": cursor, "wait": 0.01}
            page = self.client.structured("python_run", **arguments)
            text += page["stdout"]
            if page["status"] == "finished" and "next" not in page:
                break
            cursor = page["next"]
        page["stdout"] = text
        self.judge(page, stdout="".join(f"page {n}\n" for n in range(lines)), value=lines)

    def expect(self, *, right: bool) -> None:
        """A cell that expects a generation runs in that one or not at all."""
        current = self.generation + (self.fresh and self.generation > 0)
        if right:
            self.begun()
            self.judge(self.execute("'ran'", expected_generation=current), value="ran")
            return
        result = self.execute("name_a = 'never'", expected_generation=current + 1)
        assert (result["success"], result["error_code"]) == (False, "STATE_CHANGED"), result

    def reset(self, name: str, value: Value) -> None:
        self.cleared()
        self.begun()
        self.judge(self.execute(f"{name} = {value!r}", reset=True))
        self.names[name] = value

    # -- stopping and dying ------------------------------------------------------------------------------------

    def stop(self, way: str, what: str, name: str, value: Value, moment: float) -> None:
        """A cell that goes on is stopped: what it had done stays, what it printed is there, nothing else."""
        self.begun()
        code = f"{name} = {value!r}\nprint('begun', flush=True)\n{ENDLESS[what]}"
        result = WAYS[way](self, code, moment)
        stdout = result["stdout"]
        assert stdout == "begun\n" or (stdout == "" and way == "timeout"), result
        error_code = "TIMEOUT" if way == "timeout" else "CANCELLED"
        self.judge(result, stdout=stdout, failure=(error_code, "the namespace is preserved"))
        if stdout:
            assert "KeyboardInterrupt: interrupted" in result["error"], result
            assert f'"<repl:{result["run_id"]}>", line ' in result["error"], result
            self.names[name] = value
        else:
            # A deadline of some milliseconds may come before the first line.
            self.cell(f"{name} = {value!r}")
            self.names[name] = value

    def by_timeout(self, code: str, moment: float) -> Message:
        return self.execute(code, timeout=0.01 + moment)

    def by_cancel(self, code: str, moment: float) -> Message:
        call = self.client.start_call("execute_python", code=code, session_id=self.id)
        self._wait_begun(moment)
        busy = self.execute("name_a = 'never'")
        assert (busy["success"], busy["error_code"], busy["state"]) == (False, "BUSY", "preserved"), busy
        assert self.client.structured("python_cancel", session_id=self.id)["cancel_requested"] is True
        result: Message = self.client.result(call)["structuredContent"]
        assert result["run_id"] == busy["run_id"], result
        return result

    def by_notification(self, code: str, moment: float) -> Message:
        call = self.client.start_call("execute_python", code=code, session_id=self.id)
        run_id = self._wait_begun(moment)
        self.client.cancel(call)
        result = self.client.structured("python_run", run_id=run_id, session_id=self.id, wait=30)
        assert not self.client.answered(call)
        return result

    def _wait_begun(self, moment: float) -> str:
        run_id = eventually(lambda: session_of(self.client, self.id)["active_run"], "the cell begins")
        arguments = {"run_id": run_id, "session_id": self.id}
        eventually(lambda: "begun" in self.client.structured("python_run", **arguments)["stdout"], "it says so")
        select.select([], [], [], moment)
        return str(run_id)

    def never_lets_go(self) -> None:
        """A loop in C is killed, and that is what is told."""
        self.begun()
        result = self.execute("print('begun', flush=True)\nsum(range(10**13))", timeout=0.2)
        self.judge(result, stdout="begun\n", failure=("TIMEOUT", "The namespace is lost"), state="cleared")

    def die(self, how: str) -> None:
        code = f"print('last words', flush=True)\n{DEATHS[how]}"
        self.cell(code, stdout="last words\n", failure=("WORKER_DIED", "The namespace is lost"), state="cleared")

    def killed(self) -> None:
        """The worker is killed from outside while nothing runs."""
        if self.fresh:
            return
        pid = session_of(self.client, self.id)["worker_pid"]
        self.cell("import os; os.getpid()", value=pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: session_of(self.client, self.id).get("worker_pid") != pid, "the worker's end is noticed")
        self.cleared()


WAYS: dict[str, Callable[[ModelledSession, str, float], Message]] = {
    "timeout": ModelledSession.by_timeout,
    "python_cancel": ModelledSession.by_cancel,
    "notification": ModelledSession.by_notification,
}
