"""Calls under faults: what was said, or how it failed, in the words of OpenAI's API."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from pdgate.protocols.call import CHAT

PROMPTS = ("Hello", "the quick brown fox", "jumps over the lazy dog. " * 12, "a b c d e f g " * 20)
MAX_TOKENS = 16


def numbered(number: int) -> str:
    """Another prompt for each number."""
    return f"{number}) {PROMPTS[number % len(PROMPTS)]}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client has at the end.

    Attributes:
        finished: A finish reason was named.
        error: OpenAI's error object; empty if all went well.
    """

    model: str
    prompt: str
    status: int
    text: str = ""
    finished: bool = False
    error: Mapping[str, Any] = field(default_factory=dict)

    def said(self, right: Mapping[str, str]) -> bool:
        return self.finished and not self.error and self.text == right[self.prompt]

    @property
    def failed_clearly(self) -> bool:
        """Nobody can take it for an answer, and programs can tell what happened."""
        keys = {"message", "type", "param", "code"}
        return not self.finished and set(self.error) == keys and bool(self.error["code"])


async def ask(
    http: httpx2.AsyncClient, url: str, model: str, prompt: str, *, stream: bool = False
) -> Asked:
    """Raises httpx2.HTTPError if the connection ends before the answer does."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    answer = await http.post(f"{url}/v1/completions", json=body)
    if answer.status_code != 200:
        return Asked(model, prompt, answer.status_code, error=answer.json()["error"])
    chunks = list(_chunks(answer.text)) if stream else [answer.json()]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    return Asked(
        model,
        prompt,
        200,
        "".join(choice["text"] for choice in choices),
        any(choice["finish_reason"] for choice in choices),
        next((chunk["error"] for chunk in chunks if "error" in chunk), {}),
    )


def _chunks(stream: str) -> Iterator[dict[str, Any]]:
    """ "[DONE]" says that an answer is whole, so it stands behind one that is, and behind no error."""
    *events, last = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    if last != "[DONE]":
        assert "error" in json.loads(last), last
        events.append(last)
    assert sum("error" in json.loads(event) for event in events) == (last != "[DONE]")
    yield from map(json.loads, events)


async def ahead(http: httpx2.AsyncClient, url: str, path: str, body: Mapping[str, Any]) -> float:
    """The least by which a token of the greedy answer is likelier than the next one, as logarithms."""
    of_chat = {"logprobs": True, "top_logprobs": 2}
    fields = of_chat if path == CHAT else {"logprobs": 2}
    asked = {**body, "temperature": 0, "ignore_eos": True, **fields}
    asked.update(stream=False, stream_options=None)
    answer = await http.post(f"{url}{path}", json=asked)
    told = answer.json()["choices"][0]["logprobs"]
    both: list[list[float]]
    if path == CHAT:
        both = [[one["logprob"] for one in token["top_logprobs"]] for token in told["content"]]
    else:
        both = [list(token.values()) for token in told["top_logprobs"]]
    assert len(both) == body["max_tokens"]
    return min(max(two) - min(two) for two in both)


async def undisturbed(http: httpx2.AsyncClient, url: str, model: str) -> dict[str, str]:
    """Prompt -> the right answer."""
    return {prompt: (await ask(http, url, model, prompt)).text for prompt in PROMPTS}
