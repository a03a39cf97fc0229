"""Answer of an OpenAI-compatible API, in one shape for chat and completions, whole or streamed.

A stream is read strictly: events of JSON, one finish reason for each choice, the speaker's role
said once in a chat, usage once at most, [DONE] at its end and nothing after it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pdgate.protocols import sse

LOGPROB_SLACK = 0.01
"""Kernels that add up in another order differ by less; another token differs by more."""


class MalformedAnswer(Exception):
    """No client could read it; the message says why."""


@dataclass(slots=True)
class CollectedChoice:
    """
    Attributes:
        logprobs: Token and its log-probability, for each that was sent.
        token_ids: Where the engine was asked for them.
    """

    text: str = ""
    finish: str | None = None
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class CollectedAnswer:
    """
    Attributes:
        usage: Tokens of the prompt, of the answer, and both; None if it was not sent.
        request_id: The header X-Request-Id.
    """

    choices: dict[int, CollectedChoice]
    usage: tuple[int, int, int] | None
    request_id: str = ""

    @property
    def only(self) -> CollectedChoice:
        """Raises MalformedAnswer if there is not exactly one."""
        if list(self.choices) != [0]:
            raise MalformedAnswer(
                f"one choice was asked for, and there are those of {[*self.choices]}"
            )
        return self.choices[0]


def whole(body: Mapping[str, Any]) -> CollectedAnswer:
    """Raises MalformedAnswer."""
    choices: dict[int, CollectedChoice] = {}
    for one in _listed(body, "choices"):
        choice = choices.setdefault(_index(one), CollectedChoice())
        _add(choice, one, one.get("message") if "message" in one else None)
        if choice.finish is None:
            raise MalformedAnswer(f"choice {_index(one)} has no finish_reason")
    return CollectedAnswer(choices, _usage(body))


def streamed(events: Iterable[bytes]) -> CollectedAnswer:
    """Raises MalformedAnswer."""
    choices: dict[int, CollectedChoice] = {}
    usages, roles, done = [], [], False
    for event in events:
        data = sse.payload(event)
        if not data:
            continue
        if done:
            raise MalformedAnswer("the stream goes on after [DONE]")
        if data == b"[DONE]":
            done = True
            continue
        chunk = _json(data)
        if "error" in chunk:
            raise MalformedAnswer(f"the stream has an error in it: {chunk['error']}")
        if (usage := _usage(chunk)) is not None:
            usages.append(usage)
        for one in _listed(chunk, "choices"):
            index, delta = _index(one), one.get("delta")
            choice = choices.setdefault(index, CollectedChoice())
            if choice.finish is not None and (one.get("text") or (delta or {}).get("content")):
                raise MalformedAnswer(f"choice {index} goes on after its finish_reason")
            before = choice.finish
            _add(choice, one, delta)
            if before is not None and one.get("finish_reason"):
                raise MalformedAnswer(f"choice {index} has two finish reasons")
            if delta and delta.get("role"):
                roles.append(index)
    if not done:
        raise MalformedAnswer("the stream ends without [DONE]")
    if len(set(roles)) != len(roles):
        raise MalformedAnswer("the stream says twice who speaks")
    if len(usages) > 1:
        raise MalformedAnswer(f"the stream has usage {len(usages)} times")
    for index, choice in choices.items():
        if choice.finish is None:
            raise MalformedAnswer(f"choice {index} has no finish_reason")
    return CollectedAnswer(choices, usages[0] if usages else None)


def difference(found: CollectedAnswer, expected: CollectedAnswer) -> str:
    """The first thing that differs, in words; "" for none."""
    if found.choices.keys() != expected.choices.keys():
        return f"choices {sorted(found.choices)} and not {sorted(expected.choices)}"
    for index, theirs in expected.choices.items():
        ours = found.choices[index]
        for what in ("text", "finish", "token_ids"):
            was, should = getattr(ours, what), getattr(theirs, what)
            if was != should:
                return f"{what} of choice {index} is {was!r} and not {should!r}"
        if told := _logprobs_differ(ours.logprobs, theirs.logprobs):
            return f"choice {index}: {told}"
    if found.usage != expected.usage:
        return f"usage is {found.usage} and not {expected.usage}"
    return ""


def _logprobs_differ(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> str:
    if [token for token, _ in ours] != [token for token, _ in theirs]:
        return f"log-probabilities of {len(ours)} tokens and not of the same {len(theirs)}"
    for (token, one), (_, other) in zip(ours, theirs, strict=True):
        if abs(one - other) > LOGPROB_SLACK:
            return f"the log-probability of {token!r} is {one:.4f} and not {other:.4f}"
    return ""


def _add(choice: CollectedChoice, one: Mapping[str, Any], said: Mapping[str, Any] | None) -> None:
    choice.text += (one.get("text") if said is None else said.get("content")) or ""
    choice.finish = one.get("finish_reason") or choice.finish
    choice.token_ids += one.get("token_ids") or []
    told = one.get("logprobs")
    if not told:
        return
    if content := told.get("content"):
        choice.logprobs += [(entry["token"], entry["logprob"]) for entry in content]
    elif tokens := told.get("tokens"):
        numbers = [number or 0.0 for number in told["token_logprobs"]]
        choice.logprobs += list(zip(tokens, numbers, strict=True))


def _usage(body: Mapping[str, Any]) -> tuple[int, int, int] | None:
    found = body.get("usage")
    if not found:
        return None
    return found["prompt_tokens"], found["completion_tokens"], found["total_tokens"]


def _index(one: Mapping[str, Any]) -> int:
    found = one.get("index")
    if type(found) is not int:
        raise MalformedAnswer(f"a choice has no index: {str(one)[:200]}")
    return found


def _json(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        raise MalformedAnswer(f"an event is no JSON: {data[:80]!r}") from None
    if not isinstance(found, dict):
        raise MalformedAnswer(f"an event is no object: {data[:80]!r}")
    return found


def _listed(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = body.get(name)
    if not isinstance(found, list):
        raise MalformedAnswer(f"there are no {name} in {str(body)[:200]}")
    return found
