"""The list of files that parallel processes take first names files that are there."""

from pathlib import Path

import pytest

from tests.long_files import SECONDS

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[1]


def test_every_file_is_there() -> None:
    assert [path for path in SECONDS if not (ROOT / path).is_file()] == []
