"""disaggregated_params of TensorRT-LLM: prefill is its context server, decode its generation server.

    to prefill          {request_type: context_only, disagg_request_id, schedule_style}
    prefill's answer    choices[0].disaggregated_params {ctx_request_id, first_gen_tokens, ...}; prompt_token_ids
    to decode           context first: that, as generation_only, with ctx_usage, and the ids as its prompt
                        generation first: only ids, and where prefill is, which its GET /server_info says

Source: NVIDIA/TensorRT-LLM 00bb903, tensorrt_llm/serve/openai_disagg_service.py (_get_ctx_request, _get_gen_request,
_need_gen, _verify_ctx_response); llmapi/disagg_utils.py (get_global_disagg_request_id, MIN_GLOBAL_ID).
"""

from hashlib import blake2b
from typing import Final

from pdgate.protocols.call import Json, parse_object, value
from pdgate.protocols.dialects import handle
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance

FIELD: Final = "disaggregated_params"
TOKENS: Final = "prompt_token_ids"
KEPT_SECONDS: Final = 60.0
"""kv_transfer_timeout_ms of the cache transceiver, as NVIDIA's own configurations have it."""
FIRST_ID: Final = 1 << 40
"""Below are the engines' own ids."""


def id_of(attempt: str) -> int:
    """The same for both legs, and for no other attempt."""
    drawn = int.from_bytes(blake2b(attempt.encode(), digest_size=7).digest())
    return FIRST_ID + drawn


def handed(reply: Json, id: int) -> Json | None:
    """What the gateway sends decode; None if the first token was the last. Raises EngineFailed."""
    choice = handle.only_choice(reply)
    if handle.word(choice, "finish_reason") not in ("length", "not_finished"):
        return None
    params = handle.found(choice, FIELD, "ctx_request_id", "first_gen_tokens")
    mine = {"request_type": "generation_only", "schedule_style": 0, "disagg_request_id": id}
    return {**params, **mine, "ctx_usage": reply.get("usage")}


def expect(id: int, prefill: Instance) -> Json:
    """What the gateway sends decode before prefill has answered. Raises EngineFailed."""
    if not prefill.engine_ids:
        raise EngineFailed("the prefill engine has not said where it is yet", at=prefill.id)
    ids = {"ctx_request_id": id, "disagg_request_id": id, "schedule_style": 1}
    where = prefill.engine_ids[0][1]
    return {"request_type": "generation_only", **ids, "ctx_info_endpoint": where}


def endpoint(server_info: bytes) -> str:
    """Endpoint that a context server says of itself. Raise ValueError."""
    named = value(parse_object(server_info), FIELD, {}).get("ctx_info_endpoint")
    one = named[0] if isinstance(named, list) and named else named
    if isinstance(one, str) and one:
        return one
    raise ValueError(f"no ctx_info_endpoint in its {FIELD}")
