"""What a client makes of a stream: everything that must not depend on where it broke."""

import json
from dataclasses import dataclass, field
from typing import Any

from pdgate.protocols import sse


@dataclass
class Heard:
    """
    Attributes:
        heads: The different (id, object, created, model) of its chunks; no two engines agree.
        ids: Of the tokens, if they were asked for; `prompts` those of the prompt, each time.
    """

    text: str = ""
    heads: set[tuple[Any, ...]] = field(default_factory=set, compare=False)
    roles: list[str] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)
    usages: list[dict[str, int]] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    dones: int = 0
    errors: list[Any] = field(default_factory=list)


def heard(stream: bytes) -> Heard:
    splitter, found = sse.Splitter(), Heard()
    for event in splitter.feed(stream):
        data = sse.payload(event)
        if not data:
            continue
        if data == b"[DONE]":
            found.dones += 1
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            found.errors.append(chunk["error"])
            continue
        found.heads.add(tuple(chunk[name] for name in ("id", "object", "created", "model")))
        if chunk.get("usage"):
            found.usages.append(chunk["usage"])
        for holder in (chunk, *chunk["choices"]):
            if holder.get("prompt_token_ids"):
                found.prompts.append(holder["prompt_token_ids"])
        for choice in chunk["choices"]:
            _add(found, choice)
    assert splitter.rest == b""
    return found


def _add(found: Heard, choice: dict[str, Any]) -> None:
    delta = choice.get("delta")
    if delta is not None and "role" in delta:
        found.roles.append(delta["role"])
    found.text += (choice["text"] if delta is None else delta.get("content")) or ""
    if choice["finish_reason"]:
        found.finishes.append(choice["finish_reason"])
    found.ids += choice.get("token_ids") or []
    logprobs = choice.get("logprobs") or {}
    found.logprobs += logprobs.get("content") or []
    if "tokens" in logprobs:
        found.logprobs += zip(*(logprobs[name] for name in sorted(logprobs)), strict=True)
