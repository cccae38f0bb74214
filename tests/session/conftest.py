from __future__ import annotations

import pytest

from repl_trio.session import session
from tests.fakes.generation import Workshop


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """Sessions of this test get fake generations."""
    made = Workshop()
    monkeypatch.setattr(session, "start_worker", made.start_worker)
    monkeypatch.setattr(session, "open_generation", made.open_generation)
    return made
