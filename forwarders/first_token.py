"""Merged stream of prefill's first token and decode's whole answer.

Prefill has the first token before decode begins to stream, so the client gets it at
once; decode's stream repeats it, so as much text is taken from there again:

    prefill   {"message": {"content": "The"}, ...}
    client    role chunk, "The"
    decode    role chunk, "The", " sky", finish, usage, [DONE]
    client                       " sky", finish, usage, [DONE]

Chunks are not tokens, so what is taken out is counted in text, not in chunks. Where
the first token's text may still change (stop strings, tools, half a character), nothing
is sent early and decode's stream passes whole.

Request ids of this protocol carry addresses and engines repeat them: each is renamed
to one that carries none, everywhere. It holds a unique id, so it cannot occur in text.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pdgate.forwarders.base import Merge
from pdgate.protocols import sse
from pdgate.protocols.call import CHAT, Call, Json, Raw, value
from pdgate.protocols.chunks import is_costly
from pdgate.protocols.errors import EngineFailed

CHANGES_TEXT_LATER = (
    "stop",
    "tools",
    "functions",
    "tool_choice",
    "response_format",
    "structured_outputs",
    "echo",
    "return_token_ids",
)
_PLAIN = ("role", "content")
HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"
OPENS_A_MARK = ("<", "[", "\N{WHITE LEFT-POINTING TRIANGLE}")
"""First character of what parsers of reasoning and of tool calls look for: "<think>", "[THINK]", "<|channel|>", "◁think▷"."""
_FEW_BYTES = 256


def may_go_early(call: Call) -> bool:
    """Whether the text of the first token is final as soon as prefill has it."""
    if any(_asks(call, name) for name in CHANGES_TEXT_LATER):
        return False
    # 0 asks for those of the chosen tokens.
    if call.value("logprobs", False) is not False:
        return False
    options = call.value("stream_options", {})
    return not (isinstance(options, dict) and options.get("continuous_usage_stats"))


def _asks(call: Call, name: str) -> bool:
    """What is long, as tools may be, is not read for that."""
    found = call.body.get(name)
    return (isinstance(found, Raw) and len(found) > _FEW_BYTES) or bool(call.value(name))


class FirstTokensDiffer(EngineFailed):
    """The client has a token of prefill's that decode's answer does not begin with."""


class RenamedAnswer(Merge):
    """A complete JSON answer; only the ids change."""

    def __init__(self, renames: Mapping[bytes, bytes]) -> None:
        self._renames = _longest_first(renames)
        self._pieces: list[bytes] = []

    def first(self, reply: Json) -> bytes:
        return b""

    def feed(self, chunk: bytes) -> bytes:
        self._pieces.append(chunk)
        return b""

    def end(self) -> bytes:
        return _renamed(b"".join(self._pieces), self._renames)


class FirstTokenStream(Merge):
    def __init__(self, call: Call, renames: Mapping[bytes, bytes]) -> None:
        self._chat = call.path == CHAT
        self._early = may_go_early(call)
        self._renames = _longest_first(renames)
        self._splitter = sse.Splitter()
        self._sent = ""
        """Text that went out early and is still to be taken from decode's stream."""
        self._role_sent = False
        self._id: str | None = None
        """By which the client knows the answer, until decode's first event says by which decode does."""

    def first(self, reply: Json) -> bytes:
        text = _first_text(reply, self._chat) if self._early else ""
        if not text or HALF_A_CHARACTER in text:
            return b""
        self._sent = text
        self._role_sent = self._chat
        self._id = value(reply, "id")
        head = {name: reply[name] for name in ("id", "created", "model") if name in reply}
        if not self._chat:
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
            return self._event({**head, "object": "text_completion", "choices": [choice]})
        return b"".join(
            self._event(
                {
                    **head,
                    "object": "chat.completion.chunk",
                    "choices": [
                        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
                    ],
                }
            )
            for delta in ({"role": "assistant", "content": ""}, {"content": text})
        )

    def feed(self, chunk: bytes) -> bytes:
        try:
            events = self._splitter.feed(chunk)
            if self._sent or self._role_sent:
                events = [self._without_what_went_out(event) for event in events]
        except (ValueError, RecursionError, AttributeError, LookupError, TypeError) as error:
            # Any way in which an event can be no chunk; this runs inside a sink.
            raise EngineFailed("decode sent something that is no chunk") from error
        return _renamed(b"".join(events), self._renames)

    def end(self) -> bytes:
        """Raises EngineFailed if what went out has not come from decode."""
        if self._sent:
            raise FirstTokensDiffer("decode ended without prefill's first token")
        return _renamed(self._splitter.rest, self._renames)

    def _rename(self, id: Any) -> None:
        """Engines that make ids of their own name one answer in two ways."""
        if not isinstance(id, str) or not id:
            return
        ours, self._id = self._id, None
        if isinstance(ours, str) and id != ours:
            public = _renamed(msgspec.json.encode(ours), self._renames)
            private = msgspec.json.encode(id)
            if _renamed(private, self._renames) != public:
                # With its name, as an id may be short enough to stand in a text.
                named = b'"id":', b'"id": '
                more = {name + private: name + public for name in named}
                self._renames = _longest_first({**dict(self._renames), **more})

    def _event(self, payload: Json) -> bytes:
        return _renamed(sse.event(payload), self._renames)

    def _without_what_went_out(self, event: bytes) -> bytes:
        data = sse.payload(event)
        if not data:
            return event
        if data == b"[DONE]":
            self._check_end(self._sent)
            return event
        if is_costly(data):
            raise ValueError("an event too long to be shortened")
        chunk = msgspec.json.decode(data)
        if self._id is not None:
            self._rename(chunk.get("id"))
        choices = chunk.get("choices")
        if not choices:
            return event
        choice = choices[0]
        if self._chat:
            return self._shortened_delta(event, chunk, choice)
        text = choice.get("text") or ""
        choice["text"] = self._take(text)
        self._check_end(choice.get("finish_reason"))
        if choice["text"] == text:
            return event
        return sse.event(chunk) if _says_something(choice, choice["text"]) else b""

    def _shortened_delta(self, event: bytes, chunk: Any, choice: Any) -> bytes:
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        rest = self._take(text)
        if self._sent and any(found for name, found in delta.items() if name not in _PLAIN):
            # Reasoning, or a call of a tool: what went out as content is none.
            raise FirstTokensDiffer("prefill's first token is no content of decode's answer")
        self._check_end(choice.get("finish_reason"))
        role_again = self._role_sent and delta.pop("role", None) is not None
        if rest == text and not role_again:
            return event
        delta["content"] = rest
        if not self._sent:
            # Decode's role chunk comes before its first text, so it has been seen.
            self._role_sent = False
        return sse.event(chunk) if _says_something(choice, rest) else b""

    def _take(self, text: str) -> str:
        """What is left of decode's text without what went out early."""
        if not text or not self._sent:
            return text
        if self._sent.startswith(text):
            self._sent = self._sent[len(text) :]
            return ""
        if not text.startswith(self._sent):
            raise FirstTokensDiffer("prefill and decode disagree on the first token")
        rest = text[len(self._sent) :]
        self._sent = ""
        return rest

    def _check_end(self, ends: object) -> None:
        if self._sent and ends:
            raise FirstTokensDiffer("decode ended without prefill's first token")


