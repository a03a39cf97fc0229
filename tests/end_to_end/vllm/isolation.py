"""Where tests of something that listens on every interface may run: see run.sh."""

import os

import pytest

from tests.end_to_end.vllm.engines import Transfer


def isolated(transfer: Transfer) -> None:
    """Ends the test where this transfer would listen to more than loopback."""
    if "mooncake" in transfer.name and "PDGATE_LOOPBACK_ONLY" not in os.environ:
        reason = "Mooncake listens on every interface: it needs a network namespace of its own"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
