"""Mooncake's bootstrap server: which engine lives behind an address, and where its KV side is.

    POST /register   a worker says where it is (workers.py)
    GET /query       -> {"0": {"engine_id": "...", "worker_addr": {"0": {"0": "tcp://host:port"}}}}

Where the fleet has a secret (transfer/runtime/fleet.py), a worker proves with its registration, and the
server with its answer, that it knows it:

    x-pdgate-kv: <key id>:<seconds since 1970>:<HMAC of them and the body>     of POST /register
    x-pdgate-kv: <key id>:<nonce>          of GET /query, and in its answer
    x-pdgate-kv: <HMAC of the nonce and the body>

A client that proves nothing may still ask, and learns what reaches no KV. Keys are data-parallel,
tensor-parallel and pipeline-parallel rank. The engine that runs the server is registered from the
start. Clients remember nothing between queries: a restarted engine has another id and perhaps
another port.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_utils.py.
"""

import http.client
import json
import socket
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from pdgate.engine.hand_over import bootstrap_proof, timely_http
from pdgate.engine.hand_over.workers import (
    MAX_ID,
    MAX_RANK,
    BootstrapWorker,
    BootstrapWorkers,
    Contradiction,
)
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import Watch
from pdgate.transfer.runtime.fleet import Identity, Keyring
from pdgate.transfer.runtime.listener import Listener
from pdgate.transfer.runtime.refusals import Reason
from pdgate.transfer.runtime.strangers import Strangers, receive

MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 64 << 10
QUERY_SECONDS = 5.0


