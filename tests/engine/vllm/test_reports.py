from pdgate.engine.vllm.reports import NOTHING, Reports, Results


def test_each_load_is_reported_once() -> None:
    """Twice is as deadly to vLLM as an id that it does not know."""
    reports = Reports()
    reports.receiving("a")

    assert reports.received("a", failed=False)
    assert not reports.received("a", failed=True)

    taken = reports.take()
    assert taken == Results(frozenset(), frozenset({"a"}), frozenset())
    assert reports.take() is NOTHING


def test_a_failed_load_is_received_too() -> None:
    reports = Reports()
    reports.receiving("a")
    reports.received("a", failed=True)

    taken = reports.take()

    assert taken.received == taken.failed == {"a"}


def test_what_nobody_waits_for_is_not_reported() -> None:
    reports = Reports()

    assert not reports.received("a", failed=False)
    assert not reports.sent("a")

    assert reports.take() is NOTHING


def test_held_blocks_are_reported_sent_once() -> None:
    reports = Reports()
    reports.sending("a")
    assert reports.held == {"a"}

    assert reports.sent("a")
    assert not reports.sent("a")

    assert reports.take().sent == {"a"}
    assert reports.held == frozenset()
