"""Log-probabilities in OpenAI's two shapes."""

from collections.abc import Sequence
from typing import Any

from pdgate.engine.model.tokenizer import Tokenizer
from pdgate.engine.request import Logprob


def for_completion(
    tokenizer: Tokenizer, found: Sequence[tuple[int, Logprob | None]], offset: int
) -> dict[str, Any]:
    """`found` are tokens with theirs, None for a prompt's first; `offset` counts characters.

    OpenAI's schema has numbers only, and its clients check that. A first token was given, not
    predicted, so it is certain: 0.0, where vLLM writes null.
    """
    entries = [entry or Logprob(token, 0.0, ()) for token, entry in found]
    tokens = [tokenizer.token(token) for token, _ in found]
    offsets = []
    for text in tokens:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_top(tokenizer, entry) for entry in entries],
        "text_offset": offsets,
    }


def for_chat(tokenizer: Tokenizer, found: Sequence[Logprob]) -> dict[str, Any]:
    content = [
        {
            **_named(tokenizer, entry.token, entry.logprob),
            "top_logprobs": [_named(tokenizer, token, number) for token, number in entry.top],
        }
        for entry in found
    ]
    return {"content": content, "refusal": None}


def _top(tokenizer: Tokenizer, entry: Logprob) -> dict[str, float]:
    """The chosen token is always among them, as in vLLM."""
    numbers = {tokenizer.token(token): number for token, number in entry.top}
    return numbers | {tokenizer.token(entry.token): entry.logprob}


def _named(tokenizer: Tokenizer, token: int, number: float) -> dict[str, Any]:
    text = tokenizer.token(token)
    return {"token": text, "logprob": number, "bytes": list(text.encode())}
