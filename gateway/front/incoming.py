"""Incoming body over another server's connection: how much of memory it takes, and how long.

Our own connections do this themselves (`crowd.py`); here the server has the socket, so that all there is to bound
is what is read of it: the same deadline and pace (`limits.py`), the same sum of bytes held.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from starlette.requests import Request

from pdgate.gateway.front import limits
from pdgate.gateway.front.crowd import Crowd
from pdgate.protocols.errors import ClientTooSlow, GatewayError


class IncomingBody:
    """A member of the crowd from the first byte of a body to the end of its call.

    Attributes:
        yields: Nothing is lost yet: the body is on its way.
    """

    def __init__(self, crowd: Crowd) -> None:
        self.loose_bytes = self.held_bytes = 0
        self.yields = False
        self._crowd = crowd
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._reader: asyncio.Task[Any] | None = None
        self._refusal: GatewayError | None = None

    def __enter__(self) -> Self:
        self._crowd.join(self, self._loop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._crowd.leave(self)
        self._crowd.free(self, self.held_bytes)

    async def read(self, request: Request, check_length: Callable[[int], None]) -> bytes:
        """The body. Raises ClientDisconnect; GatewayError where it is too long, or comes too
        slowly, or there is no room for it.
        """
        self._reader = asyncio.current_task()
        self.yields = True
        body, whole = bytearray(), False
        try:
            async with aclosing(request.stream()) as pieces:
                async for piece in pieces:
                    self._crowd.hold(self, len(piece))
                    self._check()
                    body += piece
                    check_length(len(body))
            whole = True
        except asyncio.CancelledError:
            # Ours, if there is a refusal; else the server's, which goes on.
            if self._refusal is None or self._reader is None or self._reader.uncancel():
                raise
        finally:
            self.yields = False
            if not whole:
                # Now, and not when its client has had the answer: others would be refused for it.
                body.clear()
                self._crowd.free(self, self.held_bytes)
        self._check()
        return bytes(body)

    def look(self, now: float) -> None:
        waited = now - self._began
        due = (waited - limits.BODY_GRACE_SECONDS) * limits.BODY_BYTES_PER_SECOND
        if self.yields and (waited >= limits.BODY_SECONDS or self.held_bytes < due):
            self.yield_memory(ClientTooSlow("the body did not come in time"))

    def yield_memory(self, error: GatewayError) -> None:
        if self._refusal is None:
            self._refusal = error
            # Where it is this body itself that was too much, its task goes on, and sees the refusal.
            if self._reader is not None and self._reader is not asyncio.current_task():
                self._reader.cancel()

    def cut(self) -> None:
        """Never called: nothing of it is loose."""
        raise AssertionError("a body of another server's connection holds nothing loosely")

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal
