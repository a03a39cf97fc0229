"""The gateway in front of scripted engines: real servers and sockets, one event loop.

    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE, held := Held())
    async with gateway_of(prefill, decode) as gateway:
        asking = asyncio.create_task(gateway.chat(stream=True))
        call = await held.next()             # decode has been asked
        await call.peer.send(chunked(b"data: 1\\n\\n"))

Probes are answered by `Engine` itself; what a call meets is the engine's script.
"""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import httpx2
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from pdgate.cluster.directory import Directory
from pdgate.gateway.config import Settings
from pdgate.gateway.config.instances import InstanceEntry
from pdgate.gateway.config.sections import HealthSection
from pdgate.gateway.front.handshake import ClientHandshake
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.security.tls import server_context
from pdgate.gateway.server import KEEP_ALIVE_SECONDS
from pdgate.gateway.wiring import build
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support import waiting
from tests.support.answers import STATE
from tests.support.own_time import own_seconds
from tests.support.raw_server import Peer, Request, Script, chunk, raw_server, reply

JSON_TYPE = b"content-type: application/json"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
PROBE_SECONDS = 0.05
PROBES = HealthSection(interval_seconds=PROBE_SECONDS, timeout_seconds=10)
"""Often, and patient: an engine that is slow to say that it is well, on a busy machine, is not down."""
PATIENCE_SECONDS = waiting.PATIENCE_SECONDS
"""After which a test gives up; all of them take a fraction."""

HTTP: type[asyncio.Protocol] | Literal["httptools", "hypercorn"] = HotProtocol
"""What serves connections: the gateway's own; or uvicorn or Hypercorn, and FastAPI's routes the calls. A
fixture sets it."""

BLOCKS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "engine-of-prefill",
    "remote_host": "192.0.2.7",
    "remote_port": 5600,
    "uuid": 77,
    "transfer_id": "tx-7",
}
PREFILLED = {
    "choices": [
        {
            "index": 0,
            "message": {"content": "a"},
            "finish_reason": "length",
            "disaggregated_params": STATE,
        }
    ],
    "kv_transfer_params": BLOCKS,
    "cache_block_ids": [4, 7],
    "remote_token_ids": [5],
}
ANSWER = {
    "id": "chatcmpl-1",
    "choices": [{"index": 0, "message": {"content": "abc"}, "finish_reason": "stop"}],
}


