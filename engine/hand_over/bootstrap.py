"""Mooncake's bootstrap: which engine lives behind an address, and where its KV side is.

    POST /register   a worker says where it is (workers.py)
    GET /query       -> {"0": {"engine_id": "...", "worker_addr": {"0": {"0": "tcp://host:port"}}}}

Keys are data-parallel, tensor-parallel and pipeline-parallel rank. The engine that runs the
server is registered from the start. Whoever asks remembers nothing between queries: a
restarted engine has another id and perhaps another port.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_utils.py.
"""

import http.client
import json
import socket
import time
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from pdgate.engine.hand_over.workers import Contradiction, Worker, Workers
from pdgate.transfer.kit.listener import Listener
from pdgate.transfer.messenger.errors import HandOverError, Why

MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 64 << 10
MAX_ANSWER_BYTES = 1 << 20
QUERY_SECONDS = 5.0


class _Refusal(Exception):
    """What to answer instead, with FastAPI's kind of body."""

    def __init__(self, status: HTTPStatus, why: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.body = json.dumps({"detail": why or status.phrase}).encode()


class Bootstrap:
    """The server, on threads of its own."""

    def __init__(self, host: str, port: int, engine_id: str, worker: tuple[str, int]) -> None:
        """Raises OSError if the address is taken."""
        self._workers = Workers()
        address = f"tcp://{bracketed(worker[0])}:{worker[1]}"
        self._workers.register(Worker(engine_id, 0, 0, 0, address))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family)
        self.port: int = sock.getsockname()[1]
        self._listener = Listener("pdgate-bootstrap", sock, self._serve)

    def close(self) -> None:
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        """One request per connection. Raises OSError."""
        sock.settimeout(QUERY_SECONDS)
        try:
            head, rest = _head(sock)
            answer = _response(HTTPStatus.OK, self._answer(sock, head, rest))
        except _Refusal as refusal:
            answer = _response(refusal.status, refusal.body)
        except EOFError:
            return
        sock.sendall(answer)

    def _answer(self, sock: socket.socket, head: bytes, rest: bytes) -> bytes:
        """Raises _Refusal, EOFError, OSError."""
        first, *fields = head.split(b"\r\n")
        match first.split(b" "):
            case [b"GET", target, _] if target.split(b"?")[0] == b"/query":
                return json.dumps(self._workers.table()).encode()
            case [b"POST", b"/register", _]:
                return self._register(_body(sock, fields, rest))
            case [_, _, _]:
                raise _Refusal(HTTPStatus.NOT_FOUND)
            case _:
                raise _Refusal(HTTPStatus.BAD_REQUEST)

    def _register(self, body: bytes) -> bytes:
        try:
            self._workers.register(msgspec.json.decode(body, type=Worker))
        except Contradiction as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise _Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
        return b'{"status": "ok"}'


def _head(sock: socket.socket) -> tuple[bytes, bytes]:
    """A request up to its empty line, and what came behind it. Raises _Refusal, EOFError."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > MAX_HEAD_BYTES:
            raise _Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        data += _some(sock)
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _body(sock: socket.socket, fields: list[bytes], data: bytes) -> bytes:
    """Raises _Refusal, EOFError."""
    named = dict(field.lower().split(b":", 1) for field in fields if b":" in field)
    try:
        length = int(named[b"content-length"])
    except (KeyError, ValueError):
        raise _Refusal(HTTPStatus.LENGTH_REQUIRED) from None
    if not 0 <= length <= MAX_BODY_BYTES:
        raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    while len(data) < length:
        data += _some(sock)
    return data[:length]


def _some(sock: socket.socket) -> bytes:
    """Raises EOFError when the client hung up."""
    piece = sock.recv(MAX_HEAD_BYTES)
    if not piece:
        raise EOFError
    return piece


def _response(status: HTTPStatus, body: bytes) -> bytes:
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
