"""What P writes, once each, and when it is over."""

from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.sending import Sending
from pdgate.transfer.messenger.tiles import Tile, Tiles
from pdgate.transfer.plan.count import WHOLE, Rhythm

TILES = Tiles.of(range(2), range(10), Rhythm(4, by_layer=True))
GAVE_UP = HandOverError(Why.CANCELLED, "nobody waits")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12)), max_size=30))
def test_in_whatever_chunks_it_is_computed_every_tile_is_written_once(
    chunks: list[tuple[int, int]],
) -> None:
    sending = Sending(TILES)
    written = [tile for layer, tokens in chunks for tile in sending.computed(layer, tokens)]
    written += sending.computed(0, 10) + sending.computed(1, 10)

    assert sorted((tile.lane, tile.chunk) for tile in written) == [
        (layer, number) for layer in range(2) for number in range(3)
    ]


def test_it_is_complete_when_all_has_landed() -> None:
    sending = Sending(TILES)
    due = sending.computed(0, 10) + sending.computed(1, 10)
    for _ in due:
        assert not sending.over
        sending.landed()

    assert sending.over
    assert sending.error is None


def test_a_stop_waits_for_what_is_in_flight_and_starts_nothing_new() -> None:
    sending = Sending(TILES)
    assert sending.computed(0, 4) == [Tile(0, 0)]

    sending.stop(GAVE_UP)

    assert not sending.over
    assert sending.computed(0, 10) == []
    sending.landed()
    assert sending.over
    assert sending.error is GAVE_UP


def test_a_failed_write_stops_the_rest() -> None:
    sending = Sending(TILES)
    sending.computed(0, 10)
    broken = HandOverError(Why.BROKEN, "a write failed")

    sending.failed(broken)
    sending.landed()

    assert not sending.over
    sending.failed(HandOverError(Why.BROKEN, "another one"))
    assert sending.over
    assert sending.error is broken


def test_who_hangs_up_because_all_has_landed_is_no_failure() -> None:
    """D's count may be complete before P hears of its last write."""
    sending = Sending(TILES)
    due = sending.computed(0, 10) + sending.computed(1, 10)

    sending.stop(GAVE_UP)
    for _ in due:
        sending.landed()

    assert sending.over
    assert sending.error is None


def test_all_layers_together_go_when_the_last_of_them_is_computed() -> None:
    sending = Sending(Tiles.of(range(3), range(10), WHOLE))

    due = [sending.computed(layer, tokens) for tokens in (8, 10) for layer in (0, 2, 1)]

    assert due == [[], [], [], [], [], [Tile(0, 0)]]


def test_with_a_context_it_is_complete_when_that_has_landed_too() -> None:
    """Which is written once, however often all is said to be computed."""
    sending = Sending(TILES, with_context=True)
    for _ in sending.computed(0, 10) + sending.computed(1, 10):
        sending.landed()
    assert not sending.over

    assert [sending.finished(), sending.finished()] == [True, False]
    sending.landed()

    assert sending.over
    assert sending.error is None


def test_a_context_is_not_written_after_a_stop() -> None:
    sending = Sending(TILES, with_context=True)
    sending.stop(GAVE_UP)

    assert not sending.finished()
    assert sending.over
