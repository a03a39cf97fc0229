"""Questions through the official `openai` client, asked alike of an engine and of the gateway."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion

from tests.end_to_end.vllm.engines import MODEL

VOCABULARY: Final = 384
FIRST_ORDINARY_TOKEN: Final = 6
ASK_SECONDS: Final = 90

# Long answers tell more; greedy ones are the same everywhere. vLLM's own fields, which the
# client sends along as the gateway has to.
GREEDY: Final[Mapping[str, Any]] = {
    "model": MODEL,
    "max_tokens": 24,
    "temperature": 0,
    "extra_body": {"ignore_eos": True, "return_token_ids": True},
}


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, however it arrived."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    prompt_tokens: int
    call_id: str = ""
    """x-request-id of the response; what the gateway knows the call by."""

    @property
    def answer(self) -> tuple[list[int], str, str | None, int]:
        return self.token_ids, self.text, self.finish_reason, self.prompt_tokens


def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=ASK_SECONDS)


def prompt(length: int, salt: str) -> list[int]:
    """`length` token ids that only `salt` gives, so that no engine has them in its cache."""
    digest = hashlib.shake_256(salt.encode()).digest(2 * length)
    ordinary = VOCABULARY - FIRST_ORDINARY_TOKEN
    pairs = zip(digest[::2], digest[1::2], strict=True)
    return [FIRST_ORDINARY_TOKEN + (256 * high + low) % ordinary for high, low in pairs]


def complete(asked: OpenAI, text: str | list[int], *, stream: bool = False, **more: Any) -> Said:
    """POST /v1/completions."""
    options = {**GREEDY, **more, "prompt": text}
    create = asked.completions.with_raw_response.create
    if stream:
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        raw: Any = create(**options)
        return _joined(raw.parse(), raw.headers, lambda choice: choice.text)
    raw = create(**options)
    whole: Completion = raw.parse()
    choice = whole.choices[0]
    assert whole.usage is not None
    return Said(
        token_ids=_ids(choice),
        text=choice.text,
        finish_reason=choice.finish_reason,
        prompt_tokens=whole.usage.prompt_tokens,
        call_id=raw.headers.get("x-request-id", ""),
    )


def chat(asked: OpenAI, content: str | list[Any], *, stream: bool = False, **more: Any) -> Said:
    """POST /v1/chat/completions."""
    options = {**GREEDY, **more, "messages": [{"role": "user", "content": content}]}
    create = asked.chat.completions.with_raw_response.create
    if stream:
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        raw: Any = create(**options)
        return _joined(raw.parse(), raw.headers, lambda choice: choice.delta.content or "")
    raw = create(**options)
    whole: ChatCompletion = raw.parse()
    choice = whole.choices[0]
    assert whole.usage is not None
    return Said(
        token_ids=_ids(choice),
        text=choice.message.content or "",
        finish_reason=choice.finish_reason,
        prompt_tokens=whole.usage.prompt_tokens,
        call_id=raw.headers.get("x-request-id", ""),
    )


def _joined(chunks: Any, headers: Any, text_of: Any) -> Said:
    ids: list[int] = []
    text = ""
    finish_reason = None
    prompt_tokens = -1
    for chunk in chunks:
        for choice in chunk.choices:
            ids += _ids(choice)
            text += text_of(choice)
            finish_reason = choice.finish_reason or finish_reason
        if chunk.usage is not None:
            prompt_tokens = chunk.usage.prompt_tokens
    return Said(ids, text, finish_reason, prompt_tokens, headers.get("x-request-id", ""))


def _ids(choice: Any) -> list[int]:
    """vLLM's own field, absent from the chunk that only names the role."""
    return (choice.model_extra or {}).get("token_ids") or []
