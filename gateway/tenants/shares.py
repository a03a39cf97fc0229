"""Shares: calls for one model that are served by others, each by its share, as for a canary.

    [[shares]]
    model = "m"
    to = {"m-stable" = 95, "m-canary" = 5}

    by = "conversation"          or "key": all calls of an API key stay with one

A conversation is known by the session that the client names (x-session-id, prompt_cache_key, ...), else by its first
message of a user and what stands before it, which its later turns repeat. Each model has a rank for it, by its weight
(rendezvous hashing), and the highest is taken: a changed share moves no more conversations than it has to, and all workers
and replicas choose alike. A model that no engine serves just now is passed over.

Source: Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", the logarithmic method.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from pdgate.protocols.call import Call, Raw, encode
from pdgate.protocols.fields import UNREADABLE
from pdgate.scheduling.policies.sticky_session import FIELDS, HEADER

_SPAN: Final = 2.0**64
_MOST_MESSAGES_BYTES: Final = 256 << 10
_BEGIN_BYTES: Final = 1024
_PROMPTS: Final = ("prompt", "input", "text", "token_ids", "input_ids")


class _RoleOnly(msgspec.Struct):
    role: str = ""


_messages: Final = msgspec.json.Decoder(list[Raw])
_message: Final = msgspec.json.Decoder(_RoleOnly)

Served = Callable[[str, str], bool]
"""Model, id of the only engine that can serve the call (empty for any) -> whether one that is up serves it."""


@dataclass(frozen=True, slots=True)
class Share:
    """
    Attributes:
        to: Model -> its weight, from 1.
        by_key: Whether all calls of an API key stay together.
    """

    to: Mapping[str, int]
    by_key: bool = False


class Shares:
    """
    Attributes:
        shares: Model -> how its calls are shared.
    """

    def __init__(self, shares: Mapping[str, Share], served: Served) -> None:
        self.shares = shares
        self._served = served

    def of(self, call: Call, key: str) -> Call:
        """The call as it is served. `key`: the name of the caller's; empty for none. Raise BadRequest."""
        share = None if call.model is None else self.shares.get(call.model)
        if share is None or call.passed is not None:
            return call
        conversation = f"key {key}" if share.by_key and key else f"{key} {_conversation(call)}"
        chosen = chosen_of(share.to, conversation, lambda model: self._served(model, call.at))
        body = {**call.body, "model": Raw(encode(chosen))}
        return msgspec.structs.replace(call, model=chosen, body=body, shared=call.model)


def chosen_of(weights: Mapping[str, int], conversation: str, served: Callable[[str], bool]) -> str:
    """One that is served, if any is; else the one that it would be."""
    there = [model for model in weights if served(model)]
    return max(there or weights, key=lambda model: _rank(model, weights[model], conversation))


def _rank(model: str, weight: int, conversation: str) -> float:
    drawn = (xxh3_64_intdigest(f"{model}\0{conversation}".encode()) + 1) / (_SPAN + 2)
    # Below 1 also where the division has rounded.
    return -weight / log(min(drawn, 1 - 2**-53))


def _conversation(call: Call) -> str:
    for name, found in call.headers:
        if name == HEADER:
            return f"session {found!r}"
    for field in FIELDS:
        if (named := call.value(field)) is not None:
            return f"session {encode(named)!r}"
    raw = call.body.get("messages")
    if raw is not None and len(raw) <= _MOST_MESSAGES_BYTES:
        begin = _until_user(bytes(raw))
    else:
        prompt = next((call.body[name] for name in _PROMPTS if name in call.body), raw)
        begin = b"" if prompt is None else bytes(memoryview(prompt)[:_BEGIN_BYTES])
    return f"begins {xxh3_64_hexdigest(begin)}" if begin else f"call {call.id}"


def _until_user(written: bytes) -> bytes:
    """The messages before the first of a user, and that one."""
    try:
        found = _messages.decode(written)
        for at, raw in enumerate(found):
            if _message.decode(raw).role == "user":
                return b"".join(found[: at + 1])
    except UNREADABLE:
        return b""
    return b""
