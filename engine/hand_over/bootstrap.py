"""Mooncake's bootstrap: which engine lives behind an address, and where its KV side is.

    GET /query -> {"0": {"engine_id": "...", "worker_addr": {"0": {"0": "tcp://host:port"}}}}

Keys are data-parallel, tensor-parallel and pipeline-parallel rank. Nothing is remembered
between queries: a restarted engine has another id and perhaps another port.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_utils.py.
"""

import http.client
import json
import socket
import time
from http import HTTPStatus
from urllib.parse import urlsplit

from pdgate.transfer.listener import Listener
from pdgate.transfer.messenger.errors import HandOverError, Why

MAX_HEAD_BYTES = 16 << 10
MAX_ANSWER_BYTES = 1 << 20
QUERY_SECONDS = 5.0


class Bootstrap:
    """The server, on threads of its own."""

    def __init__(self, host: str, port: int, engine_id: str, worker: tuple[str, int]) -> None:
        """Raises OSError if the address is taken."""
        address = f"tcp://{bracketed(worker[0])}:{worker[1]}"
        self._body = json.dumps(
            {"0": {"engine_id": engine_id, "worker_addr": {"0": {"0": address}}}}
        ).encode()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family)
        self.port: int = sock.getsockname()[1]
        self._listener = Listener("pdgate-bootstrap", sock, self._serve)

    def close(self) -> None:
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        """One request per connection. Raises OSError."""
        sock.settimeout(QUERY_SECONDS)
        head = b""
        while b"\r\n\r\n" not in head:
            piece = sock.recv(MAX_HEAD_BYTES)
            if not piece:
                return
            head += piece
            if len(head) > MAX_HEAD_BYTES:
                sock.sendall(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
                return
        match head.split(b"\r\n", 1)[0].split(b" "):
            case [b"GET", target, _] if target.split(b"?")[0] == b"/query":
                sock.sendall(_response(HTTPStatus.OK, self._body))
            case [_, _, _]:
                sock.sendall(_response(HTTPStatus.NOT_FOUND))
            case _:
                sock.sendall(_response(HTTPStatus.BAD_REQUEST))


def _response(status: HTTPStatus, body: bytes = b"") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def query(host: str, port: int, rank: int, engine_id: str, until: float) -> tuple[str, int]:
    """The KV side of the engine with this rank and id (any id if empty). Raises HandOverError."""
    data = _get(host, port, max(0.001, min(QUERY_SECONDS, until - time.monotonic())))
    try:
        entry = json.loads(data)[str(rank)]
        found, worker = entry["engine_id"], urlsplit(entry["worker_addr"]["0"]["0"])
        address = worker.hostname, worker.port
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HandOverError(
            Why.BROKEN, f"the bootstrap server at {host}:{port} answers something else: {error!r}"
        ) from None
    if engine_id not in ("", found):
        raise HandOverError(Why.WRONG_ENGINE, f"engine {engine_id} is not at {host}:{port}")
    if worker.scheme != "tcp" or address[0] is None or address[1] is None:
        raise HandOverError(Why.BROKEN, "the bootstrap server names no address")
    return address[0], address[1]


def _get(host: str, port: int, seconds: float) -> bytes:
    connection = http.client.HTTPConnection(bracketed(host), port, timeout=seconds)
    try:
        connection.request("GET", "/query")
        response = connection.getresponse()
        data = response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise HandOverError(Why.BROKEN, f"bootstrap server {host}:{port}: {error!r}") from None
    finally:
        connection.close()
    if response.status != HTTPStatus.OK:
        raise HandOverError(Why.BROKEN, f"bootstrap server {host}:{port}: {response.status}")
    return data


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
