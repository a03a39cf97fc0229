"""Prefill's answer in vllm-nixl: where its blocks are.

vLLM's scheduler has to give it, in another process than that of the hand-over, and a moment
before the worker holds the blocks. So the worker hands over a form, once, when both start;
for each request it is filled in.

Source: vLLM 0.32.0, v1/engine/core.py: get_handshake_metadata() of each worker's connector
reaches set_xfer_handshake_metadata() of the scheduler's.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Form = Mapping[str, Any]

NO_FORM: Final[Form] = {}
"""Our address was not given: then there is no answer either."""


def filled(
    form: Form, request_id: str, block_ids: Sequence[int], tokens: int, cached_tokens: int
) -> dict[str, Any] | None:
    """`cached_tokens`: how many of the leading `tokens` prefill had in its cache."""
    if not form:
        return None
    return {
        **form,
        "remote_request_id": request_id,
        "remote_block_ids": [list(block_ids)],
        "remote_num_tokens": tokens,
        "remote_prefill_cached_tokens": cached_tokens,
    }
