"""Whether a cell that somebody types is complete. Pure; knows no terminal."""

from __future__ import annotations

import ast
import codeop

_compile = codeop.CommandCompiler()
_compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def is_complete(text: str) -> bool:
    """Whether Enter should submit `text`: a command, or code that needs no further line.

    An indented block is complete after an empty line, as at Python's own prompt. Code with an error in it is complete:
    the worker says what is wrong with it, and its Python may know more syntax than ours.
    """
    if text.startswith(":"):
        return True
    lines = text.split("\n")
    lines[-1] = lines[-1].rstrip()  # the indentation that the editor put there is no code
    text = "\n".join(lines)
    if _verdict(text, "single") is not None:
        return bool(_verdict(text, "single"))
    # Several statements are an error to "single"; to "exec" a block is never open, so its last line decides.
    return _verdict(text, "exec") is not False and not lines[-1][:1].isspace()


def _verdict(text: str, symbol: str) -> bool | None:
    """True for complete code, False for code that goes on, None for an error."""
    try:
        return _compile(text, "<cell>", symbol) is not None
    except (SyntaxError, ValueError, OverflowError):
        return None
