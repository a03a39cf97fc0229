"""What it costs P to write a prompt's KV into D while it computes: python -m ...measure_mover

    P (threads) -.
                  >-- D     the same calls to both in turn, so that a busy machine is busy for both
    P (process) -'

For each backend and mover, medians over ROUNDS prompts, of a model that is large enough for
its transfer to be seen:

    alone      P's own time for a prompt, from its first step to its first token, that nobody
               wants the KV of, while D waits for a load from somebody who says nothing: D's
               engine steps on meanwhile, which counts on a machine that has few cores
    pushed     the same time while P writes layer by layer (vllm-kvt batch)
    transfer   what D waits for the same KV when P has it already (vllm-kvt staged)

Needs run.sh's environment, without its pytest; figures are in docs/vllm-connector.md.
"""

import json
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.end_to_end.vllm.asking import ASK_SECONDS, GREEDY, client, complete, prompt
from tests.end_to_end.vllm.engines import Engine, Fleet, fleet_of, pdgate_over, ready
from tests.end_to_end.vllm.metrics import Counted, metric, settles
from tests.support.ports import LOOPBACK, free_port

ROUNDS: Final = 7
TOKENS: Final = 1024
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
        with self._decode_waiting(tokens):
            return self._prefill_seconds(mover, lambda: self._ask(mover, tokens, {}))

    def pushed(self, mover: str, tokens: list[int]) -> float:
        return self._prefill_seconds(mover, lambda: self._decode(mover, tokens, {}))

    def transfer(self, mover: str, tokens: list[int]) -> float:
        call_id = uuid.uuid4().hex
        self._ask(mover, tokens, {"do_remote_decode": True}, call_id)
        before = Counted.by(self.decode)
        self._decode(mover, tokens, {"do_remote_prefill": True}, call_id)
        assert settles(lambda: (Counted.by(self.decode) - before).transfers == 1)
        return (Counted.by(self.decode) - before).seconds

    @contextmanager
    def _decode_waiting(self, tokens: list[int]) -> Iterator[None]:
        """For a prefill of a peer that takes its call and says nothing, until the block ends."""
        with socket.create_server((LOOPBACK, 0)) as silent, ThreadPoolExecutor(1) as beside:
            silent.settimeout(ASK_SECONDS)
            params = {"remote_host": LOOPBACK, "remote_port": silent.getsockname()[1]}
            asking = beside.submit(self._complete, self.decode, tokens, params, uuid.uuid4().hex)
            hung, _ = silent.accept()
            with hung:
                yield
            asking.result()

    def _prefill_seconds(self, mover: str, act: Callable[[], None]) -> float:
        engine = self.prefills[mover].engine
        name = "vllm:request_prefill_time_seconds"
        count, total = metric(engine, f"{name}_count"), metric(engine, f"{name}_sum")
        act()
        assert settles(lambda: metric(engine, f"{name}_count") == count + 1)
        return metric(engine, f"{name}_sum") - total

    def _decode(
        self, mover: str, tokens: list[int], more: Mapping[str, Any], call_id: str = ""
    ) -> None:
        params = {"remote_host": LOOPBACK, "remote_port": self.prefills[mover].kv_port, **more}
        self._complete(self.decode, tokens, params, call_id or uuid.uuid4().hex)

    def _ask(
        self, mover: str, tokens: list[int], params: Mapping[str, Any], call_id: str = ""
    ) -> None:
        self._complete(self.prefills[mover].engine, tokens, params, call_id or uuid.uuid4().hex)

    @staticmethod
    def _complete(
        engine: Engine, tokens: list[int], params: Mapping[str, Any], call_id: str
    ) -> None:
        extra = {**GREEDY["extra_body"], "kv_transfer_params": params or None}
        headers = {"X-Request-Id": call_id}
        with client(engine.url) as asked:
            complete(asked, tokens, max_tokens=1, extra_body=extra, extra_headers=headers)


def measure(trio: Trio, backend: str) -> None:
    took: dict[tuple[str, str], list[float]] = {}
    acts = {"alone": trio.alone, "pushed": trio.pushed, "transfer": trio.transfer}
    # The first round is to warm up.
    for number in range(ROUNDS + 1):
        for mover in MOVERS:
            for what, act in acts.items():
                seconds = act(mover, prompt(TOKENS, f"{backend} {mover} {number} {what}"))
                took.setdefault((mover, what), []).append(seconds)
    for mover in MOVERS:
        of = {what: took[mover, what][1:] for what in acts}
        slower = median(b / a for a, b in zip(of["alone"], of["pushed"], strict=True))
        figures = "  ".join(f"{what} {1000 * median(of[what]):7.1f} ms" for what in acts)
        print(f"{backend:4} {mover:8} {figures}  pushed/alone {slower:5.2f}", flush=True)


def main() -> None:
    venv, model, logs = (Path(os.environ[f"PDGATE_VLLM_{it}"]) for it in ("VENV", "MODEL", "LOGS"))
    for backend in sys.argv[1:] or BACKENDS:
        with ExitStack() as stack:
            fleet = stack.enter_context(fleet_of(venv, model, logs))
            measure(Trio(fleet, backend, stack), backend)


if __name__ == "__main__":
    main()
