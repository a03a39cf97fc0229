"""A stream as its client lives it: what it said, how it ended, and how long it kept the client waiting.

What ends a stream of each API well is written down here once more, so that the gateway is not
asked whether the gateway is right.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import httpx2

from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import CHAT, COMPLETIONS

WITH_USAGE: Final[Mapping[str, Any]] = {"stream_options": {"include_usage": True}}

STREAMS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    # What a client may ask for: its path, and fields of its own.
    "completions": (COMPLETIONS, {}),
    "completions with usage": (COMPLETIONS, WITH_USAGE),
    "chat": (CHAT, {}),
    "chat with usage": (CHAT, WITH_USAGE),
    "messages": (MESSAGES, {}),
    "responses": (RESPONSES, {}),
}

NAMED_ENDS: Final = ("message_stop", "response.completed", "response.incomplete")


@dataclass(frozen=True, slots=True)
class Waited:
    """
    Attributes:
        finished: It was said why the answer ends, as its API has it.
        done: Its last event was "[DONE]", or the one that its API ends with.
        error: The API's error object; None if all went well.
        silence: The longest time without an event: to the first one, and from each to the next.
    """

    prompt: Any
    text: str
    finished: bool
    error: Mapping[str, Any] | None
    silence: float
    done: bool = False

    @property
    def broke_off(self) -> bool:
        """It had begun."""
        return self.error is not None and bool(self.text)

    @property
    def is_whole(self) -> bool:
        return self.finished and self.done and self.error is None

    @property
    def failed_clearly(self) -> bool:
        """No client takes it for an answer."""
        return self.error is not None and not self.done


def question(path: str, prompt: Any, max_tokens: int) -> dict[str, Any]:
    """The fields in which APIs differ."""
    said = [{"role": "user", "content": prompt}]
    if path == RESPONSES:
        return {"input": prompt, "max_output_tokens": max_tokens}
    asked = {"prompt": prompt} if path == COMPLETIONS else {"messages": said}
    return {**asked, "max_tokens": max_tokens}


async def wait_for(
    http: httpx2.AsyncClient,
    url: str,
    *,
    prompt: Any,
    max_tokens: int,
    path: str = COMPLETIONS,
    begun: Callable[[], object] = lambda: None,
    **more: Any,
) -> Waited:
    """Streams an answer to its end. `begun`: called at its first text. `more`: fields of the call."""
    body = {"temperature": 0, "stream": True, **question(path, prompt, max_tokens), **more}
    if path in (COMPLETIONS, CHAT):
        body["ignore_eos"] = True
    text, finished, done, error, silence, last = "", False, False, None, 0.0, monotonic()
    async with http.stream("POST", f"{url}{path}", json=body) as answer:
        if answer.status_code != 200:
            await answer.aread()
            return Waited(prompt, "", False, answer.json()["error"], monotonic() - last)
        async for line in _lines(answer):
            # Comments keep the connection alive, and say nothing.
            if not line.startswith("data: "):
                continue
            silence, last = max(silence, monotonic() - last), monotonic()
            if line == "data: [DONE]":
                done = True
                continue
            event = json.loads(line.removeprefix("data: "))
            # A response's events may have "error": null.
            error = error or event.get("error")
            done = done or event.get("type") in NAMED_ENDS
            said, why = _read(event)
            if said and not text:
                begun()
            text, finished = text + said, finished or why
    return Waited(prompt, text, finished, error, silence, done)


async def _lines(answer: httpx2.Response) -> AsyncIterator[str]:
    """The client's own reader ends lines at whatever Unicode does, U+2028 and U+0085 among it, which engines write
    into texts as they are."""
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode().removesuffix("\r")


def _read(event: Mapping[str, Any]) -> tuple[str, bool]:
    """What it adds to the text, and whether it says why the answer ends."""
    match event.get("type"):
        case "content_block_delta":
            return event["delta"].get("text", ""), False
        case "message_delta":
            return "", event["delta"]["stop_reason"] is not None
        case "response.output_text.delta":
            return event["delta"], False
        case "response.completed" | "response.incomplete":
            return "", event["response"]["status"] in ("completed", "incomplete")
    text, finished = "", False
    for choice in event.get("choices", ()):
        delta = choice.get("delta")
        text += (choice["text"] if delta is None else delta.get("content")) or ""
        finished = finished or bool(choice["finish_reason"])
    return text, finished
