"""What docs/simulate.md shows can be used as it stands."""

import tomllib

import pytest

from tests.docs.pages import DOCS, labelled


@pytest.mark.source
def test_the_engine_shown_is_a_preset() -> None:
    from pdgate.lab.simulator.hardware import PRESETS, Hardware

    (shown,) = labelled(DOCS / "simulate.md", "toml").values()

    assert Hardware(**tomllib.loads(shown)) == PRESETS["8b"]
