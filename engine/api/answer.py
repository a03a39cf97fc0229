"""An answer on its way out, whole or as a stream of events.

The status line waits for the first token: whatever goes wrong before it is an error with
its own status; after it, an error event ends the stream. With `head_first` the head of a stream
is sent as soon as the core has accepted it, and only what is refused has a status of its own: as
vLLM 0.32.0 has it, whose StreamingResponse begins before its generator.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.api.service import (
    ClientGone,
    EngineService,
    raise_refusal,
    unless_client_leaves,
)
from pdgate.engine.api.usage import AnswerUsage
from pdgate.engine.output_queue import Mailbox
from pdgate.engine.request import Finish, Logprob, Output
from pdgate.protocols.errors import GatewayError

CLIENT_CLOSED = 499


@dataclass(slots=True)
class AnswerChoice:
    """One answer, collected."""

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: Sequence[Logprob | None] | None = None
    finish: Finish | None = None
    stopped_by: str | int | None = None
    kv_transfer_params: Mapping[str, Any] | None = None

    @property
    def without_chunk(self) -> bool:
        """An abort before the first token, of which a stream says nothing.

        As in vLLM 0.32.0, chat_completion_stream_generator() and completion_stream_generator(),
        which skip an output without text and tokens while there have been none.
        """
        return self.finish is Finish.ABORT and not (self.text or self.tokens)

    def add(self, output: Output) -> None:
        self.text += output.text
        self.tokens += output.tokens
        self.logprobs += output.logprobs
        self.prompt_logprobs = self.prompt_logprobs or output.prompt_logprobs
        self.finish = output.finish
        self.stopped_by = output.stopped_by
        self.kv_transfer_params = output.kv_transfer_params


class AnswerShape(ABC):
    """How an endpoint writes its answers: a JSON object, or the events of a stream."""

    def __init__(self, service: EngineService, ask: ParsedRequest, wire_id: str) -> None:
        self.ask = ask
        self.tokenizer = service.model.tokenizer
        self.wire_id = wire_id
        self.created = int(time.time())

    @abstractmethod
    def opening(self) -> list[bytes]:
        """Events that come before all others."""

    @abstractmethod
    def piece(self, choice: AnswerChoice) -> list[bytes]:
        """What one step adds to a choice."""

    @abstractmethod
    def closing(self, usage: AnswerUsage) -> list[bytes]:
        """Events that come after all others."""

    @abstractmethod
    def broken(self, error: GatewayError) -> list[bytes]:
        """The end of a stream that failed."""

    @abstractmethod
    def whole(self, choices: Sequence[AnswerChoice], usage: AnswerUsage) -> dict[str, Any]: ...


async def send(http: HttpRequest, service: EngineService, shape: AnswerShape) -> Response:
    mailbox = service.submit(shape.ask, shape.wire_id)
    try:
        head_first = shape.ask.streams and service.head_first
        if head_first and await unless_client_leaves(http, mailbox.accepted()):
            return EventStreamResponse(_events(mailbox, None, shape), mailbox)
        first = await unless_client_leaves(http, mailbox.next())
        raise_refusal(first[1])
        if shape.ask.streams:
            return EventStreamResponse(_events(mailbox, first, shape), mailbox)
        return await unless_client_leaves(http, _whole(mailbox, first, shape))
    except ClientGone:
        mailbox.close()
        return Response(status_code=CLIENT_CLOSED)
    except BaseException:
        mailbox.close()
        raise


class EventStreamResponse(StreamingResponse):
    """A stream that gives its mailbox back however it ends, also before it began."""

    def __init__(self, events: AsyncIterator[bytes], mailbox: Mailbox) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._mailbox = mailbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._mailbox.close()


async def _whole(mailbox: Mailbox, first: tuple[int, Output], shape: AnswerShape) -> Response:
    ask = shape.ask
    usage = AnswerUsage(ask)
    choices = [AnswerChoice(index) for index in range(len(ask.prompts) * ask.choices)]
    index, output = first
    while True:
        raise_refusal(output)
        choices[index].add(output)
        usage.add(index, output)
        if mailbox.done:
            break
        index, output = await mailbox.next()
    written = msgspec.json.encode(shape.whole(choices, usage))
    return Response(written, media_type="application/json")


async def _events(
    mailbox: Mailbox, first: tuple[int, Output] | None, shape: AnswerShape
) -> AsyncIterator[bytes]:
    usage = AnswerUsage(shape.ask)
    index, output = await mailbox.next() if first is None else first
    # Of a stream that fails with its first output nothing is said but that.
    for event in shape.opening() if output.refusal is None else ():
        yield event
    while True:
        try:
            raise_refusal(output)
        except GatewayError as error:
            for event in shape.broken(error):
                yield event
            return
        choice = AnswerChoice(index)
        choice.add(output)
        usage.add(index, output)
        for event in shape.piece(choice):
            yield event
        if mailbox.done:
            break
        index, output = await mailbox.next()
    for event in shape.closing(usage):
        yield event
