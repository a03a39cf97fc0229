"""An HTTP request that is answered in time or fails, however the answer is spread.

http.client's own timeout is for each piece: a server that sends a byte now and then would be
waited for without end.
"""

import http.client
import io
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from pdgate.transfer.runtime.channel import Watch, connected

MAX_ANSWER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """`data`: of the body, up to MAX_ANSWER_BYTES."""

    status: int
    headers: http.client.HTTPMessage
    data: bytes


def asked(
    address: tuple[str, int],
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None,
    until: float,
    watch: Watch,
) -> HttpAnswer:
    """`until` is of time.monotonic(), for all of it; `watch` as in `dial`. Raises OSError, HTTPException."""
    connection = _TimelyConnection(address, until, watch)
    try:
        connection.request(method, path, body, dict(headers))
        said = _TimelyAnswer(connection.sock, until)
        # All that it does with a socket is this.
        response = http.client.HTTPResponse(cast("socket.socket", said), method=method)
        response.begin()
        return HttpAnswer(response.status, response.headers, response.read(MAX_ANSWER_BYTES))
    finally:
        connection.close()


class _TimelyConnection(http.client.HTTPConnection):
    def __init__(self, address: tuple[str, int], until: float, watch: Watch) -> None:
        host, port = address
        super().__init__(f"[{host}]" if ":" in host else host, port)
        self._until = until
        self._watch = watch

    def connect(self) -> None:
        self.sock = connected((self.host, self.port), self._until, self._watch)


class _TimelyAnswer(io.RawIOBase):
    """What comes over a socket until a time."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock = sock
        self._until = until

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)
