"""Engines that say a text byte by byte, as vLLM would stream it, and break off where told to.

A token is a byte, so a character may take four. A prompt of token ids must end in what has been
said so far: whoever goes on at the wrong place fails the test.
"""

import codecs
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

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
PING: Final = b": ping\n\n"
NO_CHOICES: Final = b"no choices"
"""Stands for a chunk of the stream that has none."""

_count: Final = TypeAdapter(int).validate_python
_flag: Final = TypeAdapter(bool).validate_python
"""As engines read them, whose models of requests are not strict."""


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
        between: And after each one.
        unfinished: The finish_reason of what goes on.
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
        between: bytes = b"",
        unfinished: str | None = None,
    ) -> None:
        super().__init__()
        self.breaks = list(breaks)
        self.merged = merged
        self.how = how
        self.then = then
        self.refusing = refusing
        self.without = without
        self.opening = opening
        self.between = between
        self.unfinished = unfinished

    async def _head(self, leg: Leg) -> Sequence[Step]:
        body = json.loads(encode(leg.body))
        # It answers calls for one token itself.
        if leg.to.role is Role.PREFILL and not body["stream"]:
            return [encode(prefilled())]
        if self.refusing is not None and body.get("return_token_ids"):
            raise self.refusing
        events: list[Step] = [self.opening] if self.opening else []
        name = f"answer-{len(self.sent)}"
        events += list(_events(body, self.merged, name, self.unfinished))
        if self.without:
            events = [_without(event, self.without) for event in events]
        between = self.between
        if between == NO_CHOICES:
            between = sse.event({**_head_of(body, name), "choices": []})
        if not self.breaks:
            if self.then is not None:
                raise self.then
            return _joined(events, between)
        before = _joined(events[: self.breaks.pop(0)], between)
        return [*before, *(self.how or [EngineFailed("broke off", broke_off=True)])]


def _joined(events: Sequence[Step], between: bytes) -> list[Step]:
    return [step for event in events for step in (event, between) if step]


def _head_of(body: dict[str, Any], name: str) -> dict[str, Any]:
    kind = "chat.completion.chunk" if "messages" in body else "text_completion"
    return {"id": name, "created": len(name), "model": name, "object": kind}


def _events(
    body: dict[str, Any], merged: Sequence[int], name: str, unfinished: str | None
) -> Iterator[bytes]:
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
    tokens = left if limit is None else left[: _count(limit)]
    assert tokens
    assert _count(body.get("min_tokens") or 0) >= 0
    ids = _flag(body.get("return_token_ids") or False)
    head = _head_of(body, name)
    if chat:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": unfinished}
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
        if _wants_logprobs(body, chat):
            choice["logprobs"] = _logprobs(some, offset, body, chat)
        start += len(some)
        offset += len(some)
        choice["finish_reason"] = unfinished
        if start == len(tokens):
            choice["finish_reason"] = "stop" if some[-1] == END else "length"
        if ids:
            choice["token_ids"] = some
            if not chat:
                choice["prompt_token_ids"] = prompt if start == len(some) else None
        yield sse.event({**head, "choices": [choice]})
    if _flag((body.get("stream_options") or {}).get("include_usage", False)):
        counts = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        total = {**counts, "total_tokens": len(prompt) + len(tokens)}
        yield sse.event({**head, "choices": [], "usage": total})
    yield sse.DONE


def _wants_logprobs(body: dict[str, Any], chat: bool) -> bool:
    said = body.get("logprobs")
    return _flag(said or False) if chat else said is not None


def _logprobs(tokens: Sequence[int], offset: int, body: dict[str, Any], chat: bool) -> Any:
    named = [(chr(token), -token / 100) for token in tokens]
    if chat:
        count = _count(body.get("top_logprobs", 0))
        return {
            "content": [
                {**_entry(*one), "top_logprobs": [_entry(*one), _entry("?", -9.0)][:count]}
                for one in named
            ],
            "refusal": None,
        }
    count = _count(body["logprobs"])
    return {
        "tokens": [name for name, _ in named],
        "token_logprobs": [number for _, number in named],
        "top_logprobs": [dict([one, ("?", -9.0)][: max(1, count)]) for one in named],
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
