"""GET /kv_event_sources: where this engine publishes, as vLLM tells it, by data-parallel rank.

    {"0": {"endpoint": "tcp://10.0.0.1:5557", "replay_endpoint": "tcp://10.0.0.1:5558",
           "topic": "", "buffer_steps": 10000, ...}}

Source: vLLM 0.32.0, vllm/entrypoints/serve/instrumentator/basic.py; KVEventsConfig.
"""

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from pdgate.engine.kv_events.publisher import HIGH_WATER_MARK, Publisher


def routes(publisher: Publisher) -> APIRouter:
    router = APIRouter()

    @router.get("/kv_event_sources")
    async def sources() -> Response:
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint or None,
            "buffer_steps": publisher.keeps,
            "hwm": HIGH_WATER_MARK,
            "topic": publisher.topic,
        }
        return JSONResponse({"0": source})

    return router
