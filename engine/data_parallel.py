"""Data-parallel ranks of an engine process behind its port: a core, a queue and a cache each.

    X-data-parallel-rank: 1     the routes of rank 1; out of range: 400
    without it                  the rank with the least to do
    GET /health                 well while all ranks are
    GET /metrics                the lines of all ranks, which the label engine tells apart

Source: vLLM 0.33.0, v1/engine/input_processor.py, process_inputs() (range of the rank);
v1/engine/core_client.py, DPLBAsyncMPClient.get_core_engine_for_request() (least loaded without one).
"""

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pdgate.engine.api.service import EngineService
from pdgate.engine.metrics import CONTENT_TYPE

HEADER: Final = "x-data-parallel-rank"
LABEL: Final = "engine"
MOST_DIGITS: Final = 9
"""Of a rank that is read; one that has more is out of range as well."""


class RankRouter:
    """An ASGI application that gives each request to the application of one rank."""

    def __init__(self, ranks: Sequence[tuple[EngineService, ASGIApp]]) -> None:
        self._ranks = ranks
        self._page = RankMetrics([service for service, _ in ranks])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            # Lifespan: none of ours has one.
            await self._ranks[0][1](scope, receive, send)
        elif scope["path"] == "/metrics":
            await Response(self._page.text(), media_type=CONTENT_TYPE)(scope, receive, send)
        elif scope["path"] == "/health":
            await self._sickest()(scope, receive, send)
        else:
            said = HTTPConnection(scope).headers.get(HEADER, "")
            # As vLLM: what is no number at all names no rank.
            digits = said.lstrip("0")[:MOST_DIGITS] or "0"
            rank = int(digits) if said.isdecimal() and said.isascii() else self._idlest()
            answering = self._out_of_range(rank) or self._ranks[rank][1]
            await answering(scope, receive, send)

    def _out_of_range(self, rank: int) -> Response | None:
        if rank < len(self._ranks):
            return None
        why = f"data_parallel_rank {rank} is out of range [0, {len(self._ranks)})."
        said = {"message": why, "type": "BadRequestError", "param": None, "code": 400}
        return JSONResponse({"error": said}, 400)

    def _idlest(self) -> int:
        def to_do(rank: int) -> int:
            gauges = self._ranks[rank][0].core.gauges
            return gauges.running + gauges.waiting + gauges.loading

        return min(range(len(self._ranks)), key=to_do)

    def _sickest(self) -> ASGIApp:
        """A rank whose core is in trouble; else the first."""
        sick = (app for service, app in self._ranks if service.core.trouble)
        return next(sick, self._ranks[0][1])


class RankMetrics(Collector):
    """One page of the metrics of all ranks."""

    def __init__(self, ranks: Sequence[EngineService]) -> None:
        self._ranks = ranks

    def text(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for rank, service in enumerate(self._ranks):
            for family in service.metrics.collect():
                whole = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                whole.samples += [
                    sample._replace(labels={**sample.labels, LABEL: str(rank)})
                    for sample in family.samples
                ]
        yield from families.values()
