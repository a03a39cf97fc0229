"""Application: the gateway as a FastAPI application for any ASGI server, or inside another application.

    create_app(config) --> FastAPI --> uvicorn, Hypercorn, Granian, TestClient
                                   --> another application: mount(), include_router()

    its lifespan     background jobs, connections to engines; at its end calls have the drain's grace
    its routes       all of the gateway's, calls included (gateway/app.py)

Starlette runs the lifespan of no mounted application. Where no outer one runs it, the gateway starts
with its first request, says so in the log, and ends with the event loop.

Source: Starlette 1.10, "Lifespan"; FastAPI 0.165, "Sub Applications - Mounts".
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.config.api_keys import with_keys
from pdgate.gateway.config.load import checked
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.source import SettingsSource
from pdgate.gateway.wiring import build

log = logging.getLogger(__name__)

Config = Mapping[str, Any] | str | os.PathLike[str]
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]

_OF_A_SERVER: Final[Mapping[str, str]] = {
    "listen.workers": "start several processes of the server",
    "admin_listen": "guard /admin by admin_token_file, or mount the application a second time",
    "tls.cert_file": "give the certificate to the server",
    "tls.client_ca_file": "give it to the server",
}
"""Keys that `pdgate serve` alone can follow -> what to do instead."""


class AlreadyRunning(RuntimeError):
    """The lifespan of an application was begun while it runs."""


def create_app(config: Config) -> FastAPI:
    """Return the gateway as an application; nothing is connected before its lifespan, or first request.

    `config` is a mapping with the keys of the TOML file, or the path of such a file, which POST
    /admin/reload reads again. Address and port are the server's. Raise ConfigError.
    """
    life = Life(_reader(config))
    life.app.router.lifespan_context = life.lifespan
    life.app.add_middleware(Started, life=life)
    return life.app


class Life:
    """The times in which an application's gateway runs, one after the other.

    What a gateway waits with is of one event loop, so each time has a gateway of its own.

    Attributes:
        app: The application, the same all the time.
    """

    def __init__(self, read: Callable[[], Settings]) -> None:
        self._read = read
        self._built: Built | None = _built(read)
        self.app = self._built.app
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: asyncio.Future[None] | None = None
        self._late: asyncio.Task[None] | None = None

    @property
    def serves(self) -> bool:
        """Whether calls can come in the event loop of the caller; one that starts late cannot take them yet."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            return False
        started = self._started
        return started is None or started.done() or started.get_loop() is not loop

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Raise AlreadyRunning."""
        if self._loop is not None and not self._loop.is_closed():
            raise AlreadyRunning(
                "this application of pdgate runs already: mount it once more if it is to be at two "
                "prefixes, but run its lifespan once; create_app() makes another gateway"
            )
        self._loop = asyncio.get_running_loop()
        try:
            built, self._built = self._built or self._anew(), None
            async with built.running(built.app):
                try:
                    yield
                finally:
                    await _end_calls(built.drain)
        finally:
            self._loop = None

    def _anew(self) -> "Built":
        """Another gateway behind the same application. Raise ConfigError."""
        built = _built(self._read)
        self.app.router.routes[:] = built.app.router.routes
        # For applications that include this one's router: they look again when it has another route.
        self.app.router.include_router(APIRouter())
        return built

    async def start_late(self) -> None:
        """Begin the lifespan in a task that ends with the event loop; return when calls are served."""
        if self._started is None or self._started.get_loop() is not asyncio.get_running_loop():
            log.warning(
                "no lifespan of this application has run, so it starts with its first request: "
                "where it is mounted, run app.router.lifespan_context(app) in that of the outer application"
            )
            loop = asyncio.get_running_loop()
            self._started = loop.create_future()
            self._late = loop.create_task(self._run(self._started), name="pdgate")
        started, late = self._started, self._late
        assert late is not None
        await asyncio.wait((started, late), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            # It could not begin: all that waited for it fail, and the next one tries again.
            late.result()

    async def _run(self, started: "asyncio.Future[None]") -> None:
        try:
            async with self.lifespan(self.app):
                started.set_result(None)
                await asyncio.get_running_loop().create_future()
        finally:
            self._started = None


@dataclass(frozen=True, slots=True)
class Built:
    """A gateway that has not run yet.

    Attributes:
        running: Block in which it runs.
    """

    app: FastAPI
    running: Lifespan
    drain: Drain


def _built(read: Callable[[], Settings]) -> Built:
    settings = read()
    _refuse_of_a_server(settings)
    front = build(settings)
    app = front.application
    assert app is not None
    assert front.reload is not None
    front.reload.source = read
    return Built(app, app.router.lifespan_context, front.service.drain)


async def _end_calls(drain: Drain) -> None:
    """What servers do not wait for has the drain's time, and new calls are refused."""
    over = asyncio.Event()
    drain.finish = over.set
    drain.begin()
    if not drain.over:
        await over.wait()


class Started:
    """Middleware that starts a gateway whose lifespan has not run."""

    def __init__(self, app: ASGIApp, life: Life) -> None:
        self._app = app
        self._life = life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and not self._life.serves:
            await self._life.start_late()
        await self._app(scope, receive, send)


def _reader(config: Config) -> Callable[[], Settings]:
    if isinstance(config, Mapping):
        tree = dict(config)
        return lambda: with_keys(checked(tree))
    if isinstance(config, str | os.PathLike):
        return SettingsSource(Path(config).absolute()).read
    raise ConfigError(
        f"the configuration is a mapping or the path of a TOML file, and no {type(config).__name__}"
    )


def _refuse_of_a_server(settings: Settings) -> None:
    """Raise ConfigError for what a server has to do."""
    defaults = Settings()
    for key, instead in _OF_A_SERVER.items():
        if _at(settings, key) != _at(defaults, key):
            raise ConfigError(f"'{key}': an application has no listener of its own; {instead}")


def _at(settings: Settings, key: str) -> Any:
    found: Any = settings
    for name in key.split("."):
        found = getattr(found, name)
    return found
