from pdgate.engine.vllm.metrics import COUNTERS, GAUGES, Growth, Totals, WorkerGauges, merged


def test_what_grew_is_said_once() -> None:
    growth = Growth()
    assert growth.since(Totals()) is None

    grown = growth.since(Totals(bytes=100, transfers=1, held_blocks=3))

    assert grown is not None
    assert (grown["bytes"], grown["transfers"], grown["held_blocks@0"]) == (100, 1, 3)
    assert growth.since(Totals(bytes=100, transfers=1, held_blocks=3)) is None


def test_counters_add_up_and_gauges_are_the_latest() -> None:
    growth = Growth()
    first = growth.since(Totals(bytes=100, held_blocks=3))
    second = growth.since(Totals(bytes=150, held_blocks=1))
    assert first is not None
    assert second is not None

    both = merged(first, second)

    assert (both["bytes"], both["held_blocks@0"]) == (150, 1)
    assert set(both) == set(COUNTERS) | {f"{name}@0" for name in GAUGES}


def test_a_load_of_several_workers_is_counted_once_and_their_bytes_and_blocks_add_up() -> None:
    first, second = (
        Growth(worker).since(Totals(bytes=100, transfers=1, held_blocks=3)) for worker in (0, 1)
    )
    assert first is not None
    assert second is not None
    gauges = WorkerGauges()

    both = merged(first, second)

    assert (both["bytes"], both["transfers"]) == (200, 1)
    assert gauges.after(both)["held_blocks"] == 6
    assert gauges.after({"held_blocks@1": 0})["held_blocks"] == 3
