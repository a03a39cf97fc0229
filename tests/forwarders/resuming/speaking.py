"""Engines that say a text byte by byte, as vLLM would stream it, and break off where told to.

A token is a byte, so a character may take four. A prompt of token ids must end in what has been
said so far: whoever goes on at the wrong place fails the test.
"""

import codecs
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pdgate.forwarders.base import Leg
from pdgate.protocols import sse
from pdgate.protocols.call import encode
from pdgate.protocols.errors import EngineFailed, GatewayError
from pdgate.protocols.instance import Role
from tests.support.answers import prefilled
from tests.support.scripted import Scripted, Step

PROMPT = [900, 901, 902]
TEXT = 'Grüße, 🌍! \\u00e9 ist "é"\n'
SAID = list(TEXT.encode())
END = 300


class Speaking(Scripted):
    """
    Args:
        breaks: After how many events each answer of a decode engine breaks off; the next ones
            are whole.
        merged: How many tokens share an event, in turn.
        how: What the connection, or the engine, does then.
        then: What the next one answers with.
        refusing: What they say to who asks for token ids.
        without: A field that these engines do not know.
        opening: What comes before the first event.
    """

    def __init__(
        self,
        *breaks: int,
        merged: Sequence[int] = (1,),
        how: Sequence[Step] = (),
        then: GatewayError | None = None,
        refusing: GatewayError | None = None,
        without: str = "",
        opening: bytes = b"",
    ) -> None:
        super().__init__()
        self.breaks = list(breaks)
        self.merged = merged
        self.how = how
        self.then = then
        self.refusing = refusing
        self.without = without
        self.opening = opening

    async def _head(self, leg: Leg) -> Sequence[Step]:
        body = json.loads(encode(leg.body))
        # It answers calls for one token itself.
        if leg.to.role is Role.PREFILL and not body["stream"]:
            return [encode(prefilled())]
        if self.refusing is not None and body.get("return_token_ids"):
            raise self.refusing
        events: list[Step] = [self.opening] if self.opening else []
        events += list(_events(body, self.merged, f"answer-{len(self.sent)}"))
        if self.without:
            events = [_without(event, self.without) for event in events]
        if not self.breaks:
            if self.then is not None:
                raise self.then
            return events
        return [*events[: self.breaks.pop(0)], *(self.how or [EngineFailed("broke off")])]


def _events(body: dict[str, Any], merged: Sequence[int], name: str) -> Iterator[bytes]:
    chat = "messages" in body
    prompt = body["prompt"] if isinstance(body.get("prompt"), list) else PROMPT
    assert prompt[: len(PROMPT)] == PROMPT
    before = prompt[len(PROMPT) :]
    assert before == SAID[: len(before)]
    # It fails within a character, where vLLM would answer with the prompt.
    bytes(before).decode()
    decoder = codecs.getincrementaldecoder("utf-8")()
    left = [*SAID[len(before) :], END]
    limit = body.get("max_completion_tokens", body.get("max_tokens", None if chat else 16))
    tokens = left if limit is None else left[:limit]
    assert tokens
    ids = body.get("return_token_ids") is True
    head = {"id": name, "created": len(name), "model": name}
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    if chat:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        more = {"prompt_token_ids": prompt} if ids else {}
        yield sse.event({**head, "choices": [choice], **more})
    start, offset, turn = 0, 0, 0
    while start < len(tokens):
        size = merged[turn % len(merged)]
        turn += 1
        some = tokens[start : start + size]
        text = "".join(decoder.decode(bytes([token])) for token in some if token != END)
        choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
        choice["logprobs"] = None
        if body.get("logprobs") is not None and body["logprobs"] is not False:
            choice["logprobs"] = _logprobs(some, offset, body, chat)
        start += len(some)
        offset += len(some)
        choice["finish_reason"] = None
        if start == len(tokens):
            choice["finish_reason"] = "stop" if some[-1] == END else "length"
        if ids:
            choice["token_ids"] = some
            if not chat:
                choice["prompt_token_ids"] = prompt if start == len(some) else None
        yield sse.event({**head, "choices": [choice]})
    if (body.get("stream_options") or {}).get("include_usage"):
        counts = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        total = {**counts, "total_tokens": len(prompt) + len(tokens)}
        yield sse.event({**head, "choices": [], "usage": total})
    yield sse.DONE


def _logprobs(tokens: Sequence[int], offset: int, body: dict[str, Any], chat: bool) -> Any:
    named = [(chr(token), -token / 100) for token in tokens]
    if chat:
        count = body.get("top_logprobs", 0)
        return {
            "content": [
                {**_entry(*one), "top_logprobs": [_entry(*one), _entry("?", -9.0)][:count]}
                for one in named
            ],
            "refusal": None,
        }
    return {
        "tokens": [name for name, _ in named],
        "token_logprobs": [number for _, number in named],
        "top_logprobs": [dict([one, ("?", -9.0)][: max(1, body["logprobs"])]) for one in named],
        "text_offset": [offset + at for at in range(len(tokens))],
    }


def _entry(token: str, number: float) -> dict[str, Any]:
    return {"token": token, "logprob": number, "bytes": list(token.encode())}


def _without(event: Step, name: str) -> bytes:
    """As an engine that does not know the field would have written it."""
    assert isinstance(event, bytes)
    if event == sse.DONE:
        return event
    chunk = json.loads(sse.payload(event))
    chunk.pop(name, None)
    for choice in chunk["choices"]:
        choice.pop(name, None)
    return sse.event(chunk)
