"""How a check of the doctor fails."""

from __future__ import annotations


class Broken(Exception):
    """A check failed; the text says what is wrong and how to mend it."""
