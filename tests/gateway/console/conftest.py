"""Nobody has a second to wait for the next picture, and every worker is waited for."""

import pytest

from pdgate.gateway.admin import live
from pdgate.gateway.console import siblings, snapshots
from tests.support.fleet import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PERIOD_SECONDS", 0.05)
    monkeypatch.setattr(snapshots, "GOOD_SECONDS", 0.02)
    monkeypatch.setattr(siblings, "ANSWER_SECONDS", PATIENCE_SECONDS)
