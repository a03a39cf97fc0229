"""Splitting of calls of routes besides chat and completions, and which of them must not be split.

Responses and messages take kv_transfer_params at the top and answer with it, as chat does, so a forwarder whose
engines speak by that field alone can split them (`splits` declares it). What is not as in chat:

    /v1/responses   the limit is max_output_tokens; prefill must not keep what it answered;
                    an engine keeps responses to itself, so what goes on with one stays there;
                    tools that the engine itself runs make several prompts of one call
    /v1/messages    nothing: the limit is max_tokens, and a thinking budget above it is allowed
                    where do_remote_decode is set

How calls of tokens are split is in token_calls.py.

Source: vLLM 0.32.0, entrypoints/openai/responses/protocol.py (ResponsesRequest), serving.py
(_generate_with_builtin_tools), anthropic/protocol.py (AnthropicMessagesRequest).
"""

from typing import Any, Final

import msgspec

from pdgate.forwarders import token_calls
from pdgate.forwarders.base import Forwarder, Leg
from pdgate.protocols import response_id
from pdgate.protocols.apis import GENERATE, RESPONSES
from pdgate.protocols.call import Call
from pdgate.protocols.fields import MOST_LIST_BYTES

ROUTE: Final = "route"
STORED: Final = "stored response"
BACKGROUND: Final = "background"
ENGINES_TOOLS: Final = "tools of the engine"

_OUR_TOOLS: Final = ("function", "custom")
"""Types of tools that the client runs."""


def why_whole(forwarder: Forwarder, call: Call) -> str | None:
    """Why a call of these routes must stay with one engine; None if it may be split."""
    if call.path not in forwarder.splits:
        return ROUTE
    if call.path == GENERATE:
        return token_calls.why_whole(call)
    if call.path != RESPONSES:
        return None
    if call.value("previous_response_id") is not None:
        return STORED
    if call.value("background"):
        return BACKGROUND
    return (
        ENGINES_TOOLS
        if _engine_runs_tools(call.value("tools", most_bytes=MOST_LIST_BYTES))
        else None
    )


def named(leg: Leg, call: Call) -> Leg:
    """The leg that answers, with an id for the response by which it can be found again.

    What the client names itself, or does not want kept, stays as it is.
    """
    if call.path != RESPONSES or leg.passed is not None:
        return leg
    if call.value("store", True) is False or call.value("request_id") is not None:
        return leg
    body = {**leg.body, "request_id": response_id.new(leg.to.id, call.model)}
    return msgspec.structs.replace(leg, body=body)


def _engine_runs_tools(tools: Any) -> bool:
    if not isinstance(tools, list):
        return False
    return any(isinstance(tool, dict) and tool.get("type") not in _OUR_TOOLS for tool in tools)
