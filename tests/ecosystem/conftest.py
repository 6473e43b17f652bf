"""Other people's programs run as their users run them: in the mode that is the default."""

import pytest


@pytest.fixture(autouse=True)
def tiered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORGRAFT_EAGER", "tiered")
