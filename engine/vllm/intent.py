"""Intent of a request for the hand-over, as far as vLLM's scheduler has to know. Pure.

Only the kind is decided here, in a way that no JSON can break. Whether the rest of the
params makes sense is found out by the protocol (hand_over/), on the worker's side, where
a bad request can be failed alone; vLLM's scheduler could only compute it or die.

Request ids, vLLM 0.32.0, entrypoints/openai and v1/engine/{input_processor,
parallel_sampling}.py; r is the X-Request-Id:

    cmpl-<r>-<prompt index>[-<8 hex>]     /v1/completions
    chatcmpl-<r>[-<8 hex>]                /v1/chat/completions
    <choice>_<one of these>               n > 1

The hex part is random in each engine, unless VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from pdgate.protocols.dialects import decode_first

PREFILL_ID: Final = "pdgate_prefill"
"""In kv_transfer_params: this is the prefill that we asked ourselves for, under this id."""

LENT: Final = "pdgate_lent"
"""In kv_transfer_params, beside PREFILL_ID: so many tokens of the prompt's beginning can be read instead of computed. By whom and
where, the worker knows that was asked; so a client that forges this has its own prompt computed after a load that fails.
"""

_ID = re.compile(
    r"(?:(?P<choice>\d+)_)?"
    r"(?:cmpl-(?P<text>.+?)-(?P<prompt>\d+)|chatcmpl-(?P<chat>.+?))"
    r"(?:-[0-9a-f]{8})?"
)
_RANDOM_END = re.compile(r"-[0-9a-f]{8}$")


class Intent(StrEnum):
    NOTHING = "nothing"
    HOLD = "hold"
    FETCH = "fetch"
    """A peer has computed it already, under our request id."""
    DELEGATE = "delegate"
    """We have a peer compute it."""


def intent(params: object) -> Intent:
    """A request that wants both, or makes no sense, is a fetch that is going to fail."""
    if not isinstance(params, Mapping) or not params:
        return Intent.NOTHING
    if params.get("do_local_prefill") is True or params.get("ali_llumnix_disagg") is False:
        return Intent.NOTHING
    if params.get("do_remote_decode"):
        return Intent.HOLD
    if params.get("do_remote_prefill"):
        return Intent.FETCH
    if params.get("remote_host") is not None or params.get(decode_first.ASK):
        return Intent.DELEGATE
    return Intent.NOTHING


def speaks_nixl(params: Mapping[str, Any]) -> bool:
    """Whether this is vllm-nixl: both sides' params name both wishes, and vllm-kvt's never do.

    Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py.
    """
    return "do_remote_decode" in params and "do_remote_prefill" in params


def wire_id(request_id: str) -> str:
    """What both engines make of their own ids of one request: X-Request-Id, mostly.

    The second prompt of a list and the second choice are requests of their own.
    """
    found = _ID.fullmatch(request_id)
    if found is None:
        return _RANDOM_END.sub("", request_id)
    name = found["text"] or found["chat"]
    places = [found["prompt"] or "0", found["choice"] or "0"]
    return name if places == ["0", "0"] else f"{name}#{'.'.join(places)}"


def lent_tokens(params: Mapping[str, Any], prompt_tokens: int) -> int:
    """How many of a prompt's tokens can be read of who asked for this prefill; 0 for none."""
    found = params.get(LENT)
    if prefill_id(params) is None or not isinstance(found, int) or isinstance(found, bool):
        return 0
    return found if 0 < found < prompt_tokens else 0


def prefill_id(params: Mapping[str, Any]) -> str | None:
    found = params.get(PREFILL_ID)
    return found if isinstance(found, str) else None
