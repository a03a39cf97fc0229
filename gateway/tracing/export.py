"""Traces on their way to a collector, off the event loop.

    call is over --put--> at most MOST_WAITING --thread--> spans, OTLP/HTTP (protobuf)

A collector that is away or slow costs calls nothing: batches that it does not take are lost and
counted, and so is what comes while the line is full. The log says when that begins and ends.

Needs the extra `otel`; imported only where a collector is configured.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Final, Self

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from pdgate import __version__
from pdgate.gateway.tracing.conventions import ERROR_TYPE
from pdgate.gateway.tracing.sampling import EndedCall
from pdgate.gateway.tracing.spans import Span, spans_of

log = logging.getLogger(__name__)
_LIBRARY = logging.getLogger("opentelemetry.exporter")

MOST_WAITING: Final = 2048
"""Traces that wait for the collector."""

BATCH: Final = 256
"""Traces in one request, of six spans or so each."""

WAIT_SECONDS: Final = 1.0
"""For a batch to become larger."""

SEND_SECONDS: Final = 5.0
"""That a collector may take, repetitions included."""

METRICS_SECONDS: Final = 15.0

LAST_SECONDS: Final = 3.0
"""For what is left at the end."""

TRACES: Final = "traces"
METRICS: Final = "metrics"

SCOPE: Final = InstrumentationScope("pdgate", __version__)


class Exporting:
    """
    Attributes:
        sent, lost, dropped: Traces: that the collector took; that it did not take; that found the
            line full.
        resource: What the traces are of.
    """

    def __init__(
        self,
        endpoint: str,
        headers: dict[str, str],
        service_name: str,
        metrics: Callable[[], MetricsData],
    ) -> None:
        """`metrics` are asked for on the event loop, every METRICS_SECONDS."""
        self.sent = self.lost = self.dropped = 0
        self._endpoint = endpoint
        self._metrics = metrics
        self._waiting: deque[EndedCall] = deque()
        self._latest: MetricsData | None = None
        self._resource = resource_of(service_name)
        self._spans = OTLPSpanExporter(
            f"{endpoint}/v1/traces", headers=headers, timeout=SEND_SECONDS
        )
        self._figures = OTLPMetricExporter(
            f"{endpoint}/v1/metrics", headers=headers, timeout=SEND_SECONDS
        )
        self._reasons = _Reasons()
        self._refused: set[str] = set()
        self._something = Event()
        self._over = False
        self._thread: Thread | None = None

    def put(self, ended: EndedCall) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(ended)
        if len(self._waiting) >= BATCH:
            self._something.set()

    async def run(self) -> None:
        """Sends until it is cancelled, and then what is left, for at most LAST_SECONDS.

        Not if the collector is away: that would only make the end late.
        """
        with self._reasons:
            await self._run()

    async def _run(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            # A daemon, as a collector that hangs must not keep a process alive.
            self._thread = Thread(target=self._send_all, name="pdgate-traces", daemon=True)
            self._thread.start()
        try:
            while True:
                await asyncio.sleep(METRICS_SECONDS)
                if not self._thread.is_alive():
                    raise RuntimeError("the thread that sends traces has ended")
                self._latest = self._metrics()
        except asyncio.CancelledError:
            await self._end(self._thread)
            raise

    async def _end(self, thread: Thread) -> None:
        self._latest = self._metrics()
        self._over = True
        self._something.set()
        await asyncio.to_thread(thread.join, 0 if TRACES in self._refused else LAST_SECONDS)
        # Ends the waiting between repetitions.
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._figures.shutdown()

    # In the thread.

    def _send_all(self) -> None:
        while True:
            self._something.wait(WAIT_SECONDS)
            self._something.clear()
            over = self._over
            while self._waiting:
                self._send([self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))])
            latest, self._latest = self._latest, None
            if latest is not None:
                self._said(METRICS, self._figures.export(latest) is MetricExportResult.SUCCESS)
            if over:
                return

    def _send(self, batch: list[EndedCall]) -> None:
        try:
            spans = [span for ended in batch for span in self._made(ended)]
        # A bug of ours over one call must not be the end of all traces, which would not be seen.
        except Exception:
            log.exception("traces of %d calls could not be made", len(batch))
            self.lost += len(batch)
            return
        well = self._spans.export(spans) is SpanExportResult.SUCCESS
        if well:
            self.sent += len(batch)
        else:
            self.lost += len(batch)
        self._said(TRACES, well)

    def _made(self, ended: EndedCall) -> Iterator[ReadableSpan]:
        for span in spans_of(ended):
            yield _readable(span, ended, self._resource)

    def _said(self, what: str, well: bool) -> None:
        """There are collectors for traces alone, so each is stated by itself."""
        if well and what in self._refused:
            self._refused.remove(what)
            log.info("the collector at %s takes %s again", self._endpoint, what)
        elif not well and what not in self._refused:
            self._refused.add(what)
            log.warning(
                "the collector at %s takes no %s, and calls go on without: %s",
                self._endpoint,
                what,
                self._reasons.latest,
            )


class _Reasons(logging.Handler):
    """What the library says of failures, batch by batch; we say it once."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = "no reason given"

    def __enter__(self) -> Self:
        _LIBRARY.propagate = False
        _LIBRARY.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        _LIBRARY.removeHandler(self)
        _LIBRARY.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        self.latest = record.getMessage()


def resource_of(service_name: str) -> Resource:
    """Attributes of the environment (OTEL_RESOURCE_ATTRIBUTES) come along."""
    return Resource.create({"service.name": service_name, "service.version": __version__})


def _readable(span: Span, ended: EndedCall, resource: Resource) -> ReadableSpan:
    trace = ended.trace
    is_root = span.id == trace.span
    return ReadableSpan(
        span.name,
        _context(trace.id, span.id, trace.state),
        _context(trace.id, span.parent, trace.state, is_remote=is_root) if span.parent else None,
        resource,
        dict(span.attributes) | ({ERROR_TYPE: span.error} if span.error else {}),
        kind=SpanKind.SERVER if is_root else SpanKind.CLIENT if span.asks else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=round(span.started * 1e9) + ended.clock_ns,
        end_time=round(span.ended * 1e9) + ended.clock_ns,
        instrumentation_scope=SCOPE,
    )


def _context(trace: str, span: str, state: str, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(
        int(trace, 16),
        int(span, 16),
        is_remote,
        TraceFlags(TraceFlags.SAMPLED),
        TraceState.from_header([state]) if state else None,
    )
