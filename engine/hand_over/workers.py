"""Which workers of which engines live behind a Mooncake bootstrap address. Pure.

    POST /register  {"engine_id", "dp_rank", "tp_rank", "pp_rank", "addr"}  ->  {"status": "ok"}
    GET /query      {"<dp>": {"engine_id": ..., "worker_addr": {"<tp>": {"<pp>": addr}}}}

A rank has one engine and each of its workers one address for the life of the server, so a
worker that registers again must say the same; a lost answer makes it do so.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_utils.py,
MooncakeBootstrapServer.
"""

import threading

import msgspec

Table = dict[str, dict[str, object]]


class Worker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`addr` is "tcp://host:port"."""

    engine_id: str
    dp_rank: int
    tp_rank: int
    pp_rank: int
    addr: str


class Contradiction(ValueError):
    """Somebody else is registered there."""


class Workers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[int, str] = {}
        self._workers: dict[tuple[int, int, int], str] = {}

    def register(self, worker: Worker) -> None:
        """Raises Contradiction."""
        place = (worker.dp_rank, worker.tp_rank, worker.pp_rank)
        with self._lock:
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
        """As /query answers it: JSON has no numbers for keys."""
        with self._lock:
            by_dp: dict[int, dict[str, dict[str, str]]] = {}
            for (dp_rank, tp_rank, pp_rank), addr in self._workers.items():
                by_tp = by_dp.setdefault(dp_rank, {})
                by_tp.setdefault(str(tp_rank), {})[str(pp_rank)] = addr
            return {
                str(dp_rank): {"engine_id": self._engines[dp_rank], "worker_addr": by_tp}
                for dp_rank, by_tp in by_dp.items()
            }
