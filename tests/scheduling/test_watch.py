"""A stream is cut into stretches, and each is set against what its engine read meanwhile."""

from collections.abc import Iterable
from contextlib import ExitStack

import pytest

from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.latency.model import LatencyModel
from pdgate.scheduling.latency.step_time import StepTime
from pdgate.scheduling.reservation import Reservation
from pdgate.scheduling.watch import MOST_WATCHED, STRETCH, StreamWatch
from tests.support.scripted import D0


class Taught(StepTime):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, int, float]] = []

    def learn(
        self,
        steps: int,
        read_tokens: int,
        seconds: float,
        batch: float = 1.0,
        context_tokens: float = 0.0,
    ) -> None:
        self.told.append((steps, read_tokens, seconds))


class Stream:
    """Of an engine that has `reads` tokens read at each of these pieces, one second apart."""

    def __init__(self) -> None:
        self.pace = Taught()
        self.engine = Endpoint(D0, latency=LatencyModel(step_time=self.pace))
        self.watch = StreamWatch(self.engine)
        self.now = 0.0

    def goes_on(self, pieces: int, reads: Iterable[int] = ()) -> None:
        left = iter(reads)
        for _ in range(pieces):
            self.now += 1
            self.watch.pieces(1, self.now)
            self.engine.read_tokens += next(left, 0)


def test_it_is_learnt_from_in_stretches() -> None:
    """What is read with its first piece was read before it."""
    stream = Stream()

    stream.goes_on(2 + 2 * STRETCH, reads=[7, 100, 0, 20])

    assert stream.pace.told == [(STRETCH, 120, STRETCH), (STRETCH, 0, STRETCH)]


def test_first_tokens_that_come_with_the_last_piece_of_a_stretch_count_in_it() -> None:
    """All that an engine says after a step comes one after the other."""
    stream = Stream()
    stream.goes_on(1 + STRETCH, reads=[0] * STRETCH + [500])
    assert stream.pace.told == []

    stream.goes_on(1)

    assert stream.pace.told == [(STRETCH, 500, STRETCH)]


def test_what_is_left_at_the_end_is_learnt_from_too() -> None:
    stream = Stream()
    stream.goes_on(1 + STRETCH + 3)

    stream.watch.end()

    assert stream.pace.told == [(STRETCH, 0, STRETCH), (3, 0, 3)]


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_stream_without_a_second_piece_teaches_nothing(pieces: int) -> None:
    stream = Stream()
    stream.goes_on(pieces)

    stream.watch.end()

    assert stream.pace.told == []


def test_pieces_that_came_at_once_are_as_many_steps() -> None:
    stream = Stream()
    stream.goes_on(1)

    stream.watch.pieces(STRETCH + 2, 11.0)
    stream.watch.end()

    assert stream.pace.told == [(STRETCH + 2, 0, 10.0)]


def test_what_a_slow_client_held_back_does_not_count() -> None:
    stream = Stream()
    stream.goes_on(4)

    stream.watch.interrupted()
    stream.now += 1000
    stream.goes_on(2 + STRETCH)

    assert stream.pace.told == [(STRETCH, 0, STRETCH)]


def test_it_counts_among_the_watched_until_its_end() -> None:
    stream = Stream()
    other = StreamWatch(stream.engine)
    assert stream.engine.watched == 2

    other.end()
    stream.watch.end()

    assert stream.engine.watched == 0


def test_no_more_are_watched_than_say_enough() -> None:
    """They share the engine's steps, and each one that is watched costs a little."""
    engine = Endpoint(D0)

    with ExitStack() as streams:
        begun = [
            streams.enter_context(Reservation(engine, 10, reads=False, watches=True))
            for _ in range(MOST_WATCHED + 2)
        ]
        watches = [stream.has_loaded(0.1) for stream in begun]

        assert watches[-2:] == [None, None]
        assert engine.watched == MOST_WATCHED
        begun[0].end()
        assert begun[-1].has_loaded(0.1) is None, "it has begun already"
        with Reservation(engine, 10, reads=False, watches=True) as another:
            assert another.has_loaded(0.1) is not None
