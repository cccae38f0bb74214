"""The child interpreter of the two-hop floor: one JSON line in, `{"code"}`, one JSON line out, until the input ends.

Reply: `{success, stdout, return_value, error}`; `return_value` is the repr of an expression, `error` one line; both are
None where there is none.
"""

import contextlib
import io
import json
import sys
from types import CodeType
from typing import Any


def compiled(code: str) -> tuple[CodeType, bool]:
    """The code object of a cell, and whether it is an expression."""
    try:
        return compile(code, "<cell>", "eval"), True
    except SyntaxError:
        return compile(code, "<cell>", "exec"), False


def run(code: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run one cell in the namespace and describe what came of it."""
    value: str | None = None
    error: str | None = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            body, expression = compiled(code)
            if expression:
                result = eval(body, namespace)
                value = None if result is None else repr(result)
            else:
                exec(body, namespace)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - any error of a cell is its reply
            error = f"{type(raised).__name__}: {raised}"
    return {
        "success": error is None,
        "stdout": printed.getvalue(),
        "return_value": value,
        "error": error,
    }


def main() -> None:
    """Answer cells in order until the input ends."""
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line in requests:
        replies.write(json.dumps(run(json.loads(line)["code"], namespace)).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()
