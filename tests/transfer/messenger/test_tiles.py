"""Both sides agree on the tiles, whatever P computes in which order."""

from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.messenger.tiles import Tiles
from pdgate.transfer.plan.count import WHOLE, Rhythm


@st.composite
def tilings(draw: st.DrawFn) -> Tiles:
    start = draw(st.integers(0, 20))
    tokens = range(start, start + draw(st.integers(1, 40)))
    rhythm = Rhythm(draw(st.integers(0, 12)), draw(st.booleans()))
    return Tiles.of(range(draw(st.integers(0, 2)), draw(st.integers(3, 5))), tokens, rhythm)


@given(tilings())
def test_every_token_and_layer_that_d_needs_is_in_one_tile(tiles: Tiles) -> None:
    tokens = [token for chunk in tiles.chunks for token in chunk]
    layers = [layer for lane in tiles.lanes for layer in lane]

    assert tokens == list(range(tokens[0], tiles.tokens))
    assert layers == list(tiles.layers)
    assert tiles.count == len(tiles.lanes) * len(tiles.chunks)
    assert all(layer in tiles.lanes[tiles.lane_of(layer)] for layer in layers)


@given(tilings(), st.integers(0, 80))
def test_a_tile_is_ready_when_all_its_tokens_are_computed(tiles: Tiles, computed: int) -> None:
    ready = tiles.ready(computed)

    for number, chunk in enumerate(tiles.chunks):
        assert (number < ready) == (computed >= chunk.stop)


def test_the_picture_of_the_module() -> None:
    tiles = Tiles.of(range(2), range(16, 112), Rhythm(32, by_layer=True))

    assert list(tiles.chunks) == [range(16, 32), range(32, 64), range(64, 96), range(96, 112)]
    assert tiles.lanes == (range(1), range(1, 2))
    assert [tiles.ready(tokens) for tokens in (31, 32, 95, 96, 111, 112)] == [0, 1, 2, 3, 3, 4]


def test_after_the_prefill_all_of_it_is_one_tile() -> None:
    tiles = Tiles.of(range(32), range(16, 112), WHOLE)

    assert (tiles.count, tiles.lanes, tuple(tiles.chunks)) == (1, (range(32),), (range(16, 112),))
