"""The tests here start root guardians in their own process, which makes it a child subreaper, as a server is one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def no_subreaper_afterwards() -> Iterator[None]:
    """Undo it: tests that kill a server or a guardian expect what it leaves to become init's, not theirs to reap."""
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