class _Refusal(Exception):
    """What to answer instead, with FastAPI's kind of body."""

    def __init__(self, status: HTTPStatus, why: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.body = json.dumps({"detail": why or status.phrase}).encode()


class BootstrapServer:
    """The server, on threads of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        engine_id: str,
        worker: tuple[str, int],
        identity: Identity | None = None,
    ) -> None:
        """Raises OSError if the address is taken, ValueError if listening there takes a secret."""
        identity = identity or Identity()
        self._identity = identity
        self._keyring = identity.keyring
        self._strangers = Strangers()
        self._workers = BootstrapWorkers()
        address = _tcp(*worker)
        self._workers.register(BootstrapWorker(engine_id, 0, 0, 0, address))
        sock = fleet.listening("the bootstrap server", host, port, identity)
        self.port: int = sock.getsockname()[1]
        self._listener = Listener("pdgate-bootstrap", sock, self._serve)

    def register_ranks(self, engine_id: str, tp: int, workers: Sequence[tuple[str, int]]) -> None:
        """Those of our own engine, of which the first one is known already. Raises Contradiction."""
        for number, at in enumerate(workers):
            stage, rank = divmod(number, tp)
            self._workers.register(BootstrapWorker(engine_id, 0, rank, stage, _tcp(*at)))

    def close(self) -> None:
        self._listener.close()

    def _serve(self, sock: socket.socket) -> None:
        """One request per connection. Raises OSError."""
        with self._strangers.one_more(sock):
            until = time.monotonic() + QUERY_SECONDS
            try:
                head, rest = _head(sock, until)
                answer = self._answer(sock, head, rest, until)
            except _Refusal as refusal:
                answer = _response(refusal.status, refusal.body)
            except EOFError:
                return
            sock.settimeout(QUERY_SECONDS)
            sock.sendall(answer)

    def _answer(self, sock: socket.socket, head: bytes, rest: bytes, until: float) -> bytes:
        """Raises _Refusal, EOFError, OSError."""
        first, *lines = head.split(b"\r\n")
        fields = _fields(lines)
        said = fields.get(bootstrap_proof.FIELD.encode(), b"").decode("ascii", "replace")
        match first.split(b" "):
            case [b"GET", target, _] if target.split(b"?")[0] == b"/query":
                body = json.dumps(self._workers.table()).encode()
                proof = bootstrap_proof.of_answer(self._keyring, said, body)
                return _response(HTTPStatus.OK, body, proof)
            case [b"POST", b"/register", _]:
                body = _body(sock, fields, rest, until)
                if not bootstrap_proof.of_worker_holds(self._keyring, said, body, time.time()):
                    self._identity.refusals.add("bootstrap", Reason.SECRET)
                    raise _Refusal(HTTPStatus.FORBIDDEN, "the worker proves no KV secret")
                return _response(HTTPStatus.OK, self._register(body))
            case [_, _, _]:
                raise _Refusal(HTTPStatus.NOT_FOUND)
            case _:
                raise _Refusal(HTTPStatus.BAD_REQUEST)

    def _register(self, body: bytes) -> bytes:
        try:
            worker = msgspec.json.decode(body, type=BootstrapWorker)
            named = _checked(worker)
            if self._identity.is_open and not fleet.loopback(named):
                raise _Refusal(
                    HTTPStatus.FORBIDDEN, f"{named} is not loopback, and we have no KV secret"
                )
            self._workers.register(worker)
        except Contradiction as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
        return b'{"status": "ok"}'


def _checked(worker: BootstrapWorker) -> str:
    """The host that a registration names. Raises _Refusal."""
    try:
        parts = urlsplit(worker.addr)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not worker.fits or host is None or not port or worker.addr != _tcp(host, port):
        raise _Refusal(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"no engine id of 1 to {MAX_ID} characters, ranks of 0 to {MAX_RANK} and address "
            "tcp://host:port",
        )
    return host


def _head(sock: socket.socket, until: float) -> tuple[bytes, bytes]:
    """A request up to its empty line, and what came behind it. Raises _Refusal, EOFError."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > MAX_HEAD_BYTES:
            raise _Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        data += _some(sock, until)
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    """Names in lower case, and their values."""
    named = [line.split(b":", 1) for line in lines if b":" in line]
    return {name.lower(): value.strip() for name, value in named}


def _body(sock: socket.socket, fields: Mapping[bytes, bytes], data: bytes, until: float) -> bytes:
    """Raises _Refusal, EOFError."""
    try:
        length = int(fields[b"content-length"])
    except (KeyError, ValueError):
        raise _Refusal(HTTPStatus.LENGTH_REQUIRED) from None
    if not 0 <= length <= MAX_BODY_BYTES:
        raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    while len(data) < length:
        data += _some(sock, until)
    return data[:length]


def _some(sock: socket.socket, until: float) -> bytes:
    """Raises EOFError when the client hung up, OSError."""
    piece = receive(sock, MAX_HEAD_BYTES, until)
    if not piece:
        raise EOFError
    return piece


def _response(status: HTTPStatus, body: bytes, proof: str = "") -> bytes:
    proven = f"{bootstrap_proof.FIELD}: {proof}\r\n" if proof else ""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{proven}"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def query(
    host: str,
    port: int,
    rank: int,
    engine_id: str,
    until: float,
    identity: Identity,
    watch: Watch = lambda _: None,
) -> tuple[str, int]:
    """The KV side of the engine with this rank and id (any id if empty); `watch` as in `dial`.

    Raises HandOverError.
    """
    if identity.is_open and not fleet.loopback(host):
        raise HandOverError(Why.UNPROVEN, f"{host} is not loopback, and we have no KV secret")
    data = _get(host, port, min(until, time.monotonic() + QUERY_SECONDS), identity.keyring, watch)
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


def _get(host: str, port: int, until: float, keyring: Keyring, watch: Watch) -> bytes:
    question = bootstrap_proof.BootstrapQuestion(keyring)
    headers = {bootstrap_proof.FIELD: question.said}
    try:
        answer = timely_http.asked((host, port), "GET", "/query", headers, None, until, watch)
    except (OSError, http.client.HTTPException) as error:
        raise HandOverError(Why.BROKEN, f"bootstrap server {host}:{port}: {error!r}") from None
    if answer.status != HTTPStatus.OK:
        raise HandOverError(Why.BROKEN, f"bootstrap server {host}:{port}: {answer.status}")
    if not question.holds(answer.headers.get(bootstrap_proof.FIELD, ""), answer.data):
        raise HandOverError(
            Why.UNPROVEN, f"the bootstrap server at {host}:{port} proves no KV secret of ours"
        )
    return answer.data


def _tcp(host: str, port: int) -> str:
    return f"tcp://{bracketed(host)}:{port}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
