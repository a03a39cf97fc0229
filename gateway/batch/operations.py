"""Operations on files and batches, each for one owner: all others' are not found."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from pdgate.gateway.batch.archive import Archive, Write
from pdgate.gateway.batch.objects import (
    STOPPABLE,
    UNFINISHED,
    BatchObject,
    BatchRequest,
    BatchStatus,
    StoredFile,
    new_id,
)
from pdgate.gateway.batch.state import BatchLimits, BatchState, StateAway
from pdgate.gateway.batch.upload import UploadForm, receive
from pdgate.gateway.front.asgi_cycle import LET_IN, STREAMED
from pdgate.gateway.front.limits import BODY_SECONDS
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.service import Service
from pdgate.protocols.errors import BadRequest, ClientTooSlow, NotFound, RateLimited, TooLarge

log = logging.getLogger(__name__)

PURPOSE: Final = "batch"
PIECE_BYTES: Final = 256 << 10
MOST_FORM_BYTES: Final = 256 << 10
"""Of a form, beside its file."""
LEAST_KEEP_SECONDS: Final = 3600
RETRY_SECONDS: Final = 60
MOST_UPLOADS: Final = 8
"""Of one owner at once, in this process; what is not whole yet counts against nothing else."""
EXPECTED_SECONDS: Final = 3600
"""For a file to come and to be put where it belongs; what is there of it then is removed."""

_request = msgspec.json.Decoder(BatchRequest)


class BatchOperations:
    """What the routes do, for the owner that asks."""

    def __init__(
        self,
        service: Service,
        state: BatchState,
        archive: Archive,
        limits: BatchLimits,
        news: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`news`: a batch came, or is to be cancelled."""
        self.state = state
        self.archive = archive
        self.limits = limits
        self._uploads: Counter[str] = Counter()
        self._service = service
        self._news = news
        self._clock = clock

    def owner(self, request: Request) -> str:
        """Owner that asks. Raise Unauthorized, BadRequest; RateLimited, Draining where something is begun."""
        headers = RequestHeaders(request.scope["headers"])
        authenticator = self._service.authenticator
        if request.method == "POST":
            state = self._service.screen(headers)
        else:
            state = None if authenticator is None else authenticator.key_state(headers)
        request.scope.setdefault("state", {})[LET_IN] = True
        return "" if state is None else state.name

    def rule(self, request: Request) -> str:
        """Rule by which the token of who asks is held to its limits; its batch is, too. Raise Unauthorized, BadRequest."""
        authenticator = self._service.authenticator
        if authenticator is None:
            return ""
        return authenticator.key_state(RequestHeaders(request.scope["headers"])).key.rule

    async def upload(self, request: Request, owner: str) -> StoredFile:
        """Raise GatewayError."""
        limits, headers = self.limits, RequestHeaders(request.scope["headers"]).named
        said = headers.get(b"content-length", b"0")
        if said.isdigit() and int(said[:18]) > limits.most_file_bytes + MOST_FORM_BYTES:
            raise TooLarge(f"a file may have {limits.most_file_bytes} bytes", param="file")
        if not await self.state.has_room(owner, limits.most_stored):
            raise self._full()
        if self._uploads[owner] >= MOST_UPLOADS:
            raise RateLimited(
                f"{MOST_UPLOADS} files of this API key are on their way", retry_after_seconds=1
            )
        self._uploads[owner] += 1
        try:
            return await self._upload(request, headers.get(b"content-type", b""), owner)
        finally:
            self._uploads[owner] -= 1
            self._uploads += Counter()

    async def _upload(self, request: Request, content_type: bytes, owner: str) -> StoredFile:
        limits, file_id = self.limits, new_id("file-")
        now = int(self._clock())
        await self.state.expect(file_id, now + EXPECTED_SECONDS)
        request.scope.setdefault("state", {})[STREAMED] = True
        try:
            file = await self._written(request, content_type, file_id, owner, now)
            if not await self.state.add_file(file, limits.most_stored):
                raise self._full()
        except asyncio.CancelledError:
            # It may yet be put there; then it is loose, once it is no more expected.
            raise
        except Exception as error:
            await self._remove(file_id)
            if isinstance(error, OSError):
                log.warning("a file cannot be written: %r", error)
                raise StateAway("the file cannot be kept now") from None
            raise
        return file

    async def _written(
        self, request: Request, content_type: bytes, file_id: str, owner: str, now: int
    ) -> StoredFile:
        """Raise GatewayError, OSError."""
        async with self.archive.written(file_id) as write:
            form = await _form(request, content_type, write, self.limits.most_file_bytes)
            if form.file_bytes is None:
                raise BadRequest("the form has no file", param="file")
            if form.fields.get("purpose") != PURPOSE:
                raise BadRequest(f"the purpose of a file is {PURPOSE} here", param="purpose")
            keep_seconds = self._keep_seconds(form.fields)
        return StoredFile(
            file_id,
            owner,
            form.filename or file_id,
            PURPOSE,
            form.file_bytes,
            now,
            now + keep_seconds,
        )

    def _full(self) -> BadRequest:
        most = self.limits.most_stored
        return BadRequest(
            f"the files of this API key are, or would be, more than {most.files}, or more than "
            f"{most.bytes} bytes: delete some",
            param="file",
        )

    async def _remove(self, file_id: str) -> None:
        """A content that is loose, now or, where that fails, later (runner)."""
        try:
            await self.archive.remove(file_id)
            await self.state.removed(file_id)
        except (OSError, StateAway) as error:
            log.warning("the content of %s is removed later: %r", file_id, error)

    def _keep_seconds(self, fields: dict[str, str]) -> int:
        anchor = fields.get("expires_after[anchor]", "created_at")
        said = fields.get("expires_after[seconds]")
        if said is None:
            return self.limits.keep_seconds
        if anchor != "created_at" or not said.isdecimal() or int(said[:9]) < LEAST_KEEP_SECONDS:
            raise BadRequest(
                f"a file expires {LEAST_KEEP_SECONDS} seconds after created_at, or later",
                param="expires_after",
            )
        return min(int(said[:9]), self.limits.keep_seconds)

    async def file(self, file_id: str, owner: str) -> StoredFile:
        """Raise NotFound."""
        found = await self.state.file(file_id)
        if found is None or found.owner != owner:
            raise NotFound(f"no such file: {file_id!r}", param="file_id")
        return found

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Raise NotFound, StateAway."""
        async with AsyncExitStack() as stack:
            try:
                opened = await stack.enter_async_context(self.archive.opened(file.id))
            except FileNotFoundError:
                raise NotFound(f"no such file: {file.id!r}", param="file_id") from None
            except OSError as error:
                log.warning("the file %s cannot be read: %r", file.id, error)
                raise StateAway("the file cannot be read now") from None
            held = stack.pop_all()

        async def pieces() -> AsyncIterator[bytes]:
            async with held:
                while piece := await self.archive.run(opened.read, PIECE_BYTES):
                    yield piece

        return pieces()

    async def remove(self, file_id: str, owner: str) -> None:
        """Raise NotFound, BadRequest."""
        file = await self.file(file_id, owner)
        if (batch_id := await self.state.reads(file.id)) is not None:
            raise BadRequest(f"{file.id} is the input of {batch_id}, which is not finished")
        await self.state.remove_file(file.id)
        await self._remove(file.id)

    async def create(self, body: bytes, owner: str, rule: str) -> BatchObject:
        """Raise BadRequest, NotFound, RateLimited."""
        try:
            asked = _request.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise BadRequest(f"the body is no request for a batch: {error}") from None
        seconds = asked.checked()
        file = await self.file(asked.input_file_id, owner)
        if file.purpose != PURPOSE:
            raise BadRequest(f"{file.id} is no input of batches", param="input_file_id")
        if not await self.state.has_room(owner, self.limits.most_stored):
            # What it writes is never refused.
            raise self._full()
        now = int(self._clock())
        batch = BatchObject(
            id=new_id("batch_"),
            owner=owner,
            endpoint=asked.endpoint,
            input_file_id=file.id,
            completion_window=asked.completion_window,
            created_at=now,
            expires_at=now + seconds,
            metadata=asked.metadata,
            rule=rule,
        )
        if not await self.state.add_batch(batch, self.limits.most_unfinished):
            raise RateLimited(
                f"this API key has {self.limits.most_unfinished} batches that are not finished",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._news()
        return batch

    async def batch(self, batch_id: str, owner: str) -> BatchObject:
        """Raise NotFound."""
        found = await self.state.batch(batch_id)
        if found is None or found.owner != owner:
            raise NotFound(f"no such batch: {batch_id!r}", param="batch_id")
        return found

    async def cancel(self, batch_id: str, owner: str) -> BatchObject:
        """Raise NotFound, BadRequest."""
        await self.batch(batch_id, owner)
        changed = await self.state.change(
            batch_id,
            lambda batch: (
                batch.becomes(BatchStatus.CANCELLING, self._clock())
                if batch.status in STOPPABLE
                else batch
            ),
        )
        if changed is None or changed.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            status = "gone" if changed is None else changed.status
            raise BadRequest(f"the batch cannot be cancelled any more: it is {status}")
        self._news()
        return changed

    async def shown(self, batch: BatchObject) -> dict[str, Any]:
        if batch.status in UNFINISHED:
            return batch.as_json(await self.state.counts(batch.id))
        return batch.as_json((batch.completed, batch.failed))


async def _form(request: Request, content_type: bytes, write: Write, most_bytes: int) -> UploadForm:
    """Raise BadRequest, TooLarge, UnsupportedMediaType, ClientTooSlow, OSError."""
    clock = asyncio.timeout(BODY_SECONDS)
    try:
        async with clock, aclosing(request.stream()) as pieces:
            return await receive(content_type, pieces, write, most_bytes)
    except TimeoutError:
        if not clock.expired():
            # The disk's.
            raise
        raise ClientTooSlow("the file did not come in time") from None
    except ClientDisconnect:
        raise ClientTooSlow("the rest of the file did not come") from None
