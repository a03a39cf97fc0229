"""What waits for a collector is bounded; what is left at the end is sent."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import MetricsData

from pdgate.forwarders.record import Record
from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.tracing import export
from pdgate.gateway.tracing.collector import headers_in
from pdgate.gateway.tracing.export import Exporting
from pdgate.gateway.tracing.sampling import EndedCall, Tracer
from pdgate.gateway.tracing.spans import Span
from tests.support.otlp import collector
from tests.support.scripted import chat


def one_call(exporting: Exporting) -> Record:
    stats = CallStats(())
    stats.tracer = Tracer(1.0, exporting.put)
    record = Record(chat())
    stats.opened(record)
    record.end("ok", 200)
    stats.closed(record)
    return record


def nothing() -> MetricsData:
    return MetricsData([])


async def test_a_full_line_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MOST_WAITING", 2)
    async with collector() as collected:
        exporting = Exporting(collected.url, {}, "x", nothing)
        for _ in range(5):
            one_call(exporting)
        assert exporting.dropped == 3

        sending = asyncio.create_task(exporting.run())
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])

    assert (exporting.sent, exporting.lost) == (2, 0)
    assert len(collected.spans) == 2
    assert collected.resources[0]["service.name"] == "x"


async def test_a_bug_over_one_call_is_not_the_end_of_all_traces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: EndedCall) -> Iterator[Span]:
        monkeypatch.undo()
        raise KeyError("a bug")

    async with collector() as collected:
        monkeypatch.setattr(export, "BATCH", 1)
        exporting = Exporting(collected.url, {}, "x", nothing)
        monkeypatch.setattr(export, "spans_of", fails)
        one_call(exporting)
        one_call(exporting)

        sending = asyncio.create_task(exporting.run())
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])

    assert (exporting.sent, exporting.lost) == (1, 1)
    assert "could not be made" in caplog.text


def test_what_waits_has_no_prompt() -> None:
    record = one_call(Exporting("http://127.0.0.1:9", {}, "x", nothing))

    assert record.trace is not None
    assert (record.call.body, record.call.headers, record.end_of_answer) == ({}, (), b"")


@pytest.mark.parametrize("text", ["collector:4318", "grpc://collector:4317", "http://"])
def test_an_endpoint_that_is_no_url_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tracing\.endpoint.*not a URL like http://host:4318"):
        load(None, {"tracing.endpoint": text})


def test_a_share_is_between_0_and_1() -> None:
    with pytest.raises(ConfigError, match=r"tracing\.sample_ratio"):
        load(None, {"tracing.sample_ratio": 1.5})


def test_headers_are_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# ours\n\nX-Scope: a:b\nAuthorization: Bearer c\n")

    assert headers_in(str(file)) == {"x-scope": "a:b", "authorization": "Bearer c"}


def test_of_a_wrong_header_the_line_is_named_and_not_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("x: y\nsesame\n")

    with pytest.raises(ConfigError, match=r"line 2 of .* is not") as wrong:
        load(None, {"tracing.headers_file": str(file)})
    assert "sesame" not in str(wrong.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(None, {"tracing.headers_file": str(tmp_path / "none")})
