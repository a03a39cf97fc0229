"""Routes besides chat and completions, and what a gateway must know of each of them.

    kind        an engine ...                         runs on
    GENERATES   reads a prompt and writes tokens      as chat does: two engines where they can hand
                                                      its KV over, else one
    READS       reads, and tells what it found        a plain engine
    COUNTS      asks its tokenizer                    any engine of the model
    PASSES      does something that we do not know    a plain engine, else any of the model
    SOUNDS      hears or speaks                       a plain engine; all passes as it came

    shape       an error is                           and in a stream, where no end was seen
    OPENAI      {"error": {...}}                      data: {"error": {...}}, and no data: [DONE]
    RESPONSES   the same                              event: error
    ANTHROPIC   {"type": "error", "error": {...}}     event: error
    NATIVE      as OPENAI; its answers are SGLang's own (native.py)

What ends a stream of each is in endings.py.

Source: vLLM 0.32.0, vllm/entrypoints: openai/responses/api_router.py, anthropic/api_router.py,
pooling/*/api_router.py, serve/tokenize/api_router.py, scale_out/token_in_token_out/. There is no /v1/tokenize.
SGLang at 001067f, srt/entrypoints/http_server.py (generate_request). Sound: vLLM, entrypoints/speech_to_text/,
openai/realtime/; OpenAI API reference, "Audio" and "Realtime".
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
GENERATE: Final = "/inference/v1/generate"
NATIVE: Final = "/generate"


class Kind(StrEnum):
    GENERATES = "generates"
    READS = "reads"
    COUNTS = "counts"
    PASSES = "passes"
    SOUNDS = "sounds"


class Shape(StrEnum):
    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Api:
    """One route, of which POST is a call.

    Attributes:
        summary: For people, in the schema.
        required: Fields without which engines refuse it.
    """

    path: str
    kind: Kind
    summary: str
    shape: Shape = Shape.OPENAI
    required: tuple[str, ...] = ()


_ALL: Final = (
    Api(RESPONSES, Kind.GENERATES, "Response", Shape.RESPONSES, ("input",)),
    Api(MESSAGES, Kind.GENERATES, "Message", Shape.ANTHROPIC, ("messages", "max_tokens")),
    Api(GENERATE, Kind.GENERATES, "Tokens of tokens", required=("token_ids", "sampling_params")),
    Api(NATIVE, Kind.GENERATES, "Outputs of text or tokens, in SGLang's words", Shape.NATIVE),
    Api(f"{MESSAGES}/count_tokens", Kind.COUNTS, "Count", Shape.ANTHROPIC, ("messages",)),
    Api("/v1/embeddings", Kind.READS, "Embeddings"),
    Api("/v2/embed", Kind.READS, "Embeddings, as Cohere asks for them"),
    Api("/pooling", Kind.READS, "Pooled states"),
    Api("/classify", Kind.READS, "Classes"),
    Api("/score", Kind.READS, "Scores of pairs"),
    Api("/v1/score", Kind.READS, "Scores of pairs"),
    Api("/rerank", Kind.READS, "Documents by relevance", required=("query", "documents")),
    Api("/v1/rerank", Kind.READS, "Documents by relevance", required=("query", "documents")),
    Api("/v2/rerank", Kind.READS, "Documents by relevance", required=("query", "documents")),
    Api("/tokenize", Kind.COUNTS, "Tokens of a text"),
    Api("/detokenize", Kind.COUNTS, "Text of tokens", required=("tokens",)),
)

APIS: Final = {api.path: api for api in _ALL}

REALTIME: Final = "/v1/realtime"
SPEECH: Final = "/v1/audio/speech"
SOUNDS: Final = {
    path: Api(path, Kind.SOUNDS, summary, required=required)
    for path, summary, required in (
        ("/v1/audio/transcriptions", "Text of what is said", ("file",)),
        ("/v1/audio/translations", "The same, in English", ("file",)),
        (SPEECH, "Sound of a text", ("input",)),
    )
}
"""Path -> its route; what is sent there is a form mostly, and passes as it came."""
SESSION: Final = Api(REALTIME, Kind.SOUNDS, "Realtime session, a WebSocket")

OTHER: Final = "other"
"""All routes together that are passed through."""

PASSED: Final = Api("", Kind.PASSES, "A route that only engines know")
STORED: Final = Api(RESPONSES, Kind.PASSES, "A response that an engine keeps", Shape.RESPONSES)


def shape_of(path: str) -> Shape:
    """How errors look there."""
    api = APIS.get(path)
    return Shape.OPENAI if api is None else api.shape
