"""faulthandler's text, cut down to what a user can use. Sans-IO."""

from __future__ import annotations

import os

_WORKER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "worker") + os.sep
_LINES = 40


def tidy(text: str) -> str:
    """The reason and the frames of user code and libraries, innermost first, without the worker's own.

    faulthandler separates threads by blank lines; a thread that consists of worker frames alone is left out.
    """
    kept: list[str] = []
    for section in text.split("\n\n"):
        lines = [line for line in section.splitlines() if line.strip() and f'File "{_WORKER}' not in line]
        frames = [line for line in lines if line.lstrip().startswith("File ")]
        heading = lines[0] if lines else ""
        if not frames and "most recent call first" in heading:
            continue
        kept += lines
    return "\n".join(kept[:_LINES])
