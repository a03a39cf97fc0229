"""Reading of one streamed answer: when its tokens came, and whether it is well-formed and whole."""

from collections.abc import Callable
from typing import Final

import msgspec

from pdgate.lab.replay.outcome import ReplayOutcome
from pdgate.protocols import sse

OK: Final = 200


class _Delta(msgspec.Struct):
    content: str | None = None


class _ReadChoice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _Event(msgspec.Struct):
    choices: list[_ReadChoice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


class AnswerReading:
    """Fed with an answer as it comes; `over` says at its end why it is not right, if it is not."""

    def __init__(self, outcome: ReplayOutcome, clock: Callable[[], float]) -> None:
        self._outcome = outcome
        self._clock = clock
        self._status = 0
        self._splitter = sse.Splitter()
        self._refusal: list[bytes] = []
        self._finish = ""
        self._done = False
        self._wrong = ""

    def head(self, status: int) -> None:
        self._status = status

    def body(self, chunk: bytes) -> None:
        if self._status != OK:
            self._refusal.append(chunk)
            return
        now = self._clock()
        try:
            for event in self._splitter.feed(chunk):
                self._event(sse.payload(event), now)
        except (ValueError, msgspec.MsgspecError):
            self._wrong = self._wrong or "malformed stream"

    def over(self, broken: str = "") -> None:
        """The answer ended; `broken` says how, if not as it should."""
        outcome = self._outcome
        outcome.ended = self._clock()
        outcome.why = self._why(broken)

    def _event(self, data: bytes, now: float) -> None:
        if not data:
            return
        if self._done:
            self._wrong = "goes on after [DONE]"
            return
        if data == b"[DONE]":
            self._done = True
            return
        event = _decode(data)
        outcome = self._outcome
        if event.error is not None:
            self._wrong = f"error in the stream: {event.error.code or event.error.type}"
        if event.usage is not None:
            outcome.prompt_tokens = event.usage.prompt_tokens
            outcome.tokens = event.usage.completion_tokens
        for choice in event.choices:
            self._finish = choice.finish_reason or self._finish
            if choice.text or (choice.delta and choice.delta.content) or choice.finish_reason:
                if outcome.first is None:
                    outcome.first = now
                else:
                    outcome.gaps.append(now - (outcome.last or now))
                outcome.last = now

    def _why(self, broken: str) -> str:
        if self._status and self._status != OK:
            return f"status {self._status}{_code(b''.join(self._refusal))}"
        if broken or self._wrong:
            return self._wrong or broken
        if not self._done:
            return "ends without [DONE]"
        wanted, outcome = self._outcome.answer_tokens, self._outcome
        if self._finish != "length":
            return f"finish_reason {self._finish or 'missing'}"
        if outcome.tokens != wanted:
            return "wrong number of tokens"
        return ""


def _code(body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=_Event).error
    except msgspec.MsgspecError:
        return ""
    return f" {error.code}" if error and error.code else ""
