"""GET /admin/live: what the console and `pdgate top` show, once a second (server-sent events).

    data: {"at": 1790000000.1, "instances": [...], "calls": {...}, ...}      gateway/console/snapshots

GET /admin/calls/{id}: the record of one of the last calls, as GET /debug/calls/{id} has it, for who
knows the token, and of whichever worker served it.

A stream ends with the process: by its drain, as calls do. At most MAX_WATCHERS watch at once.
"""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Depends, Response
from fastapi.responses import StreamingResponse

from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.console.snapshots import PERIOD_SECONDS, Snapshots
from pdgate.protocols.errors import NotFound, RateLimited

PATH = "/admin/live"
CALLS = "/admin/calls"
MAX_WATCHERS = 32
LAST_SECONDS = 0.2
"""Between two pictures at the end: the process does not wait for who watches."""

JSON = "application/json"


def routes(snapshots: Snapshots, token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))])
    watching = 0

    async def pictures() -> AsyncIterator[bytes]:
        nonlocal watching
        watching += 1
        try:
            while not snapshots.drain.over:
                yield b"data: %b\n\n" % await snapshots.latest()
                ends = snapshots.drain.began is not None
                await asyncio.sleep(LAST_SECONDS if ends else PERIOD_SECONDS)
        finally:
            watching -= 1

    @router.get(PATH, response_class=StreamingResponse)
    async def live() -> Response:
        """The gateway's picture, once a second."""
        if watching >= MAX_WATCHERS:
            raise RateLimited(f"{MAX_WATCHERS} watch already", retry_after_seconds=5)
        return StreamingResponse(
            pictures(),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    @router.get(CALLS + "/{call_id:path}")
    async def call(call_id: str) -> Response:
        """What happened to one of the last calls."""
        found = await snapshots.call(call_id)
        if found is None:
            raise NotFound(f"no recent call has the id {call_id!r}")
        return Response(found, media_type=JSON, headers={"cache-control": "no-store"})

    return router
