"""Slots are what histograms grew by, and quantiles are read from them as Prometheus does."""

from collections.abc import Iterator

import pytest

from pdgate.gateway.console.pulse import (
    KEPT_SLOTS,
    SLOT_SECONDS,
    Pulse,
    PulseSlot,
    points,
    quantiles,
    together,
)
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import HistogramFamily, Samples
from pdgate.gateway.metrics.histogram import SECONDS, Histogram

TTFT, FIRST_BYTE, ITL = families.TTFT_SECONDS, families.FIRST_BYTE_SECONDS, families.ITL_SECONDS


class Stats:
    """Counts as the gateway's do, by several labels."""

    def __init__(self) -> None:
        self.seconds: dict[HistogramFamily, list[tuple[str, float]]] = {
            TTFT: [],
            FIRST_BYTE: [],
            ITL: [],
        }
        self.ended: dict[tuple[str, str], int] = {}

    def collect(self) -> Iterator[Samples]:
        for family, seen in self.seconds.items():
            by_model: dict[str, Histogram] = {}
            for model, seconds in seen:
                by_model.setdefault(model, Histogram()).add([seconds])
            yield family.samples((("plain", model), found) for model, found in by_model.items())
        yield families.CALLS.samples(
            (("plain", model, "plain", outcome), calls)
            for (model, outcome), calls in self.ended.items()
        )


def buckets(seen: dict[str, float]) -> dict[str, float]:
    """All of a histogram: these, and 0 in the others."""
    return {**dict.fromkeys((*map(str, SECONDS), "+Inf"), 0.0), **seen}


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


def test_a_slot_is_what_was_new_in_it_over_all_labels(clock: list[float]) -> None:
    stats = Stats()
    stats.seconds[TTFT] = [("a", 0.05)]
    pulse = Pulse(stats.collect, lambda: clock[0])
    stats.seconds[TTFT] += [("a", 0.15), ("b", 0.15), ("b", 9.0)]
    stats.ended = {("a", "ok"): 2, ("b", "engine_failed"): 1}

    clock[0] += SLOT_SECONDS
    pulse.beat()

    assert pulse.slots() == [
        PulseSlot(
            1000 // SLOT_SECONDS,
            buckets({"0.25": 2, "10.0": 1}),
            {},
            {"ok": 2, "engine_failed": 1},
        )
    ]


def test_where_nothing_streams_first_bytes_stand_for_first_tokens(clock: list[float]) -> None:
    stats = Stats()
    pulse = Pulse(stats.collect, lambda: clock[0])
    stats.seconds[FIRST_BYTE] = [("a", 0.3)]
    pulse.beat()
    stats.seconds[FIRST_BYTE] += [("a", 0.3)]
    stats.seconds[TTFT] = [("a", 0.15)]
    pulse.beat()

    assert [slot.ttft for slot in pulse.slots()] == [
        buckets({"0.5": 1}),
        buckets({"0.25": 1}),
    ]


def test_quiet_slots_are_left_out_and_old_ones_go(clock: list[float]) -> None:
    stats = Stats()
    pulse = Pulse(stats.collect, lambda: clock[0])
    stats.seconds[ITL] = [("a", 0.05)]
    pulse.beat()
    pulse.beat()
    assert len(pulse.slots()) == 1

    clock[0] += (KEPT_SLOTS + 1) * SLOT_SECONDS
    assert pulse.slots() == []


def test_slots_of_several_processes_are_added_by_their_time() -> None:
    mine = [PulseSlot(7, {"0.1": 1}, {}, {"ok": 1}), PulseSlot(9, {"0.1": 1}, {}, {"ok": 1})]
    others = [
        PulseSlot(8, {"0.1": 2}, {}, {"ok": 2}),
        PulseSlot(9, {"0.1": 1, "0.2": 1}, {}, {"left": 1}),
    ]

    assert together([mine, others]) == [
        mine[0],
        others[0],
        PulseSlot(9, {"0.1": 2, "0.2": 1}, {}, {"ok": 1, "left": 1}),
    ]


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ({}, []),
        ({"0.1": 0, "+Inf": 0}, []),
        # Spread evenly from 0 to 0.1.
        ({"0.1": 10, "0.2": 0, "+Inf": 0}, [0.05, 0.09]),
        # Half are below 0.1, so the median is its bound.
        ({"0.1": 5, "0.2": 5, "+Inf": 0}, [0.1, 0.18]),
        ({"0.1": 0, "0.2": 0, "0.4": 4, "+Inf": 0}, [0.3, 0.38]),
        # Beyond the last bound nobody knows more.
        ({"0.1": 1, "0.4": 0, "+Inf": 9}, [0.4, 0.4]),
    ],
)
def test_quantiles_are_read_within_their_bucket(
    buckets: dict[str, float], expected: list[float]
) -> None:
    assert quantiles((0.5, 0.9), buckets) == pytest.approx(expected)


def test_a_chart_has_rates_per_second_and_tells_failures_from_clients_that_left() -> None:
    ended = {"ok": 6, "client_gone": 2, "engine_failed": 1, "no_instance": 1}
    (point,) = points([PulseSlot(5, {"0.1": 1}, {}, ended)])

    assert (point["ok"], point["gone"], point["failed"]) == (
        6 / SLOT_SECONDS, 2 / SLOT_SECONDS, 2 / SLOT_SECONDS,
    )  # fmt: skip
    assert (point["at"], point["itl_ms"]) == (5 * SLOT_SECONDS, [])
