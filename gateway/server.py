"""Server of the gateway: one process, or several behind one listening socket."""

import logging
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket as Socket
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import uvicorn

from pdgate.cluster.address import joined
from pdgate.gateway import memory
from pdgate.gateway.config import Settings
from pdgate.gateway.config.instances import host_and_port
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.handshake import ClientHandshake
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.lifecycle.low_wakeup_server import LowWakeupServer
from pdgate.gateway.lifecycle.signals import take_over
from pdgate.gateway.lifecycle.source import SettingsSource
from pdgate.gateway.lifecycle.worker import Worker
from pdgate.gateway.lifecycle.workers import Workers
from pdgate.gateway.listening import bound, shared_port
from pdgate.gateway.logs import log_to_stderr
from pdgate.gateway.security.tls import server_context
from pdgate.gateway.sync.workers.place import shared_folder
from pdgate.gateway.wiring import build

log = logging.getLogger(__name__)

BACKLOG = 2048
"""Connections that wait to be accepted: what uvicorn takes, too."""

KEEP_ALIVE_SECONDS = 75
LAST_SECONDS = 2
"""For what is still open when the drain is over (gateway/lifecycle/drain.py)."""


@dataclass(frozen=True, slots=True)
class SharedByWorkers:
    """What the workers of one gateway share, where there are several; they start as new processes.

    Attributes:
        metrics: Folder in which they add up what they count.
        load: Folder in which they tell each other what they have in flight.
        admin_port: Of the admin listener; None where there is none. In the settings it may be 0.
        picker_port: The same of the endpoint picker.
    """

    metrics: Path | None
    load: Path | None
    admin_port: int | None
    picker_port: int | None = None


def serve(settings: Settings, source: SettingsSource) -> None:
    """Blocks until SIGINT or SIGTERM. `source` is where the settings came from.

    Raises CannotListen; SystemExit where it cannot go on.
    """
    log_to_stderr(settings.log_level, settings.log_format)
    # The settings have been read just now.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sockets = [bound(settings.listen.host, settings.listen.port, "--host or --port")]
    admin_port = None
    if settings.admin_listen:
        host, port = host_and_port(settings.admin_listen)
        sockets.append(bound(host, port, "--admin-listen"))
        admin_port = sockets[1].getsockname()[1]
    picker_port, kept = None, None
    if settings.epp.listen:
        host, port = host_and_port(settings.epp.listen)
        kept = shared_port(host, port, "--epp-listen")
        picker_port = kept.getsockname()[1]
    if not (settings.instances or settings.directory or settings.etcd):
        log.warning(
            "there are no engines, and no directory to find any in, so all calls are refused: "
            "name some by --prefill and --decode, by --directory, or in the file and reload"
        )
    for socket in sockets:
        # From the moment at which we say so: clients that come before we serve are kept waiting.
        socket.listen(BACKLOG)
    scheme = "https" if settings.tls.cert_file else "http"
    if settings.admin_listen:
        _say(f"pdgate listens for admins on {scheme}://{_address(sockets[1])}")
    if kept is not None:
        _say(f"pdgate picks engines for Envoy at {_address(kept)}")
    _say(f"pdgate listens on {scheme}://{_address(sockets[0])}")
    if settings.listen.workers > 1:
        with (
            TemporaryDirectory(prefix="pdgate-metrics-") as folder,
            shared_folder() as load,
        ):
            shared = SharedByWorkers(Path(folder), load, admin_port, picker_port)
            if code := Workers(partial(work, shared), sockets, settings, source.read).run():
                raise SystemExit(code)
    else:
        _serve(settings, SharedByWorkers(None, None, admin_port, picker_port), sockets, source)


def work(
    shared: SharedByWorkers,
    settings: Settings,
    sockets: list[Socket],
    connection: "Connection[Any, Any]",
) -> None:
    """What each worker does, in its own process, until its parent or a signal ends it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # uvicorn sends the signal once more when it is done, to end by it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    worker = Worker(connection)
    log_to_stderr(settings.log_level, settings.log_format)
    _serve(settings, shared, sockets, worker)


def _serve(
    settings: Settings,
    shared: SharedByWorkers,
    sockets: list[Socket],
    told_by: SettingsSource | Worker,
) -> None:
    """In this process. `told_by`: where other settings come from."""

    def front() -> Front:
        """Built in the event loop, where signals mean what uvicorn makes of them by now."""
        built = build(
            settings,
            shared.metrics,
            admin_port=shared.admin_port,
            load_folder=shared.load,
            picker_port=shared.picker_port,
        )
        memory.keep()
        drain, reload = built.service.drain, built.reload
        assert reload is not None
        take_over(drain, reload)
        if isinstance(told_by, Worker):
            told_by.orphaned = server.stop_listening
            told_by.take_part(drain, reload)
        else:
            reload.source = told_by.read
        return built

    tls = settings.tls
    http: Any = HotProtocol
    if tls.cert_file:
        context = server_context(tls.cert_file, tls.key_file, tls.client_ca_file)
        http = partial(ClientHandshake, context)
    config = uvicorn.Config(
        front,
        factory=True,
        loop="uvloop",
        http=http,
        ws="none",
        # No proxy's headers are read, and nothing may stand between a connection and Front.
        proxy_headers=False,
        log_config=None,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=LAST_SECONDS,
    )
    server = LowWakeupServer(config)
    server.run(sockets=sockets)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _say(line: str) -> None:
    """In one piece: print writes the end of a line apart, behind what the log writes meanwhile.

    Where it cannot be said a gateway serves all the same: its output is closed, or on a disk that is full.
    """
    if sys.stdout is not None:
        with suppress(OSError):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


def _address(socket: Socket) -> str:
    return joined(*socket.getsockname()[:2])
