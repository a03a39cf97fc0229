"""A data plane by hand: what Envoy's external processing filter says to a picker, one message at a time.

async with gateway_of(engine, epp=at(port := free_port())) as gateway, picker_at(port) as picker:
    asking = picker.request(b'{"model": "m"}')
    choice = await asking.choice()
    await asking.responds()
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from pdgate.gateway.endpoint_picker import wire
from pdgate.protocols.call import CHAT
from tests.support.ports import LOOPBACK
from tests.support.waiting import PATIENCE_SECONDS

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
DESTINATION = "x-gateway-destination-endpoint"


def at(port: int, **more: Any) -> dict[str, Any]:
    """The section `epp` of a gateway that is asked there."""
    return {"listen": f"{LOOPBACK}:{port}", "insecure": True, **more}


class Asking:
    """One request."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def say(self, **parts: Any) -> None:
        await self._stream.write(wire.ProcessingRequest(**parts))

    async def read(self) -> Any:
        """The next answer; None where the picker has ended the stream."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = await self._stream.read()
        return None if found is grpc.aio.EOF else found

    async def head(
        self,
        path: str = CHAT,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        *,
        modes: tuple[int, int] = (wire.FULL_DUPLEX, wire.FULL_DUPLEX),
        subset: Sequence[str] | str | None = None,
        ends: bool = False,
        **more: Any,
    ) -> None:
        """`modes`: how the bodies of the request and of the response are sent."""
        message = wire.ProcessingRequest(**more)
        message.request_headers.end_of_stream = ends
        every = {":method": method, ":path": path, ":authority": "llm", **(headers or {})}
        for name, value in every.items():
            message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = (
            modes
        )
        if subset is not None:
            said = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            said.update(
                {f"{DESTINATION}-subset": subset if isinstance(subset, str) else list(subset)}
            )
        await self._stream.write(message)

    async def body(self, piece: bytes, *, ends: bool = True) -> None:
        await self.say(request_body={"body": piece, "end_of_stream": ends})

    async def asks(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Any:
        """A chat, whole; what is answered to its head: a choice, or a refusal."""
        subset = fields.pop("subset", None)
        await self.head(headers=headers, subset=subset)
        await self.body(json.dumps({**QUESTION, **fields}).encode())
        answer = await self.read()
        if answer.HasField("request_headers"):
            assert (await self.read()).HasField("request_body")
        return answer

    async def response_head(
        self, status: int = 200, served: str = "", *, ends: bool = False
    ) -> None:
        message = wire.ProcessingRequest()
        message.response_headers.end_of_stream = ends
        message.response_headers.headers.headers.add(key=":status", raw_value=b"%d" % status)
        if served:
            said = message.metadata_context.filter_metadata["envoy.lb"]
            said.update({f"{DESTINATION}-served": served})
        await self._stream.write(message)
        assert (await self.read()).HasField("response_headers")

    async def response_body(self, piece: bytes, *, ends: bool = True) -> list[Any]:
        """The answers to it, which hold it again."""
        await self.say(response_body={"body": piece, "end_of_stream": ends})
        answers = [await self.read()]
        while sum(len(streamed(one)) for one in answers) < len(piece):
            answers.append(await self.read())
        return answers

    def leaves(self) -> None:
        """The stream is reset, as Envoy's is when a client leaves."""
        self._stream.cancel()

    async def done(self) -> None:
        await self._stream.done_writing()
        assert await self.read() is None


def streamed(answer: Any) -> bytes:
    """Of a body that comes back."""
    part = answer.request_body if answer.HasField("request_body") else answer.response_body
    body: bytes = part.response.body_mutation.streamed_response.body
    return body


def headers_set(answer: Any, part: str = "request_headers") -> dict[str, str]:
    """By the choice; those that are taken away with an empty value."""
    mutation = getattr(answer, part).response.header_mutation
    found = {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}
    return {**dict.fromkeys(mutation.remove_headers, ""), **found}


def destination(answer: Any, part: str = "request_headers") -> list[str]:
    """Addresses, in their order; said alike in the header and in the metadata."""
    said = headers_set(answer, part)[DESTINATION]
    fields = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert fields[DESTINATION].string_value == said
    return said.split(",")


def refusal(answer: Any) -> tuple[int, dict[str, Any]]:
    """Status, and the error in the body."""
    said = answer.immediate_response
    return said.status.code, json.loads(said.body)["error"]


class PickerClient:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._process = channel.stream_stream(
            f"/{wire.SERVICE}/Process",
            wire.ProcessingRequest.SerializeToString,
            wire.ProcessingResponse.FromString,
        )
        self._check = channel.unary_unary(
            f"/{wire.HEALTH_SERVICE}/Check",
            wire.HealthCheckRequest.SerializeToString,
            wire.HealthCheckResponse.FromString,
        )

    def request(self) -> Asking:
        return Asking(self._process(wait_for_ready=True))

    async def health(self, service: str = "") -> int:
        asked = wire.HealthCheckRequest(service=service)
        answer = await self._check(asked, wait_for_ready=True, timeout=PATIENCE_SECONDS)
        status: int = answer.status
        return status


@asynccontextmanager
async def picker_at(port: int, certificate: bytes | None = None) -> AsyncIterator[PickerClient]:
    """`certificate`: that it has to show; None for one that speaks without TLS."""
    address = f"{LOOPBACK}:{port}"
    if certificate is None:
        made = grpc.aio.insecure_channel(address)
    else:
        options = [("grpc.ssl_target_name_override", "localhost")]
        made = grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(certificate), options=options
        )
    async with made as channel:
        yield PickerClient(channel)
