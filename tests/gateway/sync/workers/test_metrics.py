"""Several workers, one page of metrics."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.metrics.family import Counter, Gauge, SampleMerge, Samples
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.gateway.metrics.page import registry_of
from pdgate.gateway.sync.workers.metrics import WorkerMetrics
from pdgate.gateway.wiring.metrics import together
from tests.support.waiting import until


class Counted:
    """What one worker counts, in numbers that a test sets."""

    def __init__(self, calls: int, running: int, up: int = 1) -> None:
        self.calls = calls
        self.running = running
        self.up = up

    def collect(self) -> Iterator[Samples]:
        yield families.API_CALLS.samples([(("chat", "ok"), self.calls)])
        yield families.CALLS_IN_FLIGHT.sample(self.running)
        yield families.INSTANCE_UP.samples([(("p0", "prefill"), self.up)])
        histogram = Histogram()
        for _ in range(self.calls):
            histogram.add([0.5])
        histogram.add([2.0])
        yield families.CALL_SECONDS.samples([(("plain", "m"), histogram)])


def metrics_of(counted: Counted, folder: Path) -> WorkerMetrics:
    return WorkerMetrics(counted.collect, folder)


def page(worker: WorkerMetrics) -> dict[str, float]:
    """What this worker answers to /metrics: sample and its label values -> value."""
    text = generate_latest(
        registry_of(lambda: iter(worker.together(worker._number(), [*worker.own()])))
    ).decode()
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_any_worker_tells_the_sum_of_all(tmp_path: Path) -> None:
    counted = [Counted(3, 1), Counted(4, 2), Counted(5, 0)]
    workers = [metrics_of(each, tmp_path) for each in counted]
    for worker in workers:
        page(worker)

    for worker in workers:
        shown = page(worker)
        assert shown["pdgate_api_calls_total chat ok"] == 12
        assert shown["pdgate_calls_in_flight"] == 3
        assert shown["pdgate_instance_up p0 prefill"] == 1
        assert shown["pdgate_call_seconds_bucket 1.0 m plain"] == 12
        assert shown["pdgate_call_seconds_bucket +Inf m plain"] == 15
        assert shown["pdgate_call_seconds_count m plain"] == 15
        assert shown["pdgate_call_seconds_sum m plain"] == 12 * 0.5 + 3 * 2.0
    for worker in workers:
        worker.close()


def test_of_a_dead_worker_only_what_never_falls_stays(tmp_path: Path) -> None:
    dead, living = metrics_of(Counted(3, 7), tmp_path), metrics_of(Counted(4, 1), tmp_path)
    before = page(dead), page(living)
    dead.close()

    after = page(living)

    assert before[1]["pdgate_calls_in_flight"] == 8
    assert after["pdgate_calls_in_flight"] == 1
    assert (
        after["pdgate_api_calls_total chat ok"] == before[1]["pdgate_api_calls_total chat ok"] == 7
    )
    assert (
        after["pdgate_call_seconds_count m plain"] == before[1]["pdgate_call_seconds_count m plain"]
    )
    living.close()


def test_the_pages_of_the_dead_become_one(tmp_path: Path) -> None:
    """Each that ever was made every look dearer, and took room on the disk."""
    living = metrics_of(Counted(1, 1), tmp_path)
    total = 1
    for calls in (2, 3):
        dead = metrics_of(Counted(calls, 7), tmp_path)
        page(dead)
        (left,) = [path for path in tmp_path.glob("*.json") if path != living._path]
        content, total = left.read_bytes(), total + calls
        dead.close()

        living._try_to_write(living._number(), living.own())

        assert [*tmp_path.glob("*.json")] == [living._path]
        assert [*tmp_path.glob("*.alive")] == [living._path.with_suffix(".alive")]
        # As for a worker that has listed and read it before.
        left.write_bytes(content)
        left.with_suffix(".alive").touch()
        for _ in range(2):
            after = page(living)
            assert after["pdgate_api_calls_total chat ok"] == total
            assert after["pdgate_calls_in_flight"] == 1
            living._try_to_write(living._number(), living.own())
    living.close()


def test_what_was_looked_at_before_is_not_written_behind_what_came_later(tmp_path: Path) -> None:
    """Each is written by a thread of its own, and the last of them may be the first."""
    counted = Counted(1, 0)
    told, other = metrics_of(counted, tmp_path), metrics_of(Counted(0, 0), tmp_path)
    before, found = told._number(), [*told.own()]
    counted.calls = 5
    told._try_to_write(told._number(), told.own())

    told._try_to_write(before, found)

    assert page(other)["pdgate_api_calls_total chat ok"] == 5
    told.close()
    other.close()


def test_an_engine_is_up_if_any_worker_may_call_it(tmp_path: Path) -> None:
    workers = [metrics_of(Counted(0, 0, up), tmp_path) for up in (0, 1)]
    for worker in workers:
        page(worker)

    assert [page(worker)["pdgate_instance_up p0 prefill"] for worker in workers] == [1, 1]
    for worker in workers:
        worker.close()


def test_a_new_metric_is_a_declaration_and_an_increment(tmp_path: Path) -> None:
    """Made up here, and shown and merged with nothing else said of it anywhere."""
    surprises = Counter("pdgate_surprises", "Of a kind.", ("kind",))
    queue = Gauge("pdgate_queue", "A part in each worker.", merge=SampleMerge.SUM)
    lead = Gauge("pdgate_lead", "The same in all workers.", ("of",), merge=SampleMerge.MAX)
    workers = []
    for number in (1, 2):
        stats = CallStats(())
        stats.counts[surprises]["nice"] += number

        def gauges(number: int = number) -> Iterator[Samples]:
            yield queue.sample(number)
            yield lead.samples([("us", number)])

        workers.append(WorkerMetrics(together(stats.collect, gauges), tmp_path))
    page(workers[0])

    for one in reversed(workers):
        shown = page(one)
        assert shown["pdgate_surprises_total nice"] == 3
        assert shown["pdgate_queue"] == 3
        assert shown["pdgate_lead us"] == 2
        assert shown["pdgate_requests_refused_total 400"] == 0, "those that are declared as well"
    for one in workers:
        one.close()


def test_what_each_worker_hears_of_an_engine_is_not_added_up(tmp_path: Path) -> None:
    """One engine published 100 blocks, and two workers heard of it, of which one is late and then alone."""

    def hears(blocks: int, lag_seconds: float, connected: bool) -> WorkerMetrics:
        def collect() -> Iterator[Samples]:
            yield families.KV_EVENT_BLOCKS.samples([(("p0", "0", "stored"), blocks)])
            yield families.KV_EVENT_CACHED_BLOCKS.samples([(("p0", "0"), blocks)])
            yield families.KV_EVENT_LAG_SECONDS.samples([(("p0", "0"), lag_seconds)])
            yield families.KV_EVENT_CONNECTED.samples([("p0", connected)])

        return WorkerMetrics(collect, tmp_path)

    workers = hears(100, 0.25, True), hears(90, 3.5, False)
    for worker in workers:
        page(worker)

    for worker in workers:
        assert page(worker) == {
            "pdgate_kv_event_blocks_total stored p0 0": 100,
            "pdgate_kv_event_cached_blocks p0 0": 100,
            "pdgate_kv_event_lag_seconds p0 0": 3.5,
            "pdgate_kv_event_connected p0": 0,
        }
    workers[1].close()
    assert page(workers[0])["pdgate_kv_event_connected p0"] == 1
    workers[0].close()


def test_a_gauge_cannot_be_declared_without_its_merging() -> None:
    with pytest.raises(TypeError, match="merge"):
        Gauge("pdgate_silently_summed", "Of two workers?")  # type: ignore[call-arg]


def test_a_sample_has_the_labels_that_are_declared() -> None:
    for key in ("p0", ("p0", "prefill", "up")):
        with pytest.raises(ValueError, match="zip"):
            families.INSTANCE_UP.samples([(key, 1)])


def test_what_a_worker_told_no_other_tells_less_of(tmp_path: Path) -> None:
    """A counter that goes back looks like a restart."""
    counted = Counted(1, 0)
    told, other = metrics_of(counted, tmp_path), metrics_of(Counted(0, 0), tmp_path)
    for calls in (1, 5, 9):
        counted.calls = calls
        assert page(told)["pdgate_api_calls_total chat ok"] == calls
        assert page(other)["pdgate_api_calls_total chat ok"] == calls
    told.close()
    assert page(other)["pdgate_api_calls_total chat ok"] == 9
    other.close()


async def test_a_worker_tells_the_others_also_when_nobody_asks_it(tmp_path: Path) -> None:
    counted = Counted(1, 0)
    quiet, asked = metrics_of(counted, tmp_path), metrics_of(Counted(0, 0), tmp_path)
    running = asyncio.create_task(quiet.run())
    await until(lambda: page(asked)["pdgate_api_calls_total chat ok"] == 1, "a first call")

    counted.calls = 2
    await until(lambda: page(asked)["pdgate_api_calls_total chat ok"] == 2, "a second call")

    counted.calls = 3
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert page(asked)["pdgate_api_calls_total chat ok"] == 3
    quiet.close()
    asked.close()


async def test_a_folder_that_is_gone_stops_no_metrics_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    worker = metrics_of(Counted(1, 0), folder)
    (next(folder.iterdir())).unlink()
    folder.rmdir()
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)

    assert not running.done()
    for _ in range(3):
        worker._try_to_write(worker._number(), worker.own())
    # Once, and not twice a second.
    assert caplog.text.count("cannot see") == 1
    running.cancel()
    worker.close()
