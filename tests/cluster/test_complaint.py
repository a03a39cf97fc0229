"""A failure that lasts fills no log."""

import logging

import pytest

from pdgate.cluster.complaint import Complaint

log = logging.getLogger(__name__)


def test_a_reason_is_logged_once_until_it_is_another_or_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    complaint = Complaint(log, "the store is away", "the store is back")
    complaint.over()

    for why in ("refused", "refused", "timeout"):
        with complaint.catching(OSError):
            raise OSError(why)
    for _ in range(2):
        with complaint.catching(OSError):
            pass
    complaint.about("timeout")

    assert caplog.messages == [
        "the store is away: refused",
        "the store is away: timeout",
        "the store is back",
        "the store is away: timeout",
    ]


def test_another_error_is_not_caught() -> None:
    complaint = Complaint(log, "the store is away")

    with pytest.raises(ValueError, match="a bug"), complaint.catching(OSError):
        raise ValueError("a bug")
