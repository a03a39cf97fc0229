"""Plan of the demo: what it was asked for, and whether it can be had."""

import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pdgate.cluster.queue import settings
from pdgate.forwarders import registry
from pdgate.forwarders.base import Mode
from pdgate.lab.processes import REDIS
from pdgate.protocols import plugins
from pdgate.protocols.extras import install

HOST = "127.0.0.1"
PDGATE = (sys.executable, "-m", "pdgate")
QUEUED = "decode-first"
"""The protocol whose engines share a prefill queue."""


class BadPlan(Exception):
    """The flags ask for what cannot be had; nothing was started."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """The demo's flags.

    Attributes:
        mode: None takes what the protocol prefers.
        port: Of the gateway; 0 takes a free one.
        model: Folder of a model; None takes the built-in one.
        once: Stop after the first answer.
        as_json: Programs read stdout, so all that people read goes to stderr.
        queue: With decode-first, the prefill queue; empty for one of the demo's own.
    """

    protocol: str = "vllm-nixl"
    mode: str | None = None
    prefills: int = 1
    decodes: int = 1
    transfer: str = "shm"
    port: int = 0
    model: Path | None = None
    once: bool = False
    as_json: bool = False
    queue: str = ""

    @property
    def needs_queue(self) -> bool:
        return self.protocol == QUEUED

    def check(self) -> None:
        """Raises BadPlan."""
        self._check_protocol()
        for flag, count in (("--prefills", self.prefills), ("--decodes", self.decodes)):
            if count < 1:
                raise BadPlan(f"{flag} {count}: it takes at least one engine of each role")
        transfers = plugins.names(plugins.TRANSFERS)
        if self.transfer not in transfers:
            raise BadPlan(
                f"--transfer {self.transfer}: there is no such backend; "
                f"there are {', '.join(transfers)}"
            )
        if self.needs_queue and (why := _no_queue(self.queue)):
            raise BadPlan(why)
        if self.queue and not self.needs_queue:
            raise BadPlan(f"--queue: {self.protocol} takes none")
        if self.model and not (self.model / "config.json").is_file():
            raise BadPlan(f"--model {self.model}: there is no config.json, so it is no model")
        _check_port(self.port)

    def _check_protocol(self) -> None:
        if self.protocol == "plain":
            raise BadPlan("--pdd-protocol plain hands no KV over, and that is what the demo shows")
        try:
            modes = registry.modes(self.protocol)
        except LookupError as error:
            raise BadPlan(f"--pdd-protocol: {error.args[0]}") from None
        if self.mode and (why_not := modes[Mode(self.mode)]):
            raise BadPlan(f"{self.protocol} cannot do {self.mode} scheduling: {why_not}")

    def engine_command(self, role: str) -> Sequence[str]:
        model = ("--model", str(self.model)) if self.model else ()
        shared = ("--queue", self.queue) if self.queue else ()
        return (
            *PDGATE, "engine", "--role", role, "--pdd-protocol", self.protocol,
            "--transfer", self.transfer, "--host", HOST, "--port", "0",
            "--kv-host", HOST, *model, *shared,
        )  # fmt: skip

    def gateway_command(self, instances: Sequence[str]) -> Sequence[str]:
        mode = ("--scheduling-mode", self.mode) if self.mode else ()
        engines = [part for instance in instances for part in ("--instance", instance)]
        return (
            *PDGATE, "serve", "--host", HOST, "--port", str(self.port), "--debug-routes",
            "--pdd-protocol", self.protocol, *mode, *engines,
        )  # fmt: skip


def _no_queue(url: str) -> str:
    """Return what is missing for the prefill queue at `url`, or for a Redis of the demo's own if that is empty; "" for nothing.

    Engines are processes, so what they share is a third one. Ours listens on loopback, keeps nothing on
    disk and ends with the demo; engines wait for it, so no other part has to.
    """
    if url:
        try:
            chosen = settings.read(url)
        except ValueError as error:
            return f"--queue: {error}"
        if chosen.scheme not in settings.REDIS:
            return f"--queue {url}: engines are processes, which can share a Redis only"
    if find_spec("redis") is None:
        return f"{QUEUED} needs one more package: {install('redis')}"
    if not url and shutil.which(REDIS) is None:
        return (
            f"{QUEUED} needs a queue that engines share: install {REDIS}, "
            "or name a Redis with --queue redis://host:port/0"
        )
    return ""


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        # As servers do, so that the connections of an earlier demo do not block this one.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise BadPlan(f"--port {port} cannot be had: {error}; try --port 0") from None
