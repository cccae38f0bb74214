"""The judge's own program: validation that may take for ever, in a process that may be killed.

Each line on stdin is one question, `{id, schema, dialect, arguments}`; its answer is one line on stdout, the verdict
with the same `id`. The first line on stdout, `{"ready": true}`, says that the validator is loaded. It ends with stdin.
"""

from __future__ import annotations

import resource
import sys

from ...wire import jsontext
from .findings import Verdict
from .verdict import Checker, compilable

_MEMORY = 1 << 30
"""bytes of address space. Errors that quote a large argument thousands of times must not take the machine's memory."""
_RECURSION = 3_000
"""frames. More than any schema within its bounds needs, and few enough for the stack of the process."""


def main() -> None:
    """Answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.setrecursionlimit(_RECURSION)
    _say({"ready": True})
    for line in sys.stdin.buffer:
        _say(answer(line.decode("ascii")))


def answer(line: str) -> dict[str, object]:
    """The answer to one question."""
    question = jsontext.loads(line)
    if not isinstance(question, dict):
        raise TypeError("a question is an object")
    schema, dialect = compilable(question["schema"]), str(question["dialect"])
    try:
        verdict = Checker(schema, dialect, None).check(question["arguments"])
    except RecursionError:
        verdict = Verdict(broken="it is nested too deeply")
    return {"id": question["id"], **verdict.as_json()}


def _say(answer: dict[str, object]) -> None:
    sys.stdout.buffer.write(jsontext.dumps(answer).encode("ascii") + b"\n")
    sys.stdout.buffer.flush()
