"""Interrupts of a cell that runs Trio.

Trio protects its internals from KeyboardInterrupt by a SIGINT handler of its own, but only installs that over the
interpreter's default one. With ours in place an exception raised inside them would end the run with TrioInternalError;
so here the same is done as Trio's handler does. Nothing is imported: a cell that runs Trio has loaded it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def deliver(frame: FrameType) -> bool:
    """Hand an interrupt at this frame to a running Trio; False when it must be raised at the frame itself."""
    context = getattr(sys.modules.get("trio._core._run"), "GLOBAL_RUN_CONTEXT", None)
    protected = getattr(sys.modules.get("trio._core._ki"), "ki_protection_enabled", None)
    deliver_ki = getattr(getattr(context, "runner", None), "deliver_ki", None)
    if deliver_ki is None or protected is None or not protected(frame):
        return False
    deliver_ki()
    return True
