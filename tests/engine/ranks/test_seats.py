"""Places of ranks: every layer and head lies with the ranks that peers look for it at."""

from dataclasses import replace

import pytest

from pdgate.engine.layout import Layout
from pdgate.engine.ranks.seats import own_layout, places, stages
from pdgate.transfer.messenger.shape import PageShape

WIDE = Layout(layers=5, blocks=3, kv_heads=4, block_tokens=4, head_dim=8)


@pytest.mark.parametrize(
    ("pp", "counts"), [(1, ()), (2, (3, 2)), (3, (2, 2, 1)), (4, (1, 1, 2, 1)), (5, (1,) * 5)]
)
def test_stages_split_the_layers_as_vllm_does(pp: int, counts: tuple[int, ...]) -> None:
    assert stages(5, pp) == counts


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="2 layers cannot be split over 3 pipeline stages"):
        stages(2, 3)


@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (2, 1), (2, 3), (8, 2)])
def test_ranks_have_all_layers_and_heads_and_memory_of_the_size_that_peers_expect(
    tp: int, pp: int
) -> None:
    layout = replace(WIDE, tp=tp, stages=stages(WIDE.layers, pp))
    shape = PageShape.of(layout, "m", order=layout.order, stages=layout.stages)

    found = places(layout)

    assert [place.number for place in found] == list(range(tp * pp))
    assert {(layer, head) for place in found for layer in place.layers for head in place.heads} == {
        (layer, head) for layer in range(5) for head in range(4)
    }
    for place in found:
        assert own_layout(layout, place).total_bytes == shape.region_bytes(place.number)
