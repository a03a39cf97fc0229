"""A real etcd for tests, which can be stopped, frozen, started again and emptied.

    async with etcd_server(tmp_path) as etcd:
        Etcd(etcd.endpoints)
        etcd.stop(); etcd.start()

Where no etcd is installed, a test that asks for one is skipped; with CI set it fails.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from pdgate.cluster.etcd import wire
from tests.support.ports import free_port
from tests.support.processes import Child, child
from tests.support.waiting import PATIENCE_SECONDS

PROGRAM = "etcd"
MISSING = "etcd is not installed: apt-get install etcd-server"


class EtcdServer:
    """
    Attributes:
        endpoints: The only member.
        secure: The same, where it has a certificate.
        process: None while it is stopped.
    """

    def __init__(self, folder: Path, *certificate: Path) -> None:
        self._folder = folder
        self._port = free_port(neighbours=2)
        self._certificate = certificate
        self.secure = (f"https://127.0.0.1:{self._port + 2}",)
        self._url = f"http://127.0.0.1:{self._port}"
        self._starts = 0
        self._running = ExitStack()
        self.endpoints = (self._url,)
        self.process: Child | None = None

    def start(self) -> None:
        """With what it knew when it was stopped."""
        self._starts += 1
        peers = f"http://127.0.0.1:{self._port + 1}"
        clients, secured = [self._url], list[str | Path]()
        if self._certificate:
            clients += self.secure
            certificate, key = self._certificate
            secured += ["--cert-file", certificate, "--key-file", key]
        command: list[str | Path] = [
            *(PROGRAM, "--name", "it", "--data-dir", self._folder / f"etcd-{self._port}"),
            *("--listen-client-urls", ",".join(clients), "--advertise-client-urls", self._url),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"it={peers}"),
            # Alone it wins every election, so it need not wait for others; and leases may
            # be as short as the time that an election takes.
            *("--heartbeat-interval", "20", "--election-timeout", "100"),
            *secured,
        ]
        # What the environment says of another etcd is none of this one's business.
        env = {name: "" for name in os.environ if name.startswith("ETCD_")}
        self.process = self._running.enter_context(child(command, env=env, name="etcd"))
        self.process.wait_for_http(f"{self._url}/health")

    def stop(self) -> None:
        self._running.close()
        self.process = None

    def kill(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGKILL)
        self.stop()

    def freeze(self) -> None:
        """Its connections stay, and nothing answers."""
        assert self.process is not None
        self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGCONT)

    def forget(self) -> None:
        """It is to start as new."""
        shutil.rmtree(self._folder / f"etcd-{self._port}")

    def put(self, key: str, value: bytes) -> None:
        self.ask("/v3/kv/put", wire.put(key, value, "0"))

    def delete(self, key: str) -> None:
        self.ask("/v3/kv/deleterange", {"key": wire.put(key, b"", "0")["key"]})

    def keys(self) -> list[str]:
        return sorted(wire.contents(self.ask("/v3/kv/range", wire.folder("/workers/"))).entries)

    def leases(self) -> list[str]:
        return [lease["ID"] for lease in self.ask("/v3/lease/leases", {}).get("leases", ())]

    def revoke(self, lease: str) -> None:
        self.ask("/v3/lease/revoke", {"ID": lease})

    def compact(self) -> None:
        """Forgets all changes so far; only what they led to is left."""
        revision = wire.contents(self.ask("/v3/kv/range", wire.folder("/workers/"))).revision
        self.ask("/v3/kv/compaction", {"revision": str(revision), "physical": True})

    def ask(self, path: str, body: wire.Body) -> wire.Body:
        answer = httpx2.post(
            f"{self._url}{path}", json=body, trust_env=False, timeout=PATIENCE_SECONDS
        )
        assert answer.status_code == 200, answer.text
        said: wire.Body = answer.json()
        return said


@contextmanager
def etcd_server(folder: Path, *certificate: Path) -> Iterator[EtcdServer]:
    """One that answers; with a certificate and its key, at a second port by TLS, too."""
    if shutil.which(PROGRAM) is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    server = EtcdServer(folder, *certificate)
    server.start()
    try:
        yield server
    finally:
        server.stop()
