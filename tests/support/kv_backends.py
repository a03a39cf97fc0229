"""The transfer backends that the tests go through, and what two of them need.

Mooncake and NIXL are other people's libraries. What lacks one is skipped with the reason;
where CI is set it fails, so that no test goes missing unseen.
"""

import os
from typing import Final

import pytest

from pdgate.transfer.mooncake import engine as mooncake_engine
from pdgate.transfer.nixl import library as nixl_library

# Slow, because destroying an engine of Mooncake's takes a second, and because the quick tests
# run also where neither is installed.
OURS: Final = [
    "shm",
    "tcp",
    pytest.param("mooncake", marks=pytest.mark.slow),
    pytest.param("nixl", marks=pytest.mark.slow),
]

BACKENDS: Final = os.environ.get("PDGATE_TEST_BACKENDS", "").split() or OURS
"""PDGATE_TEST_BACKENDS names others, of packages that are not ours."""


def require(name: str) -> None:
    """Skips or fails the test where this backend cannot run."""
    why = _why_not(name)
    if not why:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def _why_not(name: str) -> str:
    if name == "mooncake" and "PDGATE_LOOPBACK_ONLY" not in os.environ:
        return "Mooncake listens on every interface: run it by tools/isolated.sh"
    try:
        if name == "mooncake":
            mooncake_engine.load()
        if name == "nixl":
            nixl_library.load()
    except LookupError as error:
        return str(error)
    return ""
