"""A Sink that remembers."""

import asyncio

from pdgate.protocols.errors import GatewayError


class Collected:
    """
    Attributes:
        chunks: As they came.
        first: Set with the first one.
    """

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.first = asyncio.Event()
        self._ended: asyncio.Future[GatewayError | None] = asyncio.Future()

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        assert not self._ended.done()
        self.chunks.append(chunk)
        self.first.set()

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        if last:
            self.data(last)
        # A second call raises InvalidStateError.
        self._ended.set_result(error)

    async def body(self) -> bytes:
        """All of it, when it is complete. Raises what it ended with."""
        error = await self._ended
        if error is not None:
            raise error
        return b"".join(self.chunks)
