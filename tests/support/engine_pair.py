"""Two fake engines and the legs that a gateway would send them, in every dialect."""

import contextlib
import json
import urllib.request
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from pdgate.engine.connector import Arrival, Connector
from pdgate.protocols.dialects import lmdeploy
from pdgate.protocols.dialects.tensorrt_llm import FIRST_ID
from tests.support.fake_core import SECONDS, FakeCore

PROMPT = tuple(range(100, 108))
"""Eight tokens: two blocks, of which decode loads seven tokens."""
P_BLOCKS, D_BLOCKS = (9, 2), (4, 5)


def arrival(
    id: str = "r1",
    wire_id: str = "w1",
    prompt: tuple[int, ...] = PROMPT,
    params: dict[str, Any] | None = None,
    **body: Any,
) -> Arrival:
    return Arrival(id, wire_id, prompt, params, body)


class Pair:
    """Two engines, and how each leg looks in one dialect."""

    def __init__(self, dialect: str, backend: str, **options: Any) -> None:
        self.protocol = dialect.split()[0]
        self.dialect = dialect
        self._stack = contextlib.ExitStack()
        self.p = self._engine(backend, "prefill", **options)
        peer = f"127.0.0.1:{self.p.settings.api_port}" if dialect.endswith("static") else ""
        self.d = self._engine(backend, "decode", peer=peer, **options)
        self.join(self.d)

    def _engine(self, backend: str, role: str, **options: Any) -> FakeCore:
        return self._stack.enter_context(closing(FakeCore(backend, self.protocol, role, **options)))

    def close(self) -> None:
        self._stack.close()

    def join(self, decode: FakeCore) -> None:
        """So that calls may cross from prefill to this engine; most protocols need no word of it.

        A gateway looks first whether they fit, and does not join all that engines would read.
        """
        if self.dialect == "lmdeploy":
            join(self.p.connector, P_URL, decode.connector)

    @property
    def serial(self) -> bool:
        return self.dialect in SERIAL

    def to_prefill(self, n: int = 1, prompt: tuple[int, ...] = PROMPT) -> Arrival:
        make = partial(arrival, f"p{n}", prompt=prompt)
        match self.dialect:
            case "vllm-nixl" | "vllm-mooncake b" | "vllm-mooncake c" | "vllm-kvt staged":
                return make(params={"do_remote_decode": True, "do_remote_prefill": False})
            case "vllm-mooncake a":
                nulls = dict.fromkeys(
                    ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
                )
                return make(params={"do_remote_decode": True, "do_remote_prefill": False, **nulls})
            case "vllm-mooncake d":
                return make(
                    wire_id="", params={"do_remote_decode": True, "transfer_id": f"xfer-{n}"}
                )
            case "neuron static":
                return make(wire_id=f"cmpl-{n}")
            case "neuron":
                return make(wire_id=f"cmpl-{n}_127.0.0.1:{self.d.settings.api_port}")
            case "sglang":
                return make(**self._room(n))
            case "offload-p2p":
                return make(params={"remote_decoder": {"kv_request_id": f"w{n}"}})
            case "tpu":
                return make()
            case "mori-io" | "mori-io write":
                return make(params={"do_remote_decode": True, "transfer_id": f"tx-{n}"})
            case "lmdeploy":
                return make(with_cache=True, preserve_cache=True, session_id=n)
            case "tensorrt-llm" | "tensorrt-llm together":
                ids = {"disagg_request_id": FIRST_ID + n, "schedule_style": int(not self.serial)}
                return make(disaggregated_params={"request_type": "context_only", **ids})
        raise AssertionError(self.dialect)

    def to_decode(
        self, answer: Any = None, n: int = 1, prompt: tuple[int, ...] = PROMPT
    ) -> Arrival:
        make = partial(arrival, f"d{n}", prompt=prompt)
        host, port = self.p.connector.kv_address
        receive = {"do_remote_decode": False, "do_remote_prefill": True}
        match self.dialect:
            case "vllm-nixl" | "vllm-mooncake a" | "tpu" | "mori-io":
                return make(params=answer)
            case "lmdeploy":
                peer = {"remote_engine_id": P_URL, "remote_session_id": n}
                blocks, token = answer["cache_block_ids"], answer["remote_token_ids"][-1]
                found = {**peer, "remote_block_ids": blocks, "remote_token_id": token}
                return make(migration_request=found)
            case "tensorrt-llm":
                params = {**answer, "request_type": "generation_only", "schedule_style": 0}
                return make(disaggregated_params=params)
            case "tensorrt-llm together":
                params = {
                    "request_type": "generation_only",
                    "ctx_request_id": FIRST_ID + n,
                    "schedule_style": 1,
                    "ctx_info_endpoint": f"tcp://{host}:{port}",
                }
                return make(disaggregated_params=params)
            case "mori-io write":
                where = {"remote_host": host, "remote_handshake_port": port}
                return make(params={"do_remote_prefill": True, "transfer_id": f"tx-{n}", **where})
            case "offload-p2p":
                where = {"remote_host": host, "remote_port": port}
                return make(params={"remote_prefiller": {"kv_request_id": f"w{n}", **where}})
            case "vllm-mooncake b":
                return make(
                    params={
                        **receive,
                        "bootstrap_server_host": host,
                        "bootstrap_server_port": port,
                    }
                )
            case "vllm-mooncake c":
                return make(params={**receive, **self._bootstrap(), "remote_dp_rank": 0})
            case "vllm-mooncake d":
                ids = {"transfer_id": f"xfer-{n}"}
                return make(wire_id="other", params={**receive, **self._bootstrap(), **ids})
            case "vllm-kvt staged":
                return make(
                    params={"remote_host": host, "remote_port": port, "do_remote_prefill": True}
                )
            case "vllm-kvt batch":
                return make(params={"remote_host": host, "remote_port": port})
            case "neuron static":
                return make(wire_id=f"cmpl-{n}")
            case "neuron":
                return make(wire_id=f"cmpl-{n}_127.0.0.1:{self.p.settings.api_port}")
            case "sglang":
                return make(**self._room(n))
        raise AssertionError(self.dialect)

    def _room(self, n: int) -> dict[str, Any]:
        host, port = self.p.connector.kv_address
        return {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": n}

    def _bootstrap(self) -> dict[str, Any]:
        host, port = self.p.connector.kv_address
        url = f"http://{host}:{port}"
        with urllib.request.urlopen(f"{url}/query", timeout=SECONDS) as response:
            engine_id = json.load(response)["0"]["engine_id"]
        return {"remote_bootstrap_addr": url, "remote_engine_id": engine_id}


DIALECTS = [
    "vllm-nixl",
    "vllm-mooncake a",
    "vllm-mooncake b",
    "vllm-mooncake c",
    "vllm-mooncake d",
    "vllm-kvt staged",
    "vllm-kvt batch",
    "neuron",
    "neuron static",
    "sglang",
    "offload-p2p",
    "tpu",
    "tensorrt-llm",
    "tensorrt-llm together",
    "mori-io",
    "mori-io write",
    "lmdeploy",
]
SERIAL = (
    "vllm-nixl", "vllm-mooncake a", "vllm-kvt staged", "tpu", "tensorrt-llm", "mori-io", "lmdeploy",
)  # fmt: skip
"""Decode is asked with what prefill has answered."""
KEEPS_ALL = ("tpu",)
"""Prefill needs no word of the gateway to keep a prompt."""
TWO_LEGGED = [dialect for dialect in DIALECTS if dialect != "vllm-kvt batch"]
AT_ONCE = [d for d in TWO_LEGGED if d not in SERIAL]
WITH_FIRST_TOKEN = [
    "neuron", "neuron static", "sglang", "tensorrt-llm", "tensorrt-llm together", "lmdeploy",
]  # fmt: skip
"""Prefill samples the first token of the answer, and decode goes on behind it."""

P_URL = "http://127.0.0.1:8100"


def join(prefill: Connector, url: str, decode: Connector) -> None:
    """As a gateway joins an LMDeploy pair; of decode's half prefill needs nothing."""
    said = prefill.routes()[lmdeploy.INITIALIZE]({"remote_engine_id": "d"})
    where = {f"remote_{name}": found for name, found in said.items() if name != "status"}
    decode.routes()[lmdeploy.CONNECT]({"remote_engine_id": url, **where})


Start = Callable[..., Pair]
"""(dialect, **options of FakeCore); what it starts is closed for the test."""


def prefill(pair: Pair, n: int = 1, **more: Any) -> Any:
    """What prefill answers; nothing where decode is the one to ask it."""
    if pair.dialect == "vllm-kvt batch":
        return None
    return pair.p.prefill(pair.to_prefill(n), P_BLOCKS, **more)
