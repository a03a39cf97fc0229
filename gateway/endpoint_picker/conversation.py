"""Conversation about one request: what Envoy's external processing filter says, and what it is answered.

    request head                  FULL_DUPLEX_STREAMED: nothing yet   BUFFERED: go on   no body: the choice
    request body ... its end      the choice, and the body back       the choice
    request trailers              likewise, where they end the body
    response head, body, trailers       noted, and let through; the end of the response ends the call

Bodies that Envoy streams are its own no more: each piece comes back from here, PIECE_BYTES at most. Where the choice
fails, the answer is an ImmediateResponse, and the conversation is over.

Source: external_processor.proto and processing_mode.proto of envoyproxy/data-plane-api 84e8436 (BodySendMode); PIECE_BYTES as
kubernetes-sigs/gateway-api-inference-extension has it: some data planes take 64 KiB at most.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, Protocol

from pdgate.gateway import errors
from pdgate.gateway.endpoint_picker import wire
from pdgate.gateway.endpoint_picker.outcome import EndpointChoice, PickedCall, ServedEndpoint
from pdgate.gateway.endpoint_picker.picking import AskedHead, EndpointPicker
from pdgate.gateway.endpoint_picker.wire import Message, ProcessingResponse
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.steering import DESTINATION
from pdgate.protocols.apis import shape_of
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest, GatewayError, OutOfMemory, TooLarge

PIECE_BYTES: Final = 62_000
NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = f"{DESTINATION}-subset"
SERVED: Final = f"{DESTINATION}-served"
_OF_THE_CONNECTION: Final = (b"content-length", b"connection")
"""Headers that Envoy makes for itself."""


class WrongOrder(Exception):
    """The other side does not keep to the protocol; the message says how, for its operators."""


class HeldMemory(Protocol):
    """What all bodies that are held may take."""

    def take(self, more_bytes: int) -> bool: ...
    def give_back(self, bytes_: int) -> None: ...


class Conversation:
    """
    Attributes:
        over: Nothing more is to be read of it.
        asked: The request is whole, so that there is no more to wait for.
    """

    def __init__(
        self, picker: EndpointPicker, memory: HeldMemory, note: Callable[[ServedEndpoint], None]
    ) -> None:
        """`note`: told from which engine of the list each response is."""
        self.over = False
        self.asked = False
        self._picker = picker
        self._memory = memory
        self._note = note
        self._head: AskedHead | None = None
        self._key_state: KeyState | None = None
        self._body = bytearray()
        self._request_mode = self._response_mode = wire.FULL_DUPLEX
        self._call: PickedCall | None = None
        self._observes = False

    async def answers(self, message: Message) -> Iterable[Message]:
        """Answers to one message, to be sent before the next is read. Raise WrongOrder."""
        self._observes = self._observes or message.observability_mode
        try:
            found: Iterable[Message] = await self._answers(message)
        except GatewayError as error:
            self.over = self.asked = True
            found = [self._refusal(error)]
        # Of one that only looks on, nothing is read.
        return [] if self._observes else found

    def end(self) -> None:
        """The other side says no more."""
        self._let_go()
        call = self._call
        if call is None:
            return
        unseen = self._response_mode == wire.NONE and call.record.committed is not None
        call.ended() if unseen else call.left()

    async def _answers(self, message: Message) -> Iterable[Message]:
        if message.HasField("request_headers"):
            return await self._request_head(message)
        if self._head is None:
            raise WrongOrder("the request's head was not sent (request_header_mode must be SEND)")
        if message.HasField("request_body"):
            return await self._request_body(message.request_body)
        if message.HasField("request_trailers"):
            return await self._request_trailers()
        if message.HasField("response_headers"):
            return self._response_head(message)
        if message.HasField("response_body"):
            return self._response_body(message.response_body)
        if message.HasField("response_trailers"):
            if self._call is not None:
                self._call.ended()
            answer = ProcessingResponse()
            answer.response_trailers.SetInParent()
            return [answer]
        raise WrongOrder("a message that is neither of a request nor of a response")

    # The request.

    async def _request_head(self, message: Message) -> list[Message]:
        if self._head is not None:
            raise WrongOrder("a request has one head")
        if message.HasField("protocol_config"):
            self._request_mode = message.protocol_config.request_body_mode
            self._response_mode = message.protocol_config.response_body_mode
        head = message.request_headers
        subset = wire.texts(message.metadata_context, SUBSET_NAMESPACE, SUBSET)
        self._head = AskedHead.of(wire.headers_of(head), subset)
        try:
            self._key_state = self._picker.screen(self._head)
        except GatewayError as error:
            self._picker.refused(error)
            raise
        if head.end_of_stream or self._request_mode == wire.NONE:
            choice = await self._pick()
            return [_with_choice("request_headers", choice)]
        if self._request_mode == wire.FULL_DUPLEX:
            return []
        if self._request_mode == wire.BUFFERED:
            answer = ProcessingResponse()
            answer.request_headers.SetInParent()
            return [answer]
        raise self._wrong_mode()

    def _wrong_mode(self) -> GatewayError:
        error = GatewayError(
            "the endpoint picker needs a request_body_mode of FULL_DUPLEX_STREAMED or BUFFERED"
        )
        self._picker.refused(error)
        return error

    async def _request_body(self, piece: Message) -> Iterable[Message]:
        if self.asked:
            raise WrongOrder("more of a body that had ended")
        self._hold(piece.body)
        if self._request_mode == wire.BUFFERED:
            choice = await self._pick()
            answer = _with_choice("request_body", choice)
            if choice.body is not None:
                answer.request_body.response.body_mutation.body = choice.body
            self._let_go()
            return [answer]
        if not piece.end_of_stream:
            return []
        return await self._whole_body(ends=True)

    async def _request_trailers(self) -> Iterable[Message]:
        answer = ProcessingResponse()
        answer.request_trailers.SetInParent()
        if self.asked:
            return [answer]
        if self._request_mode == wire.BUFFERED:
            # Its head has gone on already, without a choice.
            error = BadRequest("a request with trailers must have a body")
            self._picker.refused(error)
            raise error
        return chain(await self._whole_body(ends=False), [answer])

    async def _whole_body(self, *, ends: bool) -> Iterable[Message]:
        """The choice, then the body; `ends`: no trailers follow it."""
        choice = await self._pick()
        head = _with_choice("request_headers", choice)
        if choice.body is not None:
            given = head.request_headers.response.header_mutation
            given.MergeFrom(wire.mutation({"content-length": str(len(choice.body))}))
        return chain([head], self._sent_back(choice, ends=ends))

    def _sent_back(self, choice: EndpointChoice, *, ends: bool) -> Iterator[Message]:
        """The body, made as it is sent: it is held once, and no longer than that."""
        body = self._body if choice.body is None else choice.body
        yield from _pieces("request_body", body, ends=ends)
        self._let_go()

    async def _pick(self) -> EndpointChoice:
        assert self._head is not None
        self.asked = True
        self._call = await self._picker.pick(self._head, bytes(self._body), self._key_state)
        return self._call.choice

    def _hold(self, piece: bytes) -> None:
        """Raises TooLarge, OutOfMemory."""
        wrong: GatewayError | None = None
        most = self._picker.max_body_bytes
        if len(self._body) + len(piece) > most:
            wrong = TooLarge(f"the request body is larger than {most} bytes")
        elif not self._memory.take(len(piece)):
            wrong = OutOfMemory(
                "the endpoint picker holds as many bodies as it has memory for",
                retry_after_seconds=1,
            )
        if wrong is not None:
            self._picker.refused(wrong)
            raise wrong
        self._body += piece

    def _let_go(self) -> None:
        self._memory.give_back(len(self._body))
        self._body.clear()

    # The response.

    def _response_head(self, message: Message) -> list[Message]:
        call, head = self._call, message.response_headers
        if call is not None:
            headers = wire.headers_of(head)
            served = wire.texts(message.metadata_context, NAMESPACE, SERVED) or [""]
            self._note(call.head(_status_in(headers), headers, served[0]))
            if head.end_of_stream:
                call.ended()
        self._let_go()
        answer = ProcessingResponse()
        answer.response_headers.SetInParent()
        return [answer]

    def _response_body(self, piece: Message) -> list[Message]:
        call = self._call
        if call is not None:
            call.piece(piece.body)
            if piece.end_of_stream:
                call.ended()
        if self._response_mode == wire.FULL_DUPLEX:
            return list(_pieces("response_body", piece.body, ends=piece.end_of_stream))
        answer = ProcessingResponse()
        answer.response_body.SetInParent()
        return [answer]

    def _refusal(self, error: GatewayError) -> Message:
        head = self._head
        path = "" if head is None else head.path.partition("?")[0]
        call_id = "" if head is None else self._picker.call_id(head)
        status, headers, body = errors.as_response(error, call_id, shape_of(path))
        kept = {name.decode(): value for name, value in headers if name not in _OF_THE_CONNECTION}
        answer = ProcessingResponse()
        said = answer.immediate_response
        said.status.code, said.body = status, body
        said.details = (error.code or "internal_error").replace(" ", "_")
        said.headers.CopyFrom(wire.mutation(kept))
        return answer


def _with_choice(part: str, choice: EndpointChoice) -> Message:
    """Answer to that part of the request: its headers, and the same word as metadata."""
    answer = ProcessingResponse()
    common = getattr(answer, part).response
    common.clear_route_cache = True
    common.header_mutation.CopyFrom(wire.mutation(choice.headers, choice.removed))
    answer.dynamic_metadata.update({NAMESPACE: {DESTINATION: choice.destination}})
    return answer


def _pieces(part: str, body: bytes | bytearray, *, ends: bool) -> Iterator[Message]:
    """A body that is streamed back; `ends`: its last piece is the message's end."""
    for start in range(0, len(body) or 1, PIECE_BYTES):
        answer = ProcessingResponse()
        piece = getattr(answer, part).response.body_mutation.streamed_response
        piece.body = bytes(body[start : start + PIECE_BYTES])
        piece.end_of_stream = ends and start + PIECE_BYTES >= len(body)
        yield answer


def _status_in(headers: Headers) -> int:
    said = dict(headers).get(b":status", b"")
    return int(said) if said.isdigit() and len(said) == 3 else 502
