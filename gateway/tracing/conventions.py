"""OpenTelemetry's names for what language models are asked and answer, and ours where it has none.

Source: OpenTelemetry semantic conventions for generative AI, opentelemetry-semantic-conventions
0.66b2, gen_ai_attributes.py and gen_ai_metrics.py (all of them still "development"); general ones
from 1.45.2 (server.*, error.type, http.response.status_code, url.path).
"""

from typing import Any, Final
from urllib.parse import urlsplit

from pdgate.protocols.call import CHAT, COMPLETIONS, Call, value
from pdgate.protocols.instance import Instance
from pdgate.protocols.sampling import sampling_of

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
STATUS: Final = "http.response.status_code"
PATH: Final = "url.path"
ERROR_TYPE: Final = "error.type"

SERVED_BY: Final = "pdgate"
"""Which engines answer may change with every call, and the list has no names for them."""

_OPERATIONS: Final = {
    CHAT: "chat",
    COMPLETIONS: "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
}
_NUMBERS: Final = (
    "max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed",
)  # fmt: skip


def operation(route: str) -> str:
    """Operation of a call's route, of which there are few. The conventions allow names of one's own."""
    return _OPERATIONS.get(route, route.rpartition("/")[2])


def asked(call: Call) -> dict[str, Any]:
    """Attributes of a request; nothing of what people wrote."""
    found: dict[str, Any] = {
        OPERATION: operation(call.route),
        PROVIDER: SERVED_BY,
        # Without the query, which may say anything.
        PATH: call.path.partition("?")[0],
        "gen_ai.request.stream": call.streams,
        "pdgate.request_id": call.id,
    }
    if call.model:
        found[REQUEST_MODEL] = call.model
    sampling = sampling_of(call)
    for name in _NUMBERS:
        # Most calls have none of these.
        number = value(sampling, name) if name in sampling else None
        if isinstance(number, int | float) and not isinstance(number, bool):
            found[f"gen_ai.request.{name}"] = number
    if "max_tokens" not in call.body and "max_completion_tokens" in call.body:
        most = call.value("max_completion_tokens")
        if isinstance(most, int):
            found["gen_ai.request.max_tokens"] = most
    return found


def engine(instance: Instance) -> dict[str, Any]:
    """Attributes of the engine that is asked."""
    parts = urlsplit(instance.url)
    return {
        SERVER_ADDRESS: parts.hostname or "",
        SERVER_PORT: parts.port or (443 if parts.scheme == "https" else 80),
        "pdgate.instance": instance.id,
    }
