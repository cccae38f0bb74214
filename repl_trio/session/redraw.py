"""What is left of a line that was drawn again and again: its last form. Sans-IO.

A progress bar writes a carriage return and then its line once more. Of such a line only the last form is text; what it
replaced is gone, as on a terminal. A form ends with one carriage return; a run of them counts as one. Before a newline
it belongs to the newline, and at the very end of a stream it replaces nothing, because nothing came after it.

A form longer than `FORM` bytes stays, and so does its carriage return: how much of a stream may still be taken back has
a bound, and nobody draws a bar of that size. So the result depends on the bytes alone, not on the pieces they came in.
"""

from __future__ import annotations

FORM = 4_096
"""bytes. The longest form that a later one replaces: a terminal's line, with colours and in any script."""


def collapse(text: bytes) -> bytes:
    """`text`, which begins where a form begins, with every line in its last form."""
    while b"\r\r" in text:
        text = text.replace(b"\r\r", b"\r")
    if text.count(b"\r") == text.count(b"\r\n"):
        return text
    return b"\n".join([_last_form(line) if b"\r" in line else line for line in text.split(b"\n")])


def form_start(text: bytes) -> int:
    """Where the last form of the last line of collapsed `text` begins."""
    # Neither newline nor return of a form's own end: a form that nothing has followed is still the last.
    return max(text.rfind(b"\n"), text.rfind(b"\r", 0, max(len(text) - 1, 0))) + 1


def _last_form(line: bytes) -> bytes:
    at = line.rfind(b"\r", 0, len(line) - 1) + 1
    if at <= FORM:
        return line[at:]
    replaced = line[: at - 1].split(b"\r")
    return b"".join([form + b"\r" for form in replaced if len(form) > FORM]) + line[at:]
