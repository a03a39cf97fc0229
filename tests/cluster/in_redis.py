"""Writes into a Redis as an engine of another make would, by the scripts that the page shows."""

import secrets

from pdgate.cluster.redis_store import scripts
from tests.support.redis import RedisServer

LEASE_MS = 60_000


class InRedis:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.url = server.url

    def put(self, key: str, value: bytes, lease_ms: int = LEASE_MS) -> None:
        self._run(scripts.PUT, lease_ms, key, value, "", secrets.token_hex(8))

    def delete(self, key: str) -> None:
        with self._server.client() as client:
            value = client.hget(scripts.VALUES, key)
        assert isinstance(value, str)
        self._run(scripts.DROP, key, value)

    def keys(self) -> list[str]:
        with self._server.client() as client:
            found = client.hkeys(scripts.VALUES)
        assert isinstance(found, list)
        return sorted(found)

    def _run(self, script: str, *words: str | bytes | int) -> None:
        with self._server.client() as client:
            client.register_script(script)(keys=scripts.KEYS, args=words)
