"""Both sides agree on the tiles, whatever P computes in which order."""

from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.messenger.tiles import Tiles


@st.composite
def tilings(draw: st.DrawFn) -> Tiles:
    block_tokens = draw(st.integers(1, 5))
    skip = draw(st.integers(0, 4))
    tokens = draw(st.integers(skip * block_tokens + 1, skip * block_tokens + 40))
    return Tiles(draw(st.integers(1, 3)), block_tokens, skip, tokens, draw(st.integers(1, 6)))


@given(tilings())
def test_every_block_that_d_needs_is_in_one_tile(tiles: Tiles) -> None:
    blocks = [block for tile in range(tiles.per_layer) for block in tiles.span(tile)]

    assert blocks == list(range(tiles.skip, tiles.blocks))
    assert tiles.count == tiles.layers * tiles.per_layer


@given(tilings(), st.integers(0, 80))
def test_a_tile_is_ready_when_all_its_needed_tokens_are_computed(
    tiles: Tiles, computed: int
) -> None:
    ready = tiles.ready(computed)

    for tile in range(tiles.per_layer):
        last_token = min(
            tiles.span(tile)[-1] * tiles.block_tokens + tiles.block_tokens, tiles.tokens
        )
        assert (tile < ready) == (computed >= last_token)


def test_the_picture_of_the_module() -> None:
    tiles = Tiles(layers=1, block_tokens=16, skip=1, tokens=100, tile_blocks=2)

    assert [list(tiles.span(tile)) for tile in range(tiles.per_layer)] == [[1, 2], [3, 4], [5, 6]]
    assert [tiles.ready(tokens) for tokens in (47, 48, 80, 99, 100)] == [0, 1, 2, 2, 3]
