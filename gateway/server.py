"""Runs the gateway: one process, or several behind one listening socket."""

import asyncio
import logging
import os
import signal
from pathlib import Path
from socket import socket as Socket
from tempfile import TemporaryDirectory

import uvicorn

from pdgate.gateway import memory
from pdgate.gateway.config import Settings
from pdgate.gateway.config.instances import host_and_port
from pdgate.gateway.front import hot_protocol
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.bounded_http import BoundedHttp
from pdgate.gateway.lifecycle.signals import take_over
from pdgate.gateway.lifecycle.source import Source
from pdgate.gateway.lifecycle.unhurried import Unhurried
from pdgate.gateway.lifecycle.workers import PARENT_VARIABLE, Workers, tell_the_others
from pdgate.gateway.listening import bound
from pdgate.gateway.logs.lines import log_to_stderr
from pdgate.gateway.neighbours.place import shared_folder
from pdgate.gateway.security.tls import server_options
from pdgate.gateway.wiring import build

log = logging.getLogger(__name__)

SETTINGS_VARIABLE = "PDGATE_SETTINGS"
"""Brings the settings to the workers, which start as new processes."""

SOURCE_VARIABLE = "PDGATE_SOURCE"
"""Where they came from, to be read again."""

METRICS_VARIABLE = "PDGATE_METRICS_FOLDER"
"""Where workers add up what they count; set only where there are several."""

LOAD_VARIABLE = "PDGATE_LOAD_FOLDER"
"""Where they tell each other what they have in flight; set only where there are several."""

ADMIN_PORT_VARIABLE = "PDGATE_ADMIN_PORT"
"""Of the admin listener, where there is one."""

KEEP_ALIVE_SECONDS = 75
HUNG_SECONDS = 20
"""After which the parent kills a worker that does not answer it, as while it still imports: on a
busy machine that takes longer than the 5 s of uvicorn, and no worker would ever start."""

LAST_SECONDS = 2
"""For what is still open when the drain is over (gateway/lifecycle/drain.py)."""


def serve(settings: Settings, source: Source) -> None:
    """Blocks until SIGINT or SIGTERM. `source` is where the settings came from.

    Raises CannotListen.
    """
    log_to_stderr(settings.log_level, settings.log_format)
    os.environ[SOURCE_VARIABLE] = source.as_json()
    # Who starts has read it just now; workers inherit this until they listen to it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    tls = settings.tls
    config = uvicorn.Config(
        "pdgate.gateway.server:from_environment",
        factory=True,
        host=settings.listen.host,
        port=settings.listen.port,
        workers=settings.listen.workers,
        loop="uvloop",
        http=_protocol(),
        ws="none",
        # No proxy's headers are read, and nothing may stand between HotProtocol and Front.
        proxy_headers=False,
        log_config=None,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=LAST_SECONDS,
        timeout_worker_healthcheck=HUNG_SECONDS,
        **server_options(tls.cert_file, tls.key_file, tls.client_ca_file),
    )
    sockets = [bound(settings.listen.host, settings.listen.port, "--host or --port")]
    os.environ.pop(ADMIN_PORT_VARIABLE, None)
    if settings.admin_listen:
        host, port = host_and_port(settings.admin_listen)
        sockets.append(bound(host, port, "--admin-listen"))
        # Workers tell the two apart by it, and in the settings it may be 0.
        os.environ[ADMIN_PORT_VARIABLE] = str(sockets[1].getsockname()[1])
    if not (settings.instances or settings.directory or settings.etcd):
        log.warning(
            "there are no engines, and no directory to find any in, so all calls are refused: "
            "name some by --prefill and --decode, by --directory, or in the file and reload"
        )
    _begin_with(settings)
    for socket in sockets:
        # From the moment at which we say so: clients that come before we serve are kept waiting.
        socket.listen(config.backlog)
    scheme = "https" if tls.cert_file else "http"
    if settings.admin_listen:
        print(f"pdgate listens for admins on {scheme}://{_address(sockets[1])}", flush=True)
    print(f"pdgate listens on {scheme}://{_address(sockets[0])}", flush=True)
    if settings.listen.workers > 1:
        with (
            TemporaryDirectory(prefix="pdgate-metrics-") as folder,
            shared_folder() as load,
        ):
            os.environ[METRICS_VARIABLE] = folder
            os.environ[LOAD_VARIABLE] = str(load)
            Workers(config, sockets, settings, source, _begin_with).run()
    else:
        os.environ.pop(METRICS_VARIABLE, None)
        os.environ.pop(LOAD_VARIABLE, None)
        os.environ.pop(PARENT_VARIABLE, None)
        Unhurried(config).run(sockets=sockets)


def _address(socket: Socket) -> str:
    host, port = socket.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _protocol() -> type[asyncio.Protocol]:
    why_not = hot_protocol.why_not()
    if why_not is None:
        return hot_protocol.HotProtocol
    log.warning("the fast front end is off: %s", why_not)
    return BoundedHttp


def from_environment() -> Front:
    """What each worker builds."""
    settings = Settings.model_validate_json(os.environ[SETTINGS_VARIABLE])
    log_to_stderr(settings.log_level, settings.log_format)
    folder = os.environ.get(METRICS_VARIABLE)
    load = os.environ.get(LOAD_VARIABLE)
    port = os.environ.get(ADMIN_PORT_VARIABLE)
    front = build(
        settings,
        Path(folder) if folder else None,
        admin_port=int(port) if port else None,
        load_folder=Path(load) if load else None,
    )
    memory.keep()
    _take_part(front)
    return front


def _take_part(front: Front) -> None:
    """What this process is told, the others of this gateway are told as well."""
    drain, reload = front.service.drain, front.reload
    assert reload is not None
    reload.source = Source.from_json(os.environ[SOURCE_VARIABLE]).read
    take_over(drain, reload)
    tell_the_others(drain, reload)


def _begin_with(settings: Settings) -> None:
    """Processes that start from now on, that is."""
    os.environ[SETTINGS_VARIABLE] = settings.model_dump_json()
