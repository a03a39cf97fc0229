from pdgate.gateway.engine_metrics.counters import EngineCounters


def test_what_is_new_is_the_difference() -> None:
    new = EngineCounters(computed=5, loads=3).since(EngineCounters(computed=2, loads=3))

    assert new == EngineCounters(computed=3, loads=0)


def test_a_number_that_falls_is_a_new_life() -> None:
    assert EngineCounters(computed=1, loads=9).since(EngineCounters(computed=2, loads=3)) is None


def test_a_family_that_is_gone_is_a_new_life() -> None:
    assert EngineCounters(computed=5).since(EngineCounters(computed=2, loads=3)) is None


def test_a_family_that_appears_began_at_zero() -> None:
    """vLLM with several API servers shows some only once they have something to show."""
    assert EngineCounters(transferred=7).since(EngineCounters()) == EngineCounters(transferred=7)
