"""The publisher of an engine process, where its settings ask for one, and the route that names it.

GET /kv_event_sources, as vLLM answers it, by data-parallel rank:

    {"0": {"endpoint": "tcp://10.0.0.1:5557", "replay_endpoint": "tcp://10.0.0.1:5558",
           "topic": "", "buffer_steps": 10000, ...,
           "pdgate_curve": {"key": "...", "proof": "..."}}}      where the fleet has a secret

Source: vLLM 0.32.0, vllm/entrypoints/serve/instrumentator/basic.py; KVEventsConfig.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from pdgate.cluster.kv_events import curve
from pdgate.engine.api.routes import EngineRoutes
from pdgate.engine.kv_events.journal import EventJournal
from pdgate.engine.settings import EngineSettings
from pdgate.transfer.runtime.fleet import Identity, check_place

if TYPE_CHECKING:
    from pdgate.engine.kv_events.publisher import Publisher


@contextmanager
def publishing(settings: EngineSettings, identity: Identity) -> "Iterator[Publisher | None]":
    """Publish inside the block. Raise OSError, ValueError where listening takes a secret."""
    if settings.kv_events_port is None:
        yield None
        return
    # An engine alone needs no ZeroMQ.
    from pdgate.engine.kv_events.publisher import Publisher

    check_place("the KV events' publisher", settings.kv_host, identity)
    host = f"[{settings.kv_host}]" if ":" in settings.kv_host else settings.kv_host or "*"
    publisher = Publisher(
        f"tcp://{host}:{settings.kv_events_port}",
        f"tcp://{host}:{settings.kv_events_replay_port}",
        identity=identity,
    )
    try:
        yield publisher
    finally:
        publisher.close()


def journal_of(publisher: "Publisher | None", block_tokens: int) -> EventJournal | None:
    return None if publisher is None else EventJournal(block_tokens, publisher.publish)


def sources_route(publishers: "Sequence[Publisher]") -> EngineRoutes:
    """`publishers`: of the data-parallel ranks, in their order."""
    # As above: with ZeroMQ.
    from pdgate.engine.kv_events.publisher import HIGH_WATER_MARK

    router = EngineRoutes()

    def source_of(publisher: "Publisher") -> dict[str, Any]:
        source: dict[str, Any] = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint or None,
            "buffer_steps": publisher.keeps,
            "hwm": HIGH_WATER_MARK,
            "topic": publisher.topic,
        }
        if (introduction := publisher.introduction) is not None:
            source[curve.FIELD] = introduction
        return source

    @router.get("/kv_event_sources")
    async def sources() -> Response:
        return JSONResponse({str(rank): source_of(one) for rank, one in enumerate(publishers)})

    return router
