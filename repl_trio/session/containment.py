"""How far descendants of a worker are caught on this system, in words."""

from __future__ import annotations

import sys

SUBREAPER = "subreaper"
GROUPS = "groups"

_DETAILS = {
    SUBREAPER: "detached descendants come back to the guardian and end with the worker",
    GROUPS: "descendants are found by group, parents and a mark in their environment, and end with the worker; one "
    "that has left its group, its parents and its environment may survive it",
}


def level(*, subreaper: bool | None = None) -> str:
    """The level in force where guardians have said whether they are subreapers, else the one to expect here."""
    return SUBREAPER if (subreaper if subreaper is not None else sys.platform == "linux") else GROUPS


def details(level: str) -> str:
    """What a level means."""
    return _DETAILS[level]
