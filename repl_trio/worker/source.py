"""From source text to code objects."""

from __future__ import annotations
import __future__

import _ast
import _signal
import sys

from . import border
from .preview import clip, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST; importing `ast` costs 3 ms
_TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_CO_COROUTINE = 0x80  # inspect.CO_COROUTINE


def _future_flags() -> int:
    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag
    return flags


_FUTURE = _future_flags()


class Program:
    """A compiled cell: statements, then the trailing expression if there is one."""

    __slots__ = ("body", "flags", "tail")

    def __init__(self, body: CodeType | None, tail: CodeType | None, flags: int) -> None:
        self.body = body
        self.tail = tail
        #: `from __future__` flags in force after this cell.
        self.flags = flags

    @property
    def awaits(self) -> bool:
        """Whether the cell has a top-level `await` and must run on a loop."""
        return any(code is not None and code.co_flags & _CO_COROUTINE for code in (self.body, self.tail))


def compile_cell(source: str, name: str, flags: int) -> Program:
    """Compile one cell with the `from __future__` flags of the cells before it.

    Raises what the compiler raises, and a `SyntaxError` that says where for text that has no UTF-8 form.
    """
    # The mark that files of other systems begin with, which the compiler knows in bytes only.
    source = source.removeprefix("\ufeff")
    try:
        tree = compile(source, name, "exec", flags | _TOP_LEVEL_AWAIT | _ONLY_AST, True)
        return _program(tree, name, flags)
    except UnicodeEncodeError as error:
        raise _no_utf8(source, name, error.start) from None
    except SyntaxError as error:
        if error.text is None and error.filename == name:
            _add_line(error, source)
        raise


def _program(tree: Any, name: str, flags: int) -> Program:
    tail = None
    statements = tree.body
    if statements and type(statements[-1]) is _ast.Expr:
        tail = _ast.Expression(statements.pop().value)
    body_code = tail_code = None
    if statements:
        body_code = compile(tree, name, "exec", flags | _TOP_LEVEL_AWAIT, True)
        flags |= body_code.co_flags & _FUTURE
    if tail is not None:
        tail_code = compile(tail, name, "eval", flags | _TOP_LEVEL_AWAIT, True)
    return Program(body_code, tail_code, flags)


def compile_file(path: str) -> Program:
    """Compile a file as the interpreter would run it (PEP 263 encodings); nothing of the session's flags applies."""
    with open(path, "rb") as file:
        return Program(compile(file.read(), path, "exec", 0, True), None, 0)


def _add_line(error: SyntaxError, source: str) -> None:
    """Show the line that an error of the compiler's later stages is about: they only look for it in a file.

    Their columns count bytes of UTF-8, those of a SyntaxError characters.
    """
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if error.lineno is None or not 0 < error.lineno <= len(lines):
        return
    error.text = line = lines[error.lineno - 1]
    raw = line.encode("utf-8")
    if error.offset is not None and error.offset > 0:
        error.offset = len(raw[: error.offset - 1].decode("utf-8", "ignore")) + 1
    if error.end_lineno == error.lineno and error.end_offset is not None and error.end_offset > 0:
        error.end_offset = len(raw[: error.end_offset - 1].decode("utf-8", "ignore")) + 1


def _no_utf8(source: str, name: str, index: int) -> SyntaxError:
    line = source.count("\n", 0, index) + 1
    start = source.rfind("\n", 0, index) + 1
    column = index - start + 1
    reason = f"the code has a lone surrogate (U+{ord(source[index]):04X}) on line {line}, column {column}"
    shown, _cut = clip(printable(source[start:].split("\n", 1)[0]), 200)
    return SyntaxError(reason, (name, line, column, shown))


def run_program(program: Program, namespace: dict[str, object]) -> object:
    """Run a cell without top-level `await`; its value is that of the trailing expression, else None."""
    try:
        border.enter()
        if program.body is not None:
            exec(program.body, namespace)
        if program.tail is not None:
            return eval(program.tail, namespace)
        return None
    finally:
        try:
            if "signal" in sys.modules:
                border.kept.seen = _signal.pthread_sigmask(_signal.SIG_BLOCK, border.SIGNALS)
        finally:
            border.leave()


async def await_program(program: Program, namespace: dict[str, object]) -> object:
    """Run a cell with top-level `await`, in a task of the session's loop."""
    value = None
    for code in (program.body, program.tail):
        if code is not None:
            value = eval(code, namespace)
            if code.co_flags & _CO_COROUTINE:
                value = await value
    return value if program.tail is not None else None
