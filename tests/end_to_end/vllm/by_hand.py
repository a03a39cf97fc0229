"""Both legs of a call, sent to the engines without a gateway, so that they can be mixed up.

Sources: vLLM 0.32.0, vllm/distributed/kv_transfer/kv_connector/v1/: nixl/, and
mooncake/mooncake_connector.py with its bootstrap server's GET /query.
"""

import json
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any

from tests.end_to_end.vllm.asking import GREEDY, Said, client, complete
from tests.end_to_end.vllm.engines import MOONCAKE, Pair

Params = Mapping[str, Any]


def prefill(pair: Pair, tokens: list[int]) -> Params:
    """Has P read a prompt; what D has to be told to get at its KV."""
    told = {"do_remote_decode": True, "do_remote_prefill": False}
    if pair.transfer is MOONCAKE:
        transfer = {"transfer_id": uuid.uuid4().hex}
        _ask(pair, tokens, {**told, **transfer})
        return {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_engine_id": _engine_id(pair),
            "remote_bootstrap_addr": f"http://{pair.prefill_kv}",
            **transfer,
        }
    left: Params = _ask(pair, tokens, told).model_extra["kv_transfer_params"]
    return left


def decode(pair: Pair, tokens: list[int], params: Params) -> Said:
    """Has D answer a prompt with the KV that `params` lead to."""
    extra = {**GREEDY["extra_body"], "kv_transfer_params": params}
    with client(pair.decode.url) as asked:
        return complete(asked, tokens, extra_body=extra)


def _ask(pair: Pair, tokens: list[int], params: Params) -> Any:
    extra = {"min_tokens": 1, "kv_transfer_params": params}
    one_token = {**GREEDY, "max_tokens": 1, "extra_body": extra}
    with client(pair.prefill.url) as asked:
        return asked.completions.create(**one_token, prompt=tokens)


def _engine_id(pair: Pair) -> str:
    with urllib.request.urlopen(f"http://{pair.prefill_kv}/query", timeout=10) as answer:
        ranks = json.load(answer)
    engine_id: str = ranks["0"]["engine_id"]
    return engine_id