def as_json(body: Any, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    return reply(json.dumps(body).encode(), status, JSON_TYPE, *headers)


def says(answer: bytes) -> Script:
    """Always the same bytes."""

    async def script(peer: Peer) -> None:
        await peer.send(answer)

    return script


def streams(*events: bytes) -> Script:
    return says(STREAM_HEAD + b"".join(map(chunk, events)) + LAST_CHUNK)


def breaks_off(*pieces: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.send(*pieces)
        await peer.close()

    return script


def engine_error(status: bytes, message: str, *headers: bytes) -> bytes:
    return as_json(
        {"error": {"message": message, "code": int(status.split()[0])}}, status, *headers
    )


@dataclass(frozen=True, slots=True)
class HeldCall:
    """
    Attributes:
        left: Done when the gateway has closed the connection; `own_seconds` of that.
    """

    peer: Peer
    left: asyncio.Future[float]


class Held:
    """A script that leaves each call to the test, until the gateway closes the connection."""

    def __init__(self) -> None:
        self._calls: asyncio.Queue[HeldCall] = asyncio.Queue()

    async def __call__(self, peer: Peer) -> None:
        call = HeldCall(peer, asyncio.get_running_loop().create_future())
        self._calls.put_nowait(call)
        await peer.gone()
        call.left.set_result(own_seconds())

    async def next(self) -> HeldCall:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._calls.get()


class Engine:
    """
    Attributes:
        script: What a call meets; it can be replaced at any time.
        probes: Path -> the answer to a GET, or POST, of it.
        calls: Requests that were no probes.
    """

    def __init__(self, role: Role, script: Script | None = None, *models: str) -> None:
        self.role = role
        default = PREFILLED if role is Role.PREFILL else ANSWER
        self.script: Script = script or says(as_json(default))
        cards = [{"id": model, "object": "model"} for model in models or ("m",)]
        self.probes: dict[str, bytes] = {
            "/health": reply(b""),
            "/v1/models": as_json({"object": "list", "data": cards}),
        }
        self.calls: list[Request] = []
        self.url = ""
        self.entry: dict[str, Any] = {}
        """More keys of its InstanceEntry."""
        self.bootstraps = False
        """Its URL is also that of its Mooncake bootstrap server."""
        self.refuse: Callable[[], None] = self._has_no_server
        """Accepts no further connection; those that are open stay."""

    async def serve(self, peer: Peer) -> None:
        method, path, _ = peer.request.line.decode().split(" ")
        upgrades = peer.request.header(b"upgrade") is not None
        if (method == "GET" and not upgrades) or path in self.probes:
            await peer.send(self.probes.get(path) or reply(b"", b"404 Not Found"))
            return
        self.calls.append(peer.request)
        await self.script(peer)

    def _has_no_server(self) -> None:
        raise AssertionError("the engine does not run")

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(call.body) for call in self.calls]


class _Server(uvicorn.Server):
    """Ends when told to, at once, and leaves signals to pytest."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()
        self.leaving = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.serving.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.leaving.wait()


@dataclass
class Gateway:
    """
    Attributes:
        http: A client whose base URL is the gateway.
        admin_url: Of its admin listener, where `admin_listen` asks for one.
        drain: What ends it; `finish` is the test's.
        reload: What changes it.
        leaving: Set, it makes the server end.
    """

    port: int
    http: httpx2.AsyncClient
    engines: Sequence[Engine]
    drain: Drain
    reload: Reload
    leaving: asyncio.Event
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    admin_url: str = ""

    async def chat(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
        return await self.http.post(CHAT, json=question(**fields), headers=headers)

    async def wire(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    async def wire_over(
        self, tls: ssl.SSLContext
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
        self.writers.append(writer)
        return reader, writer

    async def metrics(self) -> dict[tuple[str, ...], float]:
        """(name, label values in order of label names) -> value."""
        answer = await self.http.get("/metrics")
        return {
            (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


def question(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


def post(body: bytes, *headers: bytes, path: str = CHAT) -> bytes:
    """The bytes of a request."""
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"host: g", b"content-length: %d" % len(body)]
    return b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + body


def ask(*headers: bytes, **fields: Any) -> bytes:
    """The bytes of a chat call."""
    return post(json.dumps(question(**fields)).encode(), JSON_TYPE, *headers)


@asynccontextmanager
async def gateway_of(*engines: Engine, **settings: Any) -> AsyncIterator[Gateway]:
    """Serves until the block ends. `settings` are keys of Settings, and `directory` is one; with a certificate
    in `tls` it is for clients of the test's own (`Gateway.wire_over`).
    """
    directory: Directory | None = settings.pop("directory", None)
    async with AsyncExitStack() as stack:
        entries = []
        for engine in engines:
            server = await stack.enter_async_context(raw_server(engine.serve))
            engine.url, engine.refuse = server.url, server.stop
            kv = server.url.removeprefix("http://") if engine.bootstraps else ""
            entry = {"url": server.url, "kv": kv, **engine.entry}
            entries.append(InstanceEntry(role=engine.role, **entry))
        settings.setdefault("health", PROBES)
        sockets, admin_port = None, None
        if "admin_listen" in settings:
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in "ab"]
            admin_port = sockets[1].getsockname()[1]
        front_settings = Settings(instances=tuple(entries), **settings)
        front = build(
            front_settings,
            directory=directory,
            admin_port=admin_port,
        )
        # The plain way is FastAPI's own routes, unless a port of its own is the admins'.
        plain = HotProtocol != HTTP and admin_port is None
        app = front.application if plain else front
        assert app is not None
        if HTTP == "hypercorn":
            served = await stack.enter_async_context(_on_hypercorn(app))
        else:
            http: Any = HTTP
            if (tls := front_settings.tls).cert_file:
                context = server_context(tls.cert_file, tls.key_file, tls.client_ca_file)
                http = partial(ClientHandshake, context)
            served = await stack.enter_async_context(_on_uvicorn(app, http, sockets))
        port, leaving = served
        client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE_SECONDS
        )
        assert front.reload is not None
        gateway = Gateway(port, client, engines, front.service.drain, front.reload, leaving)
        gateway.admin_url = f"http://127.0.0.1:{admin_port}"
        try:
            yield gateway
        finally:
            await client.aclose()
            for writer in gateway.writers:
                writer.close()
            leaving.set()


@asynccontextmanager
async def _on_uvicorn(
    app: ASGIApp, http: Any, sockets: list[socket.socket] | None
) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Port, and what makes it end, as the end of the block does."""
    config = uvicorn.Config(
        app,
        port=0,
        http=http,
        ws="auto" if isinstance(http, str) else "none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=5,
    )
    server = _Server(config)
    serving = asyncio.create_task(server._serve(sockets))
    starting = asyncio.create_task(server.serving.wait())
    await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        starting.cancel()
        await serving
    try:
        yield server.servers[0].sockets[0].getsockname()[1], server.leaving
    finally:
        server.leaving.set()
        await serving


@asynccontextmanager
async def _on_hypercorn(app: Any) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """The same on Hypercorn; imported here, as few tests need it."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = Config()
        # It closes what it is given.
        config.bind = [f"fd://{os.dup(listener.fileno())}"]
        config.errorlog = None
        config.include_server_header = False
        config.graceful_timeout = 5
        leaving = asyncio.Event()
        serving = asyncio.create_task(serve(app, config, shutdown_trigger=leaving.wait))
        try:
            # Clients wait in the listener's queue until it is served.
            yield listener.getsockname()[1], leaving
        finally:
            leaving.set()
            await serving
