"""gRPC server of the picker: Envoy's streams, health checks, TLS, and the end.

    a stream      one request: PATIENCE_SECONDS to come whole, and then for as long as its response takes
    the end       no new requests (they get 503), health checks say NOT_SERVING, what runs may end (lifecycle/drain.py)

Each worker has a server of its own at the same port: the kernel shares connections among them (SO_REUSEPORT).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from pdgate.cluster.address import joined
from pdgate.gateway.endpoint_picker import wire
from pdgate.gateway.endpoint_picker.conversation import Conversation, HeldMemory, WrongOrder
from pdgate.gateway.endpoint_picker.outcome import ServedEndpoint
from pdgate.gateway.endpoint_picker.picking import EndpointPicker
from pdgate.gateway.endpoint_picker.wire import HealthCheckRequest, HealthCheckResponse, Message

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 300.0
MOST_STREAMS: Final = 16_384
"""Requests under way; beyond them RESOURCE_EXHAUSTED."""
MESSAGE_SLACK_BYTES: Final = 1 << 20
"""Of a message beside a body: a head, metadata."""
LOOK_SECONDS: Final = 0.5
WATCHES: Final = 256
"""Health checks that go on."""
LAST_SECONDS: Final = 1.0
READY: Final = "readiness"
ALIVE: Final = "liveness"


@dataclass(frozen=True, slots=True)
class ListeningAt:
    """
    Attributes:
        certificate: PEM of its chain and its key; None to speak in the clear.
    """

    host: str
    port: int
    certificate: tuple[bytes, bytes] | None = None

    @property
    def address(self) -> str:
        return joined(self.host, self.port)


class PickerServer:
    """
    Attributes:
        served: From which engine of the list responses were.
    """

    def __init__(
        self,
        picker: EndpointPicker,
        memory: HeldMemory,
        listening: ListeningAt,
        ready: Callable[[], bool],
    ) -> None:
        """`ready`: requests may come."""
        self.served: Counter[ServedEndpoint] = Counter()
        self._picker = picker
        self._memory = memory
        self._listening = listening
        self._ready = ready
        self._watching = 0

    async def run(self) -> None:
        """Serves until it is cancelled. Raises RuntimeError where it cannot listen."""
        most = self._picker.max_body_bytes + MESSAGE_SLACK_BYTES
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", most),
                # No packet says that a gateway's host is gone.
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ],
            maximum_concurrent_rpcs=MOST_STREAMS,
        )
        server.add_generic_rpc_handlers(self._handlers())
        self._listen(server)
        await server.start()
        try:
            await server.wait_for_termination()
        finally:
            # Not cancelled a second time: what runs has had its time.
            await asyncio.shield(server.stop(LAST_SECONDS))

    def _listen(self, server: grpc.aio.Server) -> None:
        at = self._listening
        if at.certificate is None:
            server.add_insecure_port(at.address)
            return
        chain, key = at.certificate
        server.add_secure_port(at.address, grpc.ssl_server_credentials([(key, chain)]))

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        reads, writes = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        return (
            grpc.method_handlers_generic_handler(
                wire.SERVICE,
                {
                    "Process": grpc.stream_stream_rpc_method_handler(
                        self._process,
                        wire.ProcessingRequest.FromString,
                        wire.ProcessingResponse.SerializeToString,
                    )
                },
            ),
            grpc.method_handlers_generic_handler(
                wire.HEALTH_SERVICE,
                {
                    "Check": grpc.unary_unary_rpc_method_handler(self._check, reads, writes),
                    "Watch": grpc.unary_stream_rpc_method_handler(self._watch, reads, writes),
                },
            ),
        )

    async def _process(self, _: AsyncIterator[Message], context: Any) -> None:
        talk = Conversation(self._picker, self._memory, self._note)
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_SECONDS
        try:
            while not talk.over:
                async with asyncio.timeout_at(None if talk.asked else until):
                    message = await context.read()
                if message is grpc.aio.EOF:
                    return
                for answer in await talk.answers(message):
                    await context.write(answer)
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, "the request did not come to its end"
            )
        except WrongOrder as error:
            log.warning("the gateway that asks for engines: %s", error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            talk.end()

    def _note(self, served: ServedEndpoint) -> None:
        self.served[served] += 1

    def _status(self, service: str) -> int:
        if service == ALIVE:
            return wire.SERVING
        if service in ("", READY, wire.SERVICE):
            return wire.SERVING if self._ready() else wire.NOT_SERVING
        return wire.SERVICE_UNKNOWN

    async def _check(self, request: Message, context: Any) -> Message:
        status = self._status(request.service)
        if status == wire.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return HealthCheckResponse(status=status)

    async def _watch(self, request: Message, context: Any) -> AsyncIterator[Message]:
        """Says each change of it, until the other side leaves."""
        if self._watching >= WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch already")
        self._watching += 1
        try:
            before = None
            while True:
                status = self._status(request.service)
                if status != before:
                    before = status
                    yield HealthCheckResponse(status=status)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._watching -= 1
