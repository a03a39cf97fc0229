"""The `prefill-worker` command: beside a prefill engine that has no worker inside."""

import signal
import threading
import uuid
from contextlib import closing
from types import FrameType
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from pdgate.cluster import address
from pdgate.cluster.queue import settings
from pdgate.cluster.queue.opening import open_queue
from pdgate.cluster.stderr import log_to_stderr
from pdgate.engine.kv_flags import KvSecretFile, KvTlsCaFile, KvTlsCertFile, KvTlsKeyFile
from pdgate.engine.prefill_worker.worker import EngineHealth, PrefillWorker, Serving
from pdgate.transfer.runtime.fleet import configured
from pdgate.transfer.runtime.tls import Tls

LogLevel = Literal["debug", "info", "warning", "error"]
STOPPING = (signal.SIGTERM, signal.SIGINT)


def prefill_worker(
    queue: Annotated[str, typer.Option(help="The prefill queue, redis://host:port/0.")],
    model: Annotated[str, typer.Option(help="As decode engines call it to their peers.")],
    engine: Annotated[str, typer.Option(help="URL of the engine's API; asked for /health.")],
    kv: Annotated[str, typer.Option(help="host:port of the engine's KV side, as others dial it.")],
    kv_secret_file: KvSecretFile = "",
    kv_tls_cert_file: KvTlsCertFile = "",
    kv_tls_key_file: KvTlsKeyFile = "",
    kv_tls_ca_file: KvTlsCaFile = "",
    log_level: Annotated[LogLevel, typer.Option(help="From here on.")] = "info",
) -> None:
    """Take prompts off a queue for a prefill engine that speaks vllm-kvt (needs the extra `redis`).

    Told to stop, it finishes the prompt it has.
    """
    log_to_stderr(log_level)
    try:
        chosen = settings.read(queue)
        parts = urlsplit(f"//{address.host_and_port(kv)}")
        ready = EngineHealth(engine)
        identity = configured(
            kv_secret_file, Tls(kv_tls_cert_file, kv_tls_key_file, kv_tls_ca_file)
        )
        opened = open_queue(chosen, model)
    except (ValueError, LookupError) as error:
        raise typer.BadParameter(str(error)) from error
    with closing(opened):
        assert parts.hostname is not None
        assert parts.port is not None
        serving = Serving(uuid.uuid4().hex, parts.hostname, parts.port, chosen.hold_seconds)
        worker = PrefillWorker(opened, serving, identity, ready)
        stopped = threading.Event()

        def stop(_: int, __: FrameType | None) -> None:
            stopped.set()

        for number in STOPPING:
            signal.signal(number, stop)
        worker.start()
        typer.echo(f"pdgate prefill-worker takes prompts for {engine}")
        stopped.wait()
        worker.stop()
        worker.wait()
