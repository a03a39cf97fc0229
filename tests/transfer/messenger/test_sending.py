"""What P writes, once each, and when it is over."""

from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.sending import Sending, Tile
from pdgate.transfer.messenger.tiles import Tiles

TILES = Tiles(layers=2, block_tokens=4, skip=0, tokens=10, tile_blocks=1)
GAVE_UP = HandOverError(Why.CANCELLED, "nobody waits")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12)), max_size=30))
def test_in_whatever_chunks_it_is_computed_every_tile_is_written_once(
    chunks: list[tuple[int, int]],
) -> None:
    sending = Sending(TILES)
    written = [tile for layer, tokens in chunks for tile in sending.computed(layer, tokens)]
    written += sending.computed(0, 10) + sending.computed(1, 10)

    assert sorted((tile.layer, tile.number) for tile in written) == [
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
