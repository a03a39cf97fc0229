"""What is counted of calls: by model, by stage, by instance, and what streams feel like."""

from collections.abc import Iterator

import pytest

from pdgate.forwarders.record import DECODE_ONLY, DISAGGREGATED, PLAIN, Record
from pdgate.gateway.metrics.call_stats import MOST_MODELS, MOST_ROWS, CallStats
from pdgate.gateway.metrics.gaps import EVERY
from pdgate.protocols import sse
from pdgate.protocols.call import Raw
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from tests.support.answers import piece, usage
from tests.support.by_hand import ByHand
from tests.support.clock import Clock
from tests.support.scripted import D0, P0, chat
from tests.support.sinks import Collected

Sample = tuple[str, ...]


def told(stats: CallStats) -> dict[Sample, float]:
    """(name, label values in order of label names) -> value; without buckets."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in stats.collect()
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def only(found: dict[Sample, float], name: str) -> dict[Sample, float]:
    return {key[1:]: value for key, value in found.items() if key[0] == name}


def split_call(stats: CallStats, clock: Clock, *, stream: bool = True) -> Record:
    """Waits 1 s, chosen in 2, read in 4, D chosen in 8, begins after 16, answers for 32."""
    record = Record(chat(stream=stream), clock)
    stats.opened(record)
    record.attempts = 1
    record.path, record.protocol = DISAGGREGATED, "vllm-nixl"
    clock.now += 1
    record.queued_seconds = 1.0
    clock.now += 2
    prefill = record.leg(Role.PREFILL, P0)
    clock.now += 4
    prefill.end(None)
    clock.now += 8
    decode = record.leg(Role.DECODE, D0)
    clock.now += 16
    decode.first_byte = record.committed = clock.now
    clock.now += 32
    decode.end(None)
    return record


@pytest.fixture
def stats() -> CallStats:
    return CallStats([Endpoint(P0), Endpoint(D0)])


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


def test_each_stage_is_counted(stats: CallStats, clock: Clock) -> None:
    record = split_call(stats, clock)
    record.end("ok", 200)
    stats.closed(record)

    found = told(stats)
    assert only(found, "pdgate_stage_seconds_sum") == {
        ("m", "vllm-nixl", "queue"): 1,
        ("m", "vllm-nixl", "choose_prefill"): 2,
        ("m", "vllm-nixl", "prefill"): 4,
        ("m", "vllm-nixl", "choose_decode"): 8,
        ("m", "vllm-nixl", "kv_wait"): 24,
        ("m", "vllm-nixl", "decode_first_byte"): 16,
        ("m", "vllm-nixl", "decode"): 32,
    }
    assert only(found, "pdgate_instance_stage_seconds_sum") == {
        ("p0", "prefill", "prefill"): 4,
        ("d0", "decode", "first_byte"): 16,
        ("d0", "decode", "answer"): 32,
    }
    assert found["pdgate_ttft_seconds_sum", "m", "vllm-nixl"] == 31
    assert found["pdgate_call_seconds_sum", "m", "vllm-nixl"] == 63


def test_a_stage_that_failed_has_no_time(stats: CallStats, clock: Clock) -> None:
    record = Record(chat(), clock)
    stats.opened(record)
    record.attempts, record.path = 1, DISAGGREGATED
    prefill = record.leg(Role.PREFILL, P0)
    clock.now += 4
    prefill.end(EngineFailed("no"))
    record.end("engine_failed", 502)
    stats.closed(record)

    found = told(stats)
    assert list(only(found, "pdgate_stage_seconds_count")) == [("m", "", "choose_prefill")]
    assert not only(found, "pdgate_instance_stage_seconds_count")


def test_only_streams_have_a_first_token_that_is_seen(stats: CallStats, clock: Clock) -> None:
    record = split_call(stats, clock, stream=False)
    record.end_of_answer = b'{"usage": {"completion_tokens": 3}}'
    record.end("ok", 200)
    stats.closed(record)

    found = told(stats)
    assert found["pdgate_first_byte_seconds_count", "m", "vllm-nixl"] == 1
    for name in ("ttft", "tpot", "itl"):
        assert not only(found, f"pdgate_{name}_seconds_count")


def test_the_time_of_a_token_is_by_the_engines_own_count(stats: CallStats, clock: Clock) -> None:
    record = split_call(stats, clock)
    record.end_of_answer = usage(17) + sse.DONE
    record.end("ok", 200)
    stats.closed(record)

    found = told(stats)
    assert found["pdgate_tpot_seconds_sum", "m", "vllm-nixl"] == 2.0
    assert found["pdgate_tokens_total", "generated", "m"] == 17
    assert record.end_of_answer == b"", "kept records would keep whole answers"


def test_what_prefill_had_cached_is_what_was_cached(stats: CallStats, clock: Clock) -> None:
    """Decode tells what prefill handed over as if it had had it."""
    record = split_call(stats, clock)
    record.legs[0].usage = (
        b'{"prompt_tokens": 40, "completion_tokens": 1, "prompt_tokens_details": '
        b'{"cached_tokens": 16}}'
    )
    record.end_of_answer = (
        b'{"usage": {"prompt_tokens": 40, "completion_tokens": 5, "prompt_tokens_details": '
        b'{"cached_tokens": 39}}}'
    )
    record.end("ok", 200)
    stats.closed(record)

    assert only(told(stats), "pdgate_tokens_total") == {
        ("prompt", "m"): 40,
        ("cached", "m"): 16,
        ("generated", "m"): 5,
    }


def gaps_of_a_stream(stats: CallStats, clock: Clock, line: bytes = b"\n") -> Iterator[Record]:
    def said(event: bytes) -> bytes:
        return event.replace(b"\n", line)

    record = Record(chat(), clock)
    stats.opened(record)
    record.path, record.protocol = PLAIN, "plain"
    if record.gaps is not None:
        answer = ByHand()
        record.gaps.of(answer).start(Collected())
        answer.data(said(piece("a")))
        clock.now += 2
        # Half an event is none.
        answer.data(said(piece("b")[:9]))
        clock.now += 3
        answer.data(said(piece("b")[9:]))
        clock.now += 7
        answer.data(said(sse.DONE))
        answer.ended(None)
        yield record
    record.committed = record.started
    record.end("ok", 200)
    stats.closed(record)


@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
async def test_gaps_are_those_between_whole_events_of_every_sixteenth_stream(
    stats: CallStats, clock: Clock, line: bytes
) -> None:
    seen_before_the_call_is_closed = [
        told(stats)["pdgate_itl_seconds_sum", "m", "plain"]
        for _ in range(2 * EVERY)
        for _ in gaps_of_a_stream(stats, clock, line)
    ]

    assert seen_before_the_call_is_closed == [5.0, 10.0]
    # Nobody said how many tokens there were, so those that were timed tell their time.
    assert told(stats)["pdgate_tpot_seconds_count", "m", "plain"] == 2
    assert told(stats)["pdgate_tpot_seconds_sum", "m", "plain"] == 10.0


def test_names_of_models_are_bounded(stats: CallStats, clock: Clock) -> None:
    """Engines with LoRA adapters can have any number of them."""
    for number in range(MOST_MODELS + 2):
        record = Record(chat(model=f"m{number}"), clock)
        stats.opened(record)
        record.path, record.protocol = PLAIN, "plain"
        record.end("ok", 200)
        stats.closed(record)

    found = {key: n for key, n in only(told(stats), "pdgate_calls_total").items() if n}
    assert len(found) == MOST_MODELS + 1
    assert found["other", "ok", PLAIN, "plain"] == 2


def test_an_instance_that_has_left_is_not_told_for_ever(clock: Clock) -> None:
    fleet = [Endpoint(P0), Endpoint(D0)]
    stats = CallStats(fleet)
    record = split_call(stats, clock)
    record.end("ok", 200)
    stats.closed(record)
    fleet.pop()

    names = {key[0] for key in only(told(stats), "pdgate_instance_stage_seconds_count")}
    assert names == {"p0"}


def test_calls_that_wait_to_be_counted_are_bounded(stats: CallStats, clock: Clock) -> None:
    """However long nobody asks for metrics."""
    for number in range(MOST_ROWS + 1):
        record = split_call(stats, clock)
        record.end("ok", 200)
        stats.closed(record)
        assert len(stats._rows) < MOST_ROWS

        if number == MOST_ROWS - 1:
            (aggregate,) = stats.aggregates.values()
            assert aggregate.outcomes == {(DISAGGREGATED, "ok"): MOST_ROWS}

    assert told(stats)["pdgate_calls_total", "m", "ok", DISAGGREGATED, "vllm-nixl"] == MOST_ROWS + 1
    assert not stats._rows


def test_nothing_large_waits_to_be_counted(stats: CallStats, clock: Clock) -> None:
    """Neither what the client sent, nor what engines answered."""
    record = split_call(stats, clock)
    # Such a piece holds on to the message that it was read in.
    record.legs[0].usage = Raw(b'{"prompt_tokens": 40}')
    record.end("ok", 200)
    stats.closed(record)

    (row,) = stats._rows
    assert not {id(record), id(record.call), id(record.call.body)} & set(map(id, row))
    assert [leg.usage for leg in row[8]] == [None, None]
    assert only(told(stats), "pdgate_tokens_total") == {("prompt", "m"): 40}


def test_decode_engines_that_stood_in_are_counted_by_how_it_went(
    stats: CallStats, clock: Clock
) -> None:
    for committed in (None, clock.now, clock.now):
        record = Record(chat(), clock)
        stats.opened(record)
        record.attempts, record.path, record.protocol = 1, DECODE_ONLY, "vllm-nixl"
        record.committed = committed
        record.end("engine_failed", 502)
        stats.closed(record)

    found = told(stats)
    assert found["pdgate_kv_handover_total", "vllm-nixl", "recomputed"] == 2
    assert found["pdgate_kv_handover_total", "vllm-nixl", "failed"] == 1
    assert found["pdgate_broken_answers_total", "vllm-nixl", "lost"] == 2


@pytest.mark.parametrize(
    ("outcome", "handed_over", "result"),
    [
        ("ok", True, "done"),
        ("engine_failed", False, "failed"),
        ("client_gone", False, "unknown"),
        ("engine_rejected", False, "unknown"),
    ],
)
def test_how_a_hand_over_went(
    stats: CallStats, clock: Clock, outcome: str, handed_over: bool, result: str
) -> None:
    record = split_call(stats, clock)
    record.handed_over = handed_over
    record.expired = 2
    record.end(outcome, 500)
    stats.closed(record)

    found = only(told(stats), "pdgate_kv_handover_total")
    assert {key[1]: count for key, count in found.items() if count} == {result: 1, "expired": 2}
