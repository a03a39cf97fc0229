"""A real Redis for tests, which can be stopped, frozen, started again and emptied.

Where no redis-server is installed, a test that asks for one is skipped; with CI set it fails.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from tests.support.ports import free_port
from tests.support.processes import Child, child

PROGRAM = "redis-server"
MISSING = "redis-server is not installed: apt-get install redis-server"


class RedisServer:
    """
    Attributes:
        url: Of its first database.
        process: None while it is stopped.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._running = ExitStack()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.process: Child | None = None

    def start(self) -> None:
        """With what it knew when it was stopped."""
        command = [
            *(PROGRAM, "--port", str(self._port), "--bind", "127.0.0.1"),
            *("--dir", str(self._folder), "--save", "", "--appendonly", "yes"),
        ]
        process = self.process = self._running.enter_context(child(command, name="redis"))
        process.wait_until(self._answers, "an answer")

    def stop(self) -> None:
        self._running.close()
        self.process = None

    def freeze(self) -> None:
        """Its connections stay, and nothing answers."""
        assert self.process is not None
        self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.signal(signal.SIGCONT)

    def forget(self) -> None:
        """It is to start as new."""
        shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """One that answers."""
    if shutil.which(PROGRAM) is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