def _says_something(choice: Any, text: str) -> bool:
    """Whether a chunk is worth sending: it has text, ends the choice, or carries more."""
    if text or choice.get("finish_reason") is not None:
        return True
    delta = choice.get("delta") or {}
    return any(found for name, found in delta.items() if name != "content")


def _first_text(reply: Json, chat: bool) -> str:
    """The text of prefill's one token; empty if it is anything but plain text."""
    choices = value(reply, "choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return ""
    if choices[0].get("finish_reason") != "length":
        # It is the last one: whether its text is content, only decode knows.
        return ""
    if not chat:
        text = choices[0].get("text")
        return text if isinstance(text, str) else ""
    message = choices[0].get("message")
    if not isinstance(message, dict):
        return ""
    other = any(found for name, found in message.items() if name not in _PLAIN)
    content = message.get("content")
    if not isinstance(content, str) or other:
        return ""
    # Behind blanks a mark may still come.
    begin = content.lstrip()
    return content if begin and not begin.startswith(OPENS_A_MARK) else ""


def _longest_first(renames: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """One id may be the beginning of another: port 80 and port 8000."""
    return sorted(renames.items(), key=lambda rename: -len(rename[0]))


def _renamed(data: bytes, renames: list[tuple[bytes, bytes]]) -> bytes:
    for marker, public in renames:
        data = data.replace(marker, public)
    return data
