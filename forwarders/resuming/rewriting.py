"""Rewritten events of a continuation, as if the engine that broke off had gone on.

id, object, created, model   those of the first chunk
text                         a delta, where a chat goes on as a completion
usage                        the prompt's tokens, and those of all parts of the answer
text_offset                  goes on
"""

from typing import Any

import msgspec

from pdgate.forwarders.resuming.continuation import alternatives_of
from pdgate.forwarders.resuming.journal import StreamJournal
from pdgate.forwarders.resuming.known import Known
from pdgate.protocols import sse
from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.chunks import is_costly


class Rewriting:
    """
    Args:
        call: The whole one.
        journal: As it is when the continuation begins.
    """

    def __init__(self, call: Call, journal: StreamJournal) -> None:
        head = journal.head
        self._head = {} if head is None else head.as_json()
        self._known = Known(journal.tokens[journal.whole :], "".join(journal.after))
        self._as_chat = call.path == CHAT and journal.whole > 0
        self._alternatives = (alternatives_of(call) or 0) if self._as_chat else 0
        self._prompt_tokens = len(journal.prompt)
        self._said = journal.whole
        self._characters = journal.characters
        self._role_is_known = journal.role
        self._prompt_is_known = journal.role or len(journal.tokens) > 0

    def event(self, event: bytes) -> bytes:
        """Empty for what the client knows. Raises ValueError for what cannot be its rest."""
        data = sse.payload(event)
        if not data or data == b"[DONE]":
            return event
        if is_costly(data):
            raise ValueError("an event too long to be rewritten")
        chunk = msgspec.json.decode(data, type=dict[str, Any])
        if chunk.get("error"):
            return event
        chunk |= self._head
        if self._said and chunk.get("usage"):
            chunk["usage"] = usage(
                self._prompt_tokens, self._said + chunk["usage"].get("completion_tokens", 0)
            )
        if self._prompt_is_known:
            chunk.pop("prompt_token_ids", None)
        if choices := chunk.get("choices"):
            choice = choices[0]
            if self._prompt_is_known:
                choice.pop("prompt_token_ids", None)
            if not (self._shaped(choice) and self._known.cut(choice)):
                return b""
        return sse.event(chunk)

    def _shaped(self, choice: dict[str, Any]) -> bool:
        """Whether there is anything in it."""
        if self._said:
            logprobs = choice.get("logprobs")
            if self._as_chat:
                choice["delta"] = {"content": choice.pop("text", "")}
                if logprobs:
                    choice["logprobs"] = for_chat(logprobs, self._alternatives)
            elif logprobs:
                logprobs["text_offset"] = [
                    offset + self._characters for offset in logprobs["text_offset"]
                ]
        elif self._role_is_known:
            delta = choice.get("delta") or {}
            if delta.pop("role", None) and not any(delta.values()):
                return False
        return True


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Usage without details: an engine that goes on knows only its own part."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def for_chat(logprobs: dict[str, Any], alternatives: int) -> dict[str, Any]:
    """A completion's log-probabilities in a chat's shape.

    Alternatives that read alike are one in a completion, so there may be fewer.
    """
    content = []
    for token, number, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        best = sorted(top.items(), key=lambda found: -found[1])[:alternatives]
        content.append(
            {**_named(token, number), "top_logprobs": [_named(*found) for found in best]}
        )
    return {"content": content, "refusal": None}


def _named(token: str, number: float) -> dict[str, Any]:
    return {"token": token, "logprob": number, "bytes": list(token.encode(errors="replace"))}
