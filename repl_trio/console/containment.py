"""What a guardian can promise on this system, in words."""

from __future__ import annotations

from ..process.guard import Guard


def containment(guard: Guard) -> str:
    """`level: what it means` for a started guardian."""
    if guard.subreaper:
        return "subreaper: detached descendants come back to the guardian and end with the worker"
    return "groups: a descendant that detaches itself completely may survive its worker"
