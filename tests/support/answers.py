"""What engines answer, in OpenAI's shapes, as vLLM 0.32.0 writes them."""

from typing import Any

from pdgate.protocols import sse
from pdgate.protocols.call import CHAT

BLOCKS = {
    "remote_block_ids": [[4, 7]],
    "remote_engine_id": "e1",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "uuid": 77,
    "transfer_id": "tx-7",
}
"""Of all protocols that hand over by kv_transfer_params: each engine reads its own names."""


def whole(
    text: str, *, path: str = CHAT, id: str = "x", finish: str = "stop", **more: Any
) -> dict[str, Any]:
    """A complete JSON answer."""
    said: dict[str, Any]
    said = {"message": {"role": "assistant", "content": text}} if path == CHAT else {"text": text}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
    return {"id": id, "created": 7, "model": "m", "choices": [choice], **more}


def several(answer: dict[str, Any], choices: int = 2) -> dict[str, Any]:
    """The same of as many choices as `n` asked for."""
    (choice,) = answer["choices"]
    return {**answer, "choices": [{**choice, "index": index} for index in range(choices)]}


STATE = {"request_type": "context_only", "ctx_request_id": 1 << 41, "first_gen_tokens": [5]}
"""TensorRT-LLM's, in the choice."""


def prefilled(text: str = "a", **more: Any) -> dict[str, Any]:
    """Prefill's answer, with what each protocol has in it."""
    named: dict[str, Any] = {
        "kv_transfer_params": BLOCKS,
        "cache_block_ids": [4, 7],
        "remote_token_ids": [5],
    }
    answer = whole(text, finish="length", **named, **more)
    answer["choices"][0]["disaggregated_params"] = STATE
    return answer


def opening(id: str = "x") -> bytes:
    """The chunk that engines send before they know whether a chat goes well."""
    return _chat({"role": "assistant", "content": ""}, None, id)


def piece(text: str, finish: str | None = None, *, path: str = CHAT, id: str = "x") -> bytes:
    """One chunk of a stream."""
    if path == CHAT:
        return _chat({"content": text}, finish, id)
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return sse.event({"id": id, "object": "text_completion", "choices": [choice]})


def usage(tokens: int = 3, *, id: str = "x") -> bytes:
    return sse.event({"id": id, "choices": [], "usage": {"completion_tokens": tokens}})


def error(code: int) -> bytes:
    """How vLLM says that a stream failed, its status having gone out as 200."""
    return sse.event({"error": {"message": "no", "type": "t", "param": None, "code": code}})


def streamed(*texts: str, id: str = "x") -> list[bytes]:
    """A whole chat stream, chunk by chunk."""
    return [opening(id), *(piece(t, id=id) for t in texts), piece("", "stop", id=id), sse.DONE]


def _chat(delta: dict[str, Any], finish: str | None, id: str) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return sse.event(
        {
            "id": id,
            "object": "chat.completion.chunk",
            "created": 7,
            "model": "m",
            "choices": [choice],
        }
    )
