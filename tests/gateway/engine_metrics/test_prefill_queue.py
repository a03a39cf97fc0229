"""Whether engines reach their prefill queue is theirs to say."""

import pytest

from pdgate.gateway.engine_metrics.page import Page, parse
from pdgate.gateway.engine_metrics.prefill_queue import PrefillQueue
from pdgate.gateway.engine_metrics.reader import STALE_INTERVALS, Reader, Reading
from pdgate.scheduling.candidate import Candidate
from tests.support.scripted import fleet

INTERVAL_SECONDS = 5.0


def never(candidate: Candidate, page: Page) -> None:
    raise AssertionError("nobody is asked")


def queue_of(*up: bool | None, age_seconds: float = 0.0) -> PrefillQueue:
    """As engines with these words on their last pages see it."""
    reader = Reader(fleet(), INTERVAL_SECONDS, 2.0, never, lambda: age_seconds)
    reader.readings |= {
        str(number): Reading("http://d", 0.0, Page(queue_up=one)) for number, one in enumerate(up)
    }
    return PrefillQueue(reader)


@pytest.mark.parametrize(
    ("page", "up"),
    [
        (b'pdgate_prefill_queue_up{model_name="m"} 1.0', True),
        (b'pdgate_prefill_queue_up{model_name="m"} 0.0', False),
        (b"", None),
    ],
)
def test_an_engine_says_so_on_its_page(page: bytes, up: bool | None) -> None:
    assert parse(page).queue_up is up


@pytest.mark.parametrize(
    ("up", "said"),
    [
        ([], None),
        ([None, None], None),
        ([True, True, None], {"state": "current", "engines": 2, "away_from": 0}),
        ([True, False], {"state": "degraded", "engines": 2, "away_from": 1}),
    ],
)
def test_one_that_does_not_reach_it_is_enough(
    up: list[bool | None], said: dict[str, object] | None
) -> None:
    assert queue_of(*up).as_json() == said


def test_what_was_said_long_ago_says_nothing() -> None:
    stale = STALE_INTERVALS * INTERVAL_SECONDS + 1

    assert queue_of(False, age_seconds=stale).as_json() is None
