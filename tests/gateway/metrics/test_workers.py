"""Several workers, one page of metrics."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from pdgate.gateway.metrics.books import registry_of
from pdgate.gateway.metrics.workers import WRITE_SECONDS, WorkerMetrics

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Counted(Collector):
    """What one worker counts, in numbers that a test sets."""

    def __init__(self, calls: int, running: int, up: int = 1) -> None:
        self.calls = calls
        self.running = running
        self.up = up

    def collect(self) -> Iterator[Family]:
        counter = CounterMetricFamily("pdgate_calls", "Calls.", labels=("outcome",))
        counter.add_metric(("ok",), self.calls)
        yield counter
        yield GaugeMetricFamily("pdgate_calls_in_flight", "Running.", self.running)
        up = GaugeMetricFamily("pdgate_instance_up", "Up.", labels=("instance",))
        up.add_metric(("p0",), self.up)
        yield up
        seconds = HistogramMetricFamily("pdgate_call_seconds", "Seconds.")
        seconds.add_metric((), [("1.0", self.calls), ("+Inf", self.calls + 1)], 2.5)
        yield seconds


def page(worker: WorkerMetrics) -> dict[str, float]:
    """What this worker answers to /metrics: sample and its label values -> value."""
    text = generate_latest(registry_of(worker)).decode()
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_any_worker_tells_the_sum_of_all(tmp_path: Path) -> None:
    counted = [Counted(3, 1), Counted(4, 2), Counted(5, 0)]
    workers = [WorkerMetrics(each, tmp_path) for each in counted]
    for worker in workers:
        page(worker)

    for worker in workers:
        assert page(worker) == {
            "pdgate_calls_total ok": 12,
            "pdgate_calls_in_flight": 3,
            "pdgate_instance_up p0": 1,
            "pdgate_call_seconds_bucket 1.0": 12,
            "pdgate_call_seconds_bucket +Inf": 15,
            "pdgate_call_seconds_count": 15,
            "pdgate_call_seconds_sum": 7.5,
        }
    for worker in workers:
        worker.close()


def test_of_a_dead_worker_only_what_never_falls_stays(tmp_path: Path) -> None:
    dead, living = WorkerMetrics(Counted(3, 7), tmp_path), WorkerMetrics(Counted(4, 1), tmp_path)
    before = page(dead), page(living)
    dead.close()

    after = page(living)

    assert before[1]["pdgate_calls_in_flight"] == 8
    assert after["pdgate_calls_in_flight"] == 1
    assert after["pdgate_calls_total ok"] == before[1]["pdgate_calls_total ok"] == 7
    assert after["pdgate_call_seconds_count"] == before[1]["pdgate_call_seconds_count"]
    living.close()


def test_an_engine_is_up_if_any_worker_may_call_it(tmp_path: Path) -> None:
    workers = [WorkerMetrics(Counted(0, 0, up), tmp_path) for up in (0, 1)]
    for worker in workers:
        page(worker)

    assert [page(worker)["pdgate_instance_up p0"] for worker in workers] == [1, 1]
    for worker in workers:
        worker.close()


def test_what_a_worker_told_no_other_tells_less_of(tmp_path: Path) -> None:
    """A counter that goes back looks like a restart."""
    counted = Counted(1, 0)
    told, other = WorkerMetrics(counted, tmp_path), WorkerMetrics(Counted(0, 0), tmp_path)
    for calls in (1, 5, 9):
        counted.calls = calls
        assert page(told)["pdgate_calls_total ok"] == calls
        assert page(other)["pdgate_calls_total ok"] == calls
    told.close()
    assert page(other)["pdgate_calls_total ok"] == 9
    other.close()


async def test_a_worker_tells_the_others_also_when_nobody_asks_it(tmp_path: Path) -> None:
    counted = Counted(1, 0)
    quiet, asked = WorkerMetrics(counted, tmp_path), WorkerMetrics(Counted(0, 0), tmp_path)
    running = asyncio.create_task(quiet.run())
    await asyncio.sleep(0)
    assert page(asked)["pdgate_calls_total ok"] == 1

    counted.calls = 2
    async with asyncio.timeout(WRITE_SECONDS * 20):
        while page(asked)["pdgate_calls_total ok"] != 2:  # noqa: ASYNC110
            await asyncio.sleep(WRITE_SECONDS / 10)

    counted.calls = 3
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert page(asked)["pdgate_calls_total ok"] == 3
    quiet.close()
    asked.close()


async def test_a_folder_that_is_gone_stops_no_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    worker = WorkerMetrics(Counted(1, 0), folder)
    (next(folder.iterdir())).unlink()
    folder.rmdir()
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)

    assert not running.done()
    assert "cannot see" in caplog.text
    running.cancel()
    worker.close()
