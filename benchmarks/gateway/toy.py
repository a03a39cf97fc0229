"""The proxy that one would write first: FastAPI and httpx, prefill and then decode.

    python toy.py PORT PREFILL_URL DECODE_URL

It has no retries, no health checks and no limits, and says 500 whatever happens. It stands for
what the hot path of pdgate avoids, and imports nothing of it.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

PREFILL_ONLY = {"do_remote_decode": True, "do_remote_prefill": False}
WITHOUT_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None)


def create(prefill_url: str, decode_url: str) -> FastAPI:
    async def split(request: Request) -> Response:
        body = await request.json()
        prefill, decode = request.app.state.prefill, request.app.state.decode
        first = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": PREFILL_ONLY}
        answer = await prefill.post(request.url.path, json=first)
        answer.raise_for_status()
        body["kv_transfer_params"] = answer.json()["kv_transfer_params"]
        if body.get("stream"):
            events = _relay(decode, request.url.path, body)
            return StreamingResponse(events, media_type="text/event-stream")
        whole = await decode.post(request.url.path, json=body)
        return JSONResponse(whole.json(), status_code=whole.status_code)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            httpx.AsyncClient(base_url=prefill_url, timeout=None, limits=WITHOUT_LIMITS) as prefill,
            httpx.AsyncClient(base_url=decode_url, timeout=None, limits=WITHOUT_LIMITS) as decode,
        ):
            app.state.prefill, app.state.decode = prefill, decode
            yield

    app = FastAPI(lifespan=lifespan)
    app.post("/v1/completions")(split)
    app.post("/v1/chat/completions")(split)
    return app


async def _relay(decode: httpx.AsyncClient, path: str, body: Any) -> AsyncIterator[bytes]:
    async with decode.stream("POST", path, json=body) as answer:
        answer.raise_for_status()
        async for piece in answer.aiter_bytes():
            yield piece


if __name__ == "__main__":
    port, *urls = sys.argv[1:]
    uvicorn.run(
        create(*urls), host="127.0.0.1", port=int(port), log_level="warning", timeout_keep_alive=75
    )
