"""Traces and OpenTelemetry's metrics, for who has a collector."""

from collections.abc import Callable, Coroutine
from typing import Any

from pdgate.gateway.config import Settings
from pdgate.gateway.metrics.books import Books


class Tracing:
    """
    Attributes:
        books: What became of traces.
        run: Sends them, until it is cancelled.
    """

    def __init__(self, books: Books, settings: Settings) -> None:
        # Only who has a collector needs the packages, and pays for loading them.
        from pdgate.gateway.tracing.books import TraceBooks
        from pdgate.gateway.tracing.collector import headers_in
        from pdgate.gateway.tracing.export import Exporting
        from pdgate.gateway.tracing.genai import metrics_of
        from pdgate.gateway.tracing.sampling import Tracer

        given = settings.tracing
        name = given.service_name
        headers = headers_in(given.headers_file)
        exporting = Exporting(given.endpoint, headers, name, metrics_of(books, name))
        books.tracer = Tracer(given.sample_ratio, exporting.put)
        self.books = TraceBooks(exporting)
        self.run: Callable[[], Coroutine[Any, Any, None]] = exporting.run


def tracing_of(books: Books, settings: Settings) -> Tracing | None:
    return Tracing(books, settings) if settings.tracing.endpoint else None
