"""Workers of the engines behind a Mooncake bootstrap address. Pure.

    POST /register  {"engine_id", "dp_rank", "tp_rank", "pp_rank", "addr"}  ->  {"status": "ok"}
    GET /query      {"<dp>": {"engine_id": ..., "worker_addr": {"<tp>": {"<pp>": addr}}}}

A rank has one engine and each of its workers one address for the life of the server, so a
worker that registers again must say the same; a lost answer makes it do so.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_utils.py,
MooncakeBootstrapServer.
"""

import threading
from typing import Final

import msgspec

MAX_RANK: Final = 1023
MAX_ID: Final = 128
MAX_WORKERS: Final = 4096

Table = dict[str, dict[str, object]]


class BootstrapWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`addr` is "tcp://host:port"."""

    engine_id: str
    dp_rank: int
    tp_rank: int
    pp_rank: int
    addr: str

    @property
    def fits(self) -> bool:
        """But for the address."""
        ranks = (self.dp_rank, self.tp_rank, self.pp_rank)
        return all(0 <= rank <= MAX_RANK for rank in ranks) and 0 < len(self.engine_id) <= MAX_ID


class Contradiction(ValueError):
    """Another worker is registered there, or too many are."""


class BootstrapWorkers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[int, str] = {}
        self._workers: dict[tuple[int, int, int], str] = {}

    def register(self, worker: BootstrapWorker) -> None:
        """Raises Contradiction."""
        place = (worker.dp_rank, worker.tp_rank, worker.pp_rank)
        with self._lock:
            if place not in self._workers and len(self._workers) >= MAX_WORKERS:
                raise Contradiction(f"{MAX_WORKERS} workers are registered already")
            engine_id = self._engines.setdefault(worker.dp_rank, worker.engine_id)
            if engine_id != worker.engine_id:
                raise Contradiction(
                    f"Engine ID mismatch for dp_rank={worker.dp_rank}: "
                    f"expected {engine_id}, got {worker.engine_id}"
                )
            addr = self._workers.setdefault(place, worker.addr)
            if addr != worker.addr:
                raise Contradiction(
                    f"Worker with dp_rank={worker.dp_rank}, tp_rank={worker.tp_rank}, "
                    f"pp_rank={worker.pp_rank} is already registered at {addr}, but still "
                    f"want to register at {worker.addr}"
                )

    def table(self) -> Table:
        """Table as /query answers it: JSON has no numbers for keys."""
        with self._lock:
            by_dp: dict[int, dict[str, dict[str, str]]] = {}
            for (dp_rank, tp_rank, pp_rank), addr in self._workers.items():
                by_tp = by_dp.setdefault(dp_rank, {})
                by_tp.setdefault(str(tp_rank), {})[str(pp_rank)] = addr
            return {
                str(dp_rank): {"engine_id": self._engines[dp_rank], "worker_addr": by_tp}
                for dp_rank, by_tp in by_dp.items()
            }
