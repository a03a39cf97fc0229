"""What it costs P to write a prompt's KV into D while it computes: python -m ...measure_mover

    P (threads) -.
                  >-- D     the same calls to both in turn, so that a busy machine is busy for both
    P (process) -'

For each backend and mover, medians over ROUNDS prompts, of a model that is large enough for
its transfer to be seen:

    prefill    P's own time for a prompt, from its first step to its first token
      alone    nobody wants the KV
      pushed   layer by layer while it is computed (vllm-kvt batch)
    transfer   what D waits for the same KV when P has it already (vllm-kvt staged)
    hidden     share of that which D does not wait for in batch, after P's own time and what a
               prompt of two blocks waits on top of it

Needs run.sh's environment; see docs/vllm-connector.md for figures.
"""

import json
import os
import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.end_to_end.vllm.asking import GREEDY, client, complete, prompt
from tests.end_to_end.vllm.engines import Engine, Fleet, pdgate_over, ready
from tests.end_to_end.vllm.metrics import metric, settles
from tests.support.ports import LOOPBACK, free_port

ROUNDS: Final = 9
TOKENS: Final = 1024
FEW_TOKENS: Final = 64
BACKENDS: Final = ("tcp", "shm")
MOVERS: Final = ("threads", "process")

LARGER: Final = {
    "num_hidden_layers": 16,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
"""64 KiB of KV in a layer's block of K, as much of V: 64 MiB for TOKENS."""


@dataclass(frozen=True)
class Prefill:
    engine: Engine
    kv_port: int


@dataclass(frozen=True)
class Took:
    """Seconds. `waited`: D, for its load."""

    prefill: float
    waited: float


class Trio:
    def __init__(self, fleet: Fleet, backend: str, stack: ExitStack) -> None:
        flags = ["--load-format", "dummy", "--hf-overrides", json.dumps(LARGER)]
        starting = {}
        for name in (*MOVERS, "decode"):
            port, kv_port = free_port(), free_port()
            transfer = pdgate_over(backend, mover="process" if name == "decode" else name)
            role = "kv_consumer" if name == "decode" else "kv_producer"
            more = [*transfer.flags(role, port, kv_port), *flags]
            process = fleet.start(stack, f"measured-{backend}-{name}", port, more)
            starting[name] = process, port, kv_port
        up = {name: Prefill(ready(p, port), kv) for name, (p, port, kv) in starting.items()}
        self.decode = up.pop("decode").engine
        self.prefills = up

    def alone(self, mover: str, tokens: list[int]) -> float:
        return self._prefill_seconds(mover, lambda: self._ask(mover, tokens, {}))

    def batch(self, mover: str, tokens: list[int]) -> Took:
        return self._decoded(mover, tokens, {}, uuid.uuid4().hex)

    def staged(self, mover: str, tokens: list[int]) -> Took:
        call_id = uuid.uuid4().hex
        self._ask(mover, tokens, {"do_remote_decode": True}, call_id)
        return self._decoded(mover, tokens, {"do_remote_prefill": True}, call_id)

    def _decoded(self, mover: str, tokens: list[int], more: dict[str, Any], call_id: str) -> Took:
        params = {"remote_host": LOOPBACK, "remote_port": self.prefills[mover].kv_port, **more}
        waited, ended = self._loads()
        seconds = self._prefill_seconds(
            mover, lambda: self._complete(self.decode, tokens, params, call_id), new=not more
        )
        assert settles(lambda: self._loads()[1] == ended + 1)
        return Took(seconds, self._loads()[0] - waited)

    def _loads(self) -> tuple[float, float]:
        seconds = metric(self.decode, "vllm:pdgate_seconds_total")
        return seconds, metric(self.decode, "vllm:pdgate_transfers_total")

    def _prefill_seconds(self, mover: str, act: Any, *, new: bool = True) -> float:
        engine = self.prefills[mover].engine
        name = "vllm:request_prefill_time_seconds"
        count, total = metric(engine, f"{name}_count"), metric(engine, f"{name}_sum")
        act()
        assert settles(lambda: metric(engine, f"{name}_count") == count + new)
        return metric(engine, f"{name}_sum") - total

    def _ask(self, mover: str, tokens: list[int], params: Any, call_id: str = "") -> None:
        self._complete(self.prefills[mover].engine, tokens, params, call_id or uuid.uuid4().hex)

    @staticmethod
    def _complete(engine: Engine, tokens: list[int], params: Any, call_id: str) -> None:
        extra = {**GREEDY["extra_body"], "kv_transfer_params": params or None}
        headers = {"X-Request-Id": call_id}
        with client(engine.url) as asked:
            complete(asked, tokens, max_tokens=1, extra_body=extra, extra_headers=headers)


def measure(trio: Trio, backend: str) -> None:
    seen: dict[str, dict[str, list[float]]] = {mover: {} for mover in MOVERS}

    def note(mover: str, what: str, seconds: float) -> None:
        seen[mover].setdefault(what, []).append(seconds)

    for number in range(-1, ROUNDS):
        for mover in MOVERS:

            def fresh(length: int, why: str, mover: str = mover, number: int = number) -> list[int]:
                return prompt(length, f"{backend} {mover} {number} {why}")

            alone = trio.alone(mover, fresh(TOKENS, "alone"))
            pushed = trio.batch(mover, fresh(TOKENS, "pushed"))
            few = trio.batch(mover, fresh(FEW_TOKENS, "few"))
            staged = trio.staged(mover, fresh(TOKENS, "staged"))
            if number < 0:
                continue
            note(mover, "alone", alone)
            note(mover, "pushed", pushed.prefill)
            note(mover, "transfer", staged.waited)
            note(mover, "seen", pushed.waited - pushed.prefill - (few.waited - few.prefill))
    for mover in MOVERS:
        of = {what: median(seconds) for what, seconds in seen[mover].items()}
        hidden = 1 - of["seen"] / of["transfer"]
        figures = "  ".join(f"{what} {1000 * of[what]:7.1f} ms" for what in of)
        print(f"{backend:4} {mover:8} {figures}  hidden {hidden:5.2f}", flush=True)


def main() -> None:
    venv, model, logs = (os.environ[f"PDGATE_VLLM_{what}"] for what in ("VENV", "MODEL", "LOGS"))
    for backend in sys.argv[1:] or BACKENDS:
        with ExitStack() as stack:
            measure(Trio(Fleet(Path(venv), Path(model), Path(logs)), backend, stack), backend)


if __name__ == "__main__":
    main()
