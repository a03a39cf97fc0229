"""Routes of the Batch API, as the openai client asks them.

POST   /v1/files                      a form with file and purpose; expires_after[seconds] may be given
GET    /v1/files                      after, limit, order, purpose
GET    /v1/files/{id}                 also its content: /v1/files/{id}/content
DELETE /v1/files/{id}
POST   /v1/batches                    input_file_id, endpoint, completion_window, metadata
GET    /v1/batches                    after, limit
GET    /v1/batches/{id}
POST   /v1/batches/{id}/cancel

An API key reaches its own files and batches: all others are not found. Source: OpenAI API reference,
"Files" and "Batch".
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from pdgate.gateway import openapi
from pdgate.gateway.batch.objects import BatchObject, StoredFile
from pdgate.gateway.batch.operations import BatchOperations
from pdgate.gateway.front.limits import BODY_SECONDS
from pdgate.protocols.errors import BadRequest, ClientTooSlow, TooLarge

T = TypeVar("T", StoredFile, BatchObject)

FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"
MOST_REQUEST_BYTES: Final = 64 << 10
BATCHES_PAGE: Final = 20
FILES_PAGE: Final = 10_000
MOST_SHOWN: Final = 1000
"""Files of a page, whatever is asked for: ten thousand take 70 ms of everybody's time. Clients ask for the rest."""

Id = Annotated[str, Path(max_length=128)]


def routes(operations: BatchOperations) -> APIRouter:
    router = APIRouter(
        responses={status: openapi.refusal(status) for status in (400, 401, 404, 429, 503)}
    )
    Owner = Annotated[str, Depends(operations.owner)]
    Rule = Annotated[str, Depends(operations.rule)]

    @router.post(FILES, summary="A file for batches")
    async def upload(request: Request, owner: Owner) -> dict[str, Any]:
        return (await operations.upload(request, owner)).as_json()

    @router.get(FILES, summary="Files")
    async def files(
        owner: Owner,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=FILES_PAGE)] = FILES_PAGE,
        order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
        purpose: str | None = None,
    ) -> dict[str, Any]:
        limit = min(limit, MOST_SHOWN)
        found = await operations.state.files(
            owner, after, limit + 1, newest_first=order == "desc", purpose=purpose
        )
        page, more = _page(found, after, limit)
        return _list([file.as_json() for file in page], more)

    @router.get(FILES + "/{file_id}", summary="A file")
    async def file(file_id: Id, owner: Owner) -> dict[str, Any]:
        return (await operations.file(file_id, owner)).as_json()

    @router.get(FILES + "/{file_id}/content", summary="What is in a file")
    async def content(file_id: Id, owner: Owner) -> StreamingResponse:
        found = await operations.file(file_id, owner)
        return StreamingResponse(
            await operations.content(found),
            media_type="application/octet-stream",
            headers={"content-length": str(found.bytes)},
        )

    @router.delete(FILES + "/{file_id}", summary="Delete a file")
    async def remove(file_id: Id, owner: Owner) -> dict[str, Any]:
        await operations.remove(file_id, owner)
        return {"id": file_id, "object": "file", "deleted": True}

    @router.post(BATCHES, summary="Begin a batch")
    async def create(request: Request, owner: Owner, rule: Rule) -> dict[str, Any]:
        return await operations.shown(await operations.create(await _short(request), owner, rule))

    @router.get(BATCHES, summary="Batches")
    async def batches(
        owner: Owner,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = BATCHES_PAGE,
    ) -> dict[str, Any]:
        page, more = _page(await operations.state.batches(owner, after, limit + 1), after, limit)
        return _list([await operations.shown(batch) for batch in page], more)

    @router.get(BATCHES + "/{batch_id}", summary="A batch")
    async def batch(batch_id: Id, owner: Owner) -> dict[str, Any]:
        return await operations.shown(await operations.batch(batch_id, owner))

    @router.post(BATCHES + "/{batch_id}/cancel", summary="Cancel a batch")
    async def cancel(batch_id: Id, owner: Owner) -> dict[str, Any]:
        return await operations.shown(await operations.cancel(batch_id, owner))

    return router


def _page(found: Sequence[T] | None, after: str | None, limit: int) -> tuple[Sequence[T], bool]:
    """What is shown, and whether there is more. Raise BadRequest."""
    if found is None:
        raise BadRequest(f"there is nothing with the id {after!r}", param="after")
    return found[:limit], len(found) > limit


def _list(data: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }


async def _short(request: Request) -> bytes:
    """The body of a request that is not long. Raise TooLarge, ClientTooSlow."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS), aclosing(request.stream()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > MOST_REQUEST_BYTES:
                    raise TooLarge(f"the request body is larger than {MOST_REQUEST_BYTES} bytes")
    except TimeoutError:
        raise ClientTooSlow("the body did not come in time") from None
    except ClientDisconnect:
        raise ClientTooSlow("the rest of the body did not come") from None
    return bytes(body)
