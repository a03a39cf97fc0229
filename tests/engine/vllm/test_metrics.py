from pdgate.engine.vllm.metrics import COUNTERS, GAUGES, Growth, Totals, merged


def test_what_grew_is_said_once() -> None:
    growth = Growth()
    assert growth.since(Totals()) is None

    grown = growth.since(Totals(bytes=100, transfers=1, held_blocks=3))

    assert grown is not None
    assert (grown["bytes"], grown["transfers"], grown["held_blocks"]) == (100, 1, 3)
    assert growth.since(Totals(bytes=100, transfers=1, held_blocks=3)) is None


def test_counters_add_up_and_gauges_are_the_latest() -> None:
    growth = Growth()
    first = growth.since(Totals(bytes=100, held_blocks=3))
    second = growth.since(Totals(bytes=150, held_blocks=1))
    assert first is not None
    assert second is not None

    both = merged(first, second)

    assert (both["bytes"], both["held_blocks"]) == (150, 1)
    assert set(both) == set(COUNTERS) | set(GAUGES)
