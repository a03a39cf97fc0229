"""A watched stream arrives as it was, and whoever watches hears of every piece."""

import asyncio
from itertools import count

import pytest

from pdgate.forwarders.body_filter import WatchedBody
from pdgate.protocols.errors import EngineFailed
from pdgate.scheduling.disaggregation import Auto, SplitRule, UncachedTokensAbove
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.watch import StreamWatch
from tests.support.answers import piece, prefilled
from tests.support.by_hand import ByHand
from tests.support.scripted import D0, NEVER, P0, Crossing, Scripted, chat
from tests.support.sinks import Collected

A = piece("a")
EVENTS = [A, A + A, A[:6], A[6:]]


class Heard(StreamWatch):
    def __init__(self) -> None:
        super().__init__(Endpoint(D0))
        self.heard: list[object] = []

    def pieces(self, count: int, now: float) -> None:
        self.heard.append((count, now))

    def interrupted(self) -> None:
        self.heard.append("interrupted")


def begun() -> tuple[ByHand, Heard, WatchedBody, Collected]:
    answer, watch, sink = ByHand(), Heard(), Collected()
    clock = count(1)
    watched = WatchedBody(answer, watch, lambda: float(next(clock)))
    watched.start(sink)
    return answer, watch, watched, sink


async def test_nothing_of_it_changes() -> None:
    answer, _, watched, sink = begun()
    for event in EVENTS:
        answer.data(event)
    answer.ended(None, b"data: [DONE]\n\n")

    assert (watched.status, watched.headers) == (answer.status, answer.headers)
    assert await watched.ready() == await answer.ready()
    assert await sink.body() == b"".join(EVENTS) + b"data: [DONE]\n\n"
    assert sink.chunks[:-1] == EVENTS


async def test_events_count_however_many_come_at_once() -> None:
    answer, watch, _, _ = begun()
    for event in EVENTS:
        answer.data(event)

    assert watch.heard == [(1, 1.0), (2, 2.0), (1, 3.0), (1, 4.0)]


async def test_events_whose_lines_end_with_crlf_count_as_well() -> None:
    answer, watch, _, _ = begun()
    answer.data(A.replace(b"\n", b"\r\n") * 2)

    assert watch.heard == [(2, 1.0)]


async def test_a_client_that_is_slow_is_told_of() -> None:
    answer, watch, watched, _ = begun()

    watched.pause()
    watched.resume()

    assert answer.told == ["pause", "resume"]
    assert watch.heard == ["interrupted", "interrupted"]


async def test_its_end_is_the_answers() -> None:
    answer, _, _, sink = begun()
    answer.ended(EngineFailed("gone"))

    with pytest.raises(EngineFailed, match="gone"):
        await sink.body()


@pytest.mark.parametrize(
    ("rule", "watched"), [(Auto(UncachedTokensAbove()), 1), (UncachedTokensAbove(), 0)]
)
async def test_streams_are_watched_while_they_last_if_the_rule_wants_to_know(
    rule: SplitRule, watched: int
) -> None:
    goes_on = asyncio.Event()
    engines = Scripted(p0=prefilled(), d0=[*EVENTS, goes_on, *EVENTS])
    crossing = Crossing(engines, P0, D0, rule=rule)
    decode = crossing.endpoints.get("d0")
    assert decode is not None

    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()
    assert (decode.answering, decode.watched) == (1, watched)
    goes_on.set()

    assert (await asking).body == b"".join(2 * EVENTS)
    assert (decode.answering, decode.watched) == (0, 0)


async def test_a_client_that_leaves_is_watched_no_more() -> None:
    engines = Scripted(p0=prefilled(), d0=[*EVENTS, NEVER])
    crossing = Crossing(engines, P0, D0, rule=Auto(UncachedTokensAbove()))
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    decode = crossing.endpoints.get("d0")
    assert decode is not None
    assert (decode.answering, decode.watched) == (0, 0)
