"""Both legs of a call, sent to the engines without a gateway, so that they can be mixed up.

Ours (vllm-kvt) knows a call by its X-Request-Id, which both legs carry.

Sources: vLLM 0.32.0, vllm/distributed/kv_transfer/kv_connector/v1/: nixl/, and
mooncake/mooncake_connector.py with its bootstrap server's GET /query.
"""

import json
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.end_to_end.vllm.asking import GREEDY, Said, client, complete
from tests.end_to_end.vllm.engines import MOONCAKE, NIXL, Pair

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Left:
    """What leads D to the KV of a prompt."""

    params: Params
    call_id: str


def prefill(pair: Pair, tokens: list[int]) -> Left:
    """Has P read a prompt."""
    if pair.transfer is NIXL:
        return prefill_by_nixl(pair, tokens)
    told = {"do_remote_decode": True, "do_remote_prefill": False}
    call_id = uuid.uuid4().hex
    if pair.transfer is MOONCAKE:
        transfer = {"transfer_id": uuid.uuid4().hex}
        _ask(pair, tokens, {**told, **transfer}, call_id)
        receive = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_engine_id": _engine_id(pair),
            "remote_bootstrap_addr": f"http://{pair.prefill_kv}",
        }
        return Left({**receive, **transfer}, call_id)
    # Both wishes named would be vllm-nixl.
    _ask(pair, tokens, {"do_remote_decode": True}, call_id)
    return Left({"do_remote_prefill": True, **asking(pair)}, call_id)


def prefill_by_nixl(pair: Pair, tokens: list[int]) -> Left:
    """P's answer leads to it; our own connector gives one too."""
    call_id = uuid.uuid4().hex
    answer = _ask(pair, tokens, {"do_remote_decode": True, "do_remote_prefill": False}, call_id)
    return Left(answer.model_extra["kv_transfer_params"], call_id)


def asking(pair: Pair) -> Params:
    """Where D can ask our own connector's P; alone, it makes D ask for the prefill too."""
    host, port = pair.prefill_kv.rsplit(":", 1)
    return {"remote_host": host, "remote_port": int(port)}


def decode(pair: Pair, tokens: list[int], left: Left) -> Said:
    """Has D answer a prompt with the KV that `left` leads to."""
    extra = {**GREEDY["extra_body"], "kv_transfer_params": left.params}
    with client(pair.decode.url) as asked:
        headers = {"X-Request-Id": left.call_id}
        return complete(asked, tokens, extra_body=extra, extra_headers=headers)


def _ask(pair: Pair, tokens: list[int], params: Params, call_id: str) -> Any:
    extra = {"min_tokens": 1, "kv_transfer_params": params}
    one_token = {**GREEDY, "max_tokens": 1, "extra_body": extra}
    headers = {"X-Request-Id": call_id}
    with client(pair.prefill.url) as asked:
        return asked.completions.create(**one_token, prompt=tokens, extra_headers=headers)


def _engine_id(pair: Pair) -> str:
    with urllib.request.urlopen(f"http://{pair.prefill_kv}/query", timeout=10) as answer:
        ranks = json.load(answer)
    engine_id: str = ranks["0"]["engine_id"]
    return engine_id
