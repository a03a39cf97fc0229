"""Metaserver: engines POST here what calls wait for: where the blocks of decode are, for which prefill is asked only then.

    POST the path of a protocol's `Callback`, what that reads   ->  200 {"status": "ok"}
                                                                    404 for no call of ours, 403 for a stranger

One request a connection, within READ_SECONDS, MOST_BYTES long at most; MOST_AT_ONCE of them at a time, and one in a turn of the loop. A port of its
own for each worker, as a call is one worker's.
"""

import asyncio
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from pdgate.cluster.accepting import stop_accepting
from pdgate.cluster.networks import Allowed
from pdgate.gateway.callbacks.words import MessageResult, Read, Words
from pdgate.protocols.errors import BadRequest

MOST_HEAD_BYTES: Final = 8 << 10
MOST_BYTES: Final = 1 << 20
"""Blocks of a prompt of 128k tokens are about 100 KB."""
MOST_AT_ONCE: Final = 256
MOST_BYTES_AT_ONCE: Final = 16 << 20
"""Of all bodies that are on their way."""
READ_SECONDS: Final = 5.0

_STATUS: Final = {
    MessageResult.TAKEN: HTTPStatus.OK,
    MessageResult.STRANGER: HTTPStatus.FORBIDDEN,
    MessageResult.UNKNOWN: HTTPStatus.NOT_FOUND,
    MessageResult.MALFORMED: HTTPStatus.BAD_REQUEST,
    MessageResult.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    MessageResult.TOO_MANY: HTTPStatus.SERVICE_UNAVAILABLE,
}


class Metaserver:
    """
    Attributes:
        url: That engines get, and put their path behind.
    """

    def __init__(
        self,
        host: str,
        port: int,
        words: Words,
        allowed: Allowed,
        readers: Mapping[str, Read],
    ) -> None:
        """Binds at once. `readers`: of a path. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, port), family=family)
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._sock.getsockname()[1]}"
        self._words = words
        self._allowed = allowed
        self._readers = {f"POST {path}".encode(): read for path, read in readers.items()}
        self._open = self._coming_bytes = 0
        self._turns = asyncio.Lock()

    async def run(self) -> None:
        """Run until cancelled; may be run again then."""
        # The server closes its socket when it ends. To wait for its connections would take READ_SECONDS.
        sock = self._sock.dup()
        server = await asyncio.start_server(self._serve, sock=sock, limit=MOST_HEAD_BYTES)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await stop_accepting(server)

    def close(self) -> None:
        self._sock.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(READ_SECONDS):
                # One that has left by now has no name.
                host = (writer.get_extra_info("peername") or ("",))[0]
                result = await self._result(reader, host)
                self._words.count(result)
                writer.write(_response(_STATUS[result]))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            self._words.count(MessageResult.MALFORMED)
        finally:
            self._open -= 1
            writer.close()

    async def _result(self, reader: asyncio.StreamReader, host: str) -> MessageResult:
        """Raises OSError, IncompleteReadError."""
        if host not in self._allowed:
            return MessageResult.STRANGER
        if self._open > MOST_AT_ONCE:
            return MessageResult.TOO_MANY
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return MessageResult.TOO_LARGE
        first, *lines = head.split(b"\r\n")
        lengths = [
            value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
            if name.lower() == b"content-length"
        ]
        read = self._readers.get(first.rpartition(b" ")[0])
        if read is None or len(lengths) != 1:
            return MessageResult.MALFORMED
        if not lengths[0].isdigit() or len(lengths[0]) > 12:
            return MessageResult.MALFORMED
        length = int(lengths[0])
        if length > MOST_BYTES:
            return MessageResult.TOO_LARGE
        if self._coming_bytes + length > MOST_BYTES_AT_ONCE:
            return MessageResult.TOO_MANY
        self._coming_bytes += length
        try:
            return await self._said(read, await reader.readexactly(length))
        finally:
            self._coming_bytes -= length

    async def _said(self, read: Read, body: bytes) -> MessageResult:
        # Parsed all at once, those of a flood would hold all calls up.
        async with self._turns:
            await asyncio.sleep(0)
            try:
                return self._words.say(*read(body))
            except (BadRequest, ValueError):
                return MessageResult.MALFORMED


def _response(status: HTTPStatus) -> bytes:
    body = b'{"status": "ok"}' if status is HTTPStatus.OK else b'{"detail": "refused"}'
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode() + body
