"""Whatever goes wrong ends the load once, with a name, and strands no pages."""

from dataclasses import replace
from typing import Any

import pytest

from pdgate.engine.connector import Keep, Load, Pages
from tests.support.engine_pair import (
    AT_ONCE,
    D_BLOCKS,
    DIALECTS,
    P_BLOCKS,
    TWO_LEGGED,
    Start,
    prefill,
)
from tests.support.fake_core import SECONDS


@pytest.mark.parametrize("dialect", TWO_LEGGED)
def test_a_lease_that_ended_is_a_named_error(dialect: str, start: Start) -> None:
    pair = start(dialect)
    answer = prefill(pair)

    pair.p.connector.dropped("p1", "the lease of 10 s is over")
    pair.d.load(pair.to_decode(answer), D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("expired: the lease of 10 s is over")
    assert pair.p.connector.counters.expired == 1
    assert pair.d.connector.counters.failed == 1


@pytest.mark.parametrize("dialect", AT_ONCE)
def test_decode_learns_that_prefill_failed(dialect: str, start: Start) -> None:
    pair = start(dialect)
    assert isinstance(pair.p.connector.plan(pair.to_prefill()), Keep)
    pair.d.load(pair.to_decode(), D_BLOCKS)

    pair.p.connector.dropped("p1", "the client left")

    error = pair.d.result()
    assert error is not None
    assert "the client left" in error


@pytest.mark.parametrize("dialect", AT_ONCE)
def test_waiting_for_prefill_has_a_deadline(dialect: str, start: Start) -> None:
    # The time that it takes to connect is part of it.
    pair = start(dialect, lease_seconds=0.5)

    pair.d.load(pair.to_decode(), D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("unknown key")


@pytest.mark.parametrize("dialect", ["vllm-nixl", "vllm-mooncake a"])
def test_in_a_serial_hand_over_nobody_waits_for_what_is_not_there(
    dialect: str, start: Start
) -> None:
    pair = start(dialect)
    answer = prefill(pair)
    pair.d.load(pair.to_decode(answer), D_BLOCKS)
    assert pair.d.result() is None

    pair.d.load(pair.to_decode(answer, n=1), D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("unknown key")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_abort_while_loading_ends_the_load_once(dialect: str, start: Start) -> None:
    """And prefill learns of it: it aborts what it still computes."""
    pair = start(dialect, prefills_at_once=False)
    if not pair.serial and pair.dialect != "vllm-kvt batch":
        pair.p.connector.plan(pair.to_prefill())
    if pair.serial:
        pair.d.load(pair.to_decode(prefill(pair)), D_BLOCKS)
    else:
        pair.d.load(pair.to_decode(), D_BLOCKS)
        if pair.dialect == "vllm-kvt batch":
            pair.p.prefills.get(timeout=SECONDS)

    pair.d.connector.cancel("d1")
    pair.d.connector.cancel("d1")

    error = pair.d.result()
    if not pair.serial:
        assert error == "cancelled"
        assert pair.p.aborted.get(timeout=SECONDS)
    elif error is None:
        assert pair.d.holds(D_BLOCKS, seed=1)
    else:
        assert pair.p.freed.get(timeout=SECONDS) == "p1"
    pair.close()
    assert pair.d.results.empty()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dead_prefill_engine_is_an_error(dialect: str, start: Start) -> None:
    pair = start(dialect)
    answer = prefill(pair)
    to_decode = pair.to_decode(answer)
    pair.p.close()

    pair.d.load(to_decode, D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("broken peer")


@pytest.mark.parametrize("dialect", AT_ONCE)
def test_a_prefill_engine_that_dies_while_decode_waits_is_an_error(
    dialect: str, start: Start
) -> None:
    pair = start(dialect)
    pair.p.connector.plan(pair.to_prefill())
    pair.d.load(pair.to_decode(), D_BLOCKS)

    pair.p.close()

    assert pair.d.result() is not None


def test_pages_that_are_being_read_outlive_their_lease(start: Start) -> None:
    """The core keeps them until the reader is done, so what was read is right."""
    pair = start("vllm-nixl")
    answer = prefill(pair)
    read = pair.d.backend.read
    in_use = []

    def late(*args: Any, **kwargs: Any) -> Any:
        in_use.append(pair.p.connector.dropped("p1", "the lease is over"))
        return read(*args, **kwargs)

    pair.d.backend.read = late  # type: ignore[method-assign]
    pair.d.load(pair.to_decode(answer), D_BLOCKS)

    assert pair.d.result() is None
    assert in_use == [True]
    assert pair.p.freed.get(timeout=SECONDS) == "p1"


def test_pages_whose_reader_hung_up_are_not_confirmed(start: Start) -> None:
    """What it read may be another request's by then, and nothing else would tell."""
    pair = start("sglang")
    prefill(pair)
    read = pair.d.backend.read

    def late(*args: Any, **kwargs: Any) -> Any:
        assert pair.p.connector.dropped("p1", "the lease is over")
        transfer = read(*args, **kwargs)
        # As a service does whose reader took too long.
        pair.p.connector.close()
        return transfer

    pair.d.backend.read = late  # type: ignore[method-assign]
    pair.d.load(pair.to_decode(), D_BLOCKS)

    assert pair.d.result() is not None
    assert pair.p.freed.get(timeout=SECONDS) == "p1"


def test_a_live_key_is_not_taken_twice(start: Start) -> None:
    pair = start("sglang")
    prefill(pair)

    with pytest.raises(ValueError, match="another live request"):
        pair.p.connector.plan(replace(pair.to_prefill(), id="p2"))


def test_a_request_aborted_before_it_was_kept_is_released_when_it_comes_late(start: Start) -> None:
    pair = start("sglang")
    to_prefill = pair.to_prefill()
    keep = pair.p.connector.plan(to_prefill)
    assert isinstance(keep, Keep)
    pair.d.load(pair.to_decode(), D_BLOCKS)
    pair.d.connector.cancel("d1")
    assert pair.p.aborted.get(timeout=SECONDS) == "p1"

    pair.p.finish(to_prefill, keep, P_BLOCKS)

    assert pair.p.freed.get(timeout=SECONDS) == "p1"


def test_closing_ends_the_loads_under_way(start: Start) -> None:
    pair = start("sglang")
    load = pair.d.connector.plan(pair.to_decode())
    assert isinstance(load, Load)
    pair.d.connector.start("d1", load, Pages(D_BLOCKS, load.tokens), 0)

    pair.d.connector.close()

    assert pair.d.results.get_nowait() == ("d1", "cancelled")
