"""States of batches for tests: one for each kind, new, and as one of several processes has it."""

from pathlib import Path

from pdgate.gateway.batch.objects import BatchObject, StoredFile
from pdgate.gateway.batch.sharing import OpenState, opened
from pdgate.gateway.batch.state import StoredBatch

KINDS = ("sqlite", "redis")
ANY = StoredBatch(1000, 1 << 40)
LATER = 1e12


class States:
    """
    Attributes:
        url: Of a Redis, or empty.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._folder = folder
        self._open: list[OpenState] = []

    def process(self) -> OpenState:
        """As another one opens it."""
        self._open.append(opened(self.url, self._folder))
        return self._open[-1]

    async def close(self) -> None:
        for one in self._open:
            await one.lead.resign()
            await one.led.close()


def file(name: str, owner: str = "a", size: int = 10, purpose: str = "batch") -> StoredFile:
    return StoredFile(name, owner, f"{name}.jsonl", purpose, size, 1, 100)


def batch(name: str, owner: str = "a", input_file_id: str = "in", made: int = 1) -> BatchObject:
    return BatchObject(name, owner, "/v1/completions", input_file_id, "24h", made, made + 86400)
