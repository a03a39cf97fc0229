"""Bodies over other servers' connections: what a refused one held is free at once."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.front.incoming import IncomingBody
from pdgate.protocols.errors import GatewayError, OutOfMemory, TooLarge
from tests.support.waiting import until


class Upload:
    """A body that comes in the pieces that the test puts here; the last one ends it."""

    def __init__(self, crowd: Crowd) -> None:
        self.pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self.over = asyncio.Event()
        self.refused: GatewayError | None = None
        self.body = b""
        self.task = asyncio.create_task(self._read(crowd))

    async def _read(self, crowd: Crowd) -> None:
        """Its call goes on until `over`, as an answer does that its client reads slowly."""
        request = Request({"type": "http", "headers": []}, self._receive)
        with IncomingBody(crowd) as incoming:
            try:
                self.body = await incoming.read(request, _at_most_100)
            except GatewayError as error:
                self.refused = error
            await self.over.wait()

    async def _receive(self) -> Any:
        piece, more = await self.pieces.get()
        return {"type": "http.request", "body": piece, "more_body": more}

    async def end(self) -> None:
        self.over.set()
        await self.task


def _at_most_100(length: int) -> None:
    if length > 100:
        raise TooLarge("too large")


async def test_a_body_that_gave_way_makes_room_while_its_refusal_is_on_its_way() -> None:
    crowd = Crowd(100)
    large, other, third = Upload(crowd), Upload(crowd), Upload(crowd)
    large.pieces.put_nowait((b"x" * 80, True))
    await until(lambda: crowd.held_bytes == 80, "the large body is on its way")
    other.pieces.put_nowait((b"y" * 50, False))
    await until(lambda: large.refused and other.body, "one is refused, the other is there")
    assert isinstance(large.refused, OutOfMemory)

    third.pieces.put_nowait((b"z" * 40, False))
    await until(lambda: third.body or third.refused, "the third is there")

    assert (third.body, other.body) == (b"z" * 40, b"y" * 50)
    assert crowd.held_bytes == 90
    for upload in (large, other, third):
        await upload.end()
    assert crowd.held_bytes == 0


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_is_too_large_or_left_holds_nothing(leaves: bool) -> None:
    crowd = Crowd(1000)
    upload = Upload(crowd)
    upload.pieces.put_nowait((b"x" * 90, True))
    await until(lambda: crowd.held_bytes == 90, "its beginning is there")
    if leaves:
        upload.task.cancel()
        await asyncio.wait((upload.task,))
        assert upload.task.cancelled()
    else:
        upload.pieces.put_nowait((b"x" * 90, True))
        await until(lambda: upload.refused, "it is refused")
        assert isinstance(upload.refused, TooLarge)
    assert crowd.held_bytes == 0
    if not leaves:
        await upload.end()
    assert crowd.held_bytes == 0
