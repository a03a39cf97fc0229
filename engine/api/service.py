"""The part that all endpoints share: the core, the model, and how a request becomes an answer."""

import asyncio
import time
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from starlette.requests import Request as HttpRequest

from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.constrained.grammar import Grammars
from pdgate.engine.core import EngineCore
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.output_queue import Mailbox, OutputQueue
from pdgate.engine.request import Output, Request
from pdgate.protocols.errors import BadRequest, GatewayError, KvNotLoaded, UnknownModel

ANY_NAME: Final = "*"

Result = TypeVar("Result")


class EngineDead(GatewayError):
    """The core's thread is gone, or the connector's; only a restart helps."""

    status, code = 503, "engine_dead"


class ClientGone(Exception):
    """The client closed its connection before the answer was complete."""


@dataclass(frozen=True, slots=True)
class EngineService:
    """
    Attributes:
        names: What clients may call the model; answers say the first.
        default_max_tokens: Of a chat that names no limit; None for all the room there is.
        head_first: The head of a stream is sent before its first token is there.
    """

    core: EngineCore
    output_queue: OutputQueue
    metrics: EngineMetrics
    names: tuple[str, ...]
    default_max_tokens: int | None
    created: int = field(default_factory=lambda: int(time.time()))
    grammars: Grammars = field(default_factory=Grammars)
    head_first: bool = False

    @property
    def model(self) -> LoadedModel:
        return self.core.model

    def model_name(self, asked: object) -> str:
        """What the answer says. Raises UnknownModel."""
        if asked is None or asked == "":
            return self.names[0]
        if asked in self.names or ANY_NAME in self.names:
            return str(asked)
        raise UnknownModel(f"The model `{asked}` does not exist.", param="model")

    def room(self, prompt_tokens: int) -> int:
        """Tokens that an answer may have whose call names no limit."""
        room = max(1, self.model.positions - prompt_tokens)
        return min(room, self.default_max_tokens or room)

    def submit(self, ask: ParsedRequest, wire_id: str) -> Mailbox:
        """Starts every choice of every prompt. Raises EngineDead."""
        if not self.core.alive:
            raise EngineDead("the engine is not running")
        return self.output_queue.submit(
            self.core,
            [
                _request(ask, wire_id, prompt_index * ask.choices + choice, choice)
                for prompt_index in range(len(ask.prompts))
                for choice in range(ask.choices)
            ],
        )


def _request(ask: ParsedRequest, wire_id: str, index: int, choice: int) -> Request:
    """Ids are unique although clients may send the same X-Request-Id twice."""
    sampling = ask.sampling
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + choice)
    params = ask.body.get("kv_transfer_params")
    if params is not None and not isinstance(params, dict):
        raise BadRequest("kv_transfer_params must be an object", param="kv_transfer_params")
    return Request(
        id=f"{wire_id}-{index}-{uuid.uuid4().hex[:8]}",
        wire_id=wire_id,
        prompt=ask.prompts[ask.prompt_of(index)],
        sampling=sampling,
        params=params,
        body=ask.body,
        index=index,
    )


def wire_id(http: HttpRequest) -> str:
    return http.headers.get("x-request-id") or uuid.uuid4().hex


def new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def raise_refusal(output: Output) -> None:
    """Raises what the core refused, as the client shall see it."""
    refusal = output.refusal
    if refusal is not None:
        other = KvNotLoaded if refusal.over_kv else GatewayError
        raise (BadRequest if refusal.blame_client else other)(refusal.message)


async def unless_client_leaves(http: HttpRequest, answer: Awaitable[Result]) -> Result:
    """The answer. Raises ClientGone if its client has left."""
    working = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_gone(http))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
