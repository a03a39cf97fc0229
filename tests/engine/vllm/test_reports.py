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

    assert reports.sent("a")
    assert not reports.sent("a")

    assert reports.take().sent == {"a"}


def test_a_load_that_will_fail_is_said_so_before_it_has_ended() -> None:
    """vLLM can answer the client then, and keeps the blocks until the end."""
    reports = Reports()
    reports.receiving("a", (5, 6))

    reports.failing("a")
    reports.failing("unknown")

    assert reports.take() == Results(frozenset(), frozenset(), frozenset({"a"}), frozenset({5, 6}))
    assert reports.received("a", failed=True)
    assert reports.take() == Results(frozenset(), frozenset({"a"}), frozenset({"a"}))


def test_blocks_of_a_load_that_has_ended_are_not_called_invalid() -> None:
    """They may be another request's when vLLM hears of it."""
    reports = Reports()
    reports.receiving("a", (5, 6))
    assert reports.received("a", failed=True)

    reports.failing("a")

    assert reports.take().invalid == set()
