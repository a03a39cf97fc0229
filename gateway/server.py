"""Runs the gateway: one process, or several behind one listening socket."""

import asyncio
import gc
import logging
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from uvicorn.supervisors import Multiprocess

from pdgate.gateway import hot_protocol
from pdgate.gateway.asgi import Front
from pdgate.gateway.bounded_http import BoundedHttp
from pdgate.gateway.config import Settings
from pdgate.gateway.lifecycle.signals import take_over
from pdgate.gateway.security.tls import server_options
from pdgate.gateway.wiring import build

log = logging.getLogger(__name__)

SETTINGS_VARIABLE = "PDGATE_SETTINGS"
"""Brings the settings to the workers, which start as new processes."""

METRICS_VARIABLE = "PDGATE_METRICS_FOLDER"
"""Where workers add up what they count; set only where there are several."""

KEEP_ALIVE_SECONDS = 75
LAST_SECONDS = 2
"""For what is still open when the drain is over (gateway/lifecycle/drain.py)."""


def serve(settings: Settings) -> None:
    """Blocks until SIGINT or SIGTERM."""
    _log_to_stderr(settings)
    os.environ[SETTINGS_VARIABLE] = settings.model_dump_json()
    tls = settings.tls
    config = uvicorn.Config(
        "pdgate.gateway.server:from_environment",
        factory=True,
        host=settings.listen.host,
        port=settings.listen.port,
        workers=settings.listen.workers,
        loop="uvloop",
        http=_protocol(),
        # No proxy's headers are read, and nothing may stand between HotProtocol and Front.
        proxy_headers=False,
        log_config=None,
        log_level=settings.log_level,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=LAST_SECONDS,
        **server_options(tls.cert_file, tls.key_file, tls.client_ca_file),
    )
    socket = config.bind_socket()
    # From the moment at which we say so: clients that come before we serve are kept waiting.
    socket.listen(config.backlog)
    host, port = socket.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if tls.cert_file else "http"
    print(f"pdgate listens on {scheme}://{shown}:{port}", flush=True)
    if settings.listen.workers > 1:
        with TemporaryDirectory(prefix="pdgate-metrics-") as folder:
            os.environ[METRICS_VARIABLE] = folder
            _Workers(config, sockets=[socket]).run()
    else:
        os.environ.pop(METRICS_VARIABLE, None)
        uvicorn.Server(config).run(sockets=[socket])


class _Workers(Multiprocess):
    def terminate_all(self) -> None:
        super().terminate_all()
        # While we held it, clients could still connect, and would wait in vain for the
        # last running call to end.
        for socket in self.sockets:
            socket.close()


def _protocol() -> type[asyncio.Protocol]:
    why_not = hot_protocol.why_not()
    if why_not is None:
        return hot_protocol.HotProtocol
    log.warning("the fast front end is off: %s", why_not)
    return BoundedHttp


def from_environment() -> Front:
    """What each worker builds."""
    settings = Settings.model_validate_json(os.environ[SETTINGS_VARIABLE])
    _log_to_stderr(settings)
    folder = os.environ.get(METRICS_VARIABLE)
    front = build(settings, Path(folder) if folder else None)
    # What has been imported and built stays; looking through it for garbage, again and again,
    # would only make streams pause for as long as that takes.
    gc.collect()
    gc.freeze()
    take_over(front.service.drain)
    return front


def _log_to_stderr(settings: Settings) -> None:
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # One line per probe is noise unless one debugs probes.
    if settings.log_level != "debug":
        logging.getLogger("httpx2").setLevel(logging.WARNING)
