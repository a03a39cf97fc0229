"""Encode stage: media of a call are encoded before any protocol has the call. Interpreted, as `beside.py`.

    items of the call, each once --> a leg to an encode engine each, in parallel --> ec_transfer_params, merged
                                                                                     into the body that P and D get

An item goes to the engine that encoded it last: engines cache embeddings by the item's hash, and do not say for how long, so
the gateway remembers where and not what. An engine that fails an item is replaced by another for that item.
A call without media, or of a model without encode engines, passes as it is.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from pdgate.forwarders.base import Engines, Leg, Upstream
from pdgate.forwarders.record import Record
from pdgate.protocols import media
from pdgate.protocols.call import CHAT, Call, Raw
from pdgate.protocols.errors import GatewayError, NoInstance
from pdgate.protocols.instance import ENCODE, Instance

AT_ONCE: Final = 16
"""Items of one call that encode engines have at a time."""
REMEMBERED: Final = 1 << 16
"""Items of which it is known where they were encoded: 10 MB."""
ASIDE_BYTES: Final = 256 << 10
"""Longer texts are looked through and hashed in a thread: of the emptiest parts that many take 13 ms."""


class EncodeStage:
    """
    Attributes:
        attempts: For each item.
    """

    def __init__(
        self,
        engines: Engines,
        upstream: Upstream,
        attempts: int,
        failed: Callable[[Instance, GatewayError], None],
    ) -> None:
        """`failed`: how a leg to an encode engine ended."""
        self._engines = engines
        self._upstream = upstream
        self._failed = failed
        self._last: OrderedDict[bytes, str] = OrderedDict()
        self.attempts = attempts

    def wants(self, call: Call) -> bool:
        """Whether it may have media that an engine is there for; long ones are looked through later."""
        may = is_long(call) or media.may_have_media(call)
        return may and self._engines.has(ENCODE, call)

    async def encoded(self, call: Call, record: Record) -> Call:
        """The call with what encode engines said of its media. Raises GatewayError."""
        if is_long(call):
            items = await asyncio.to_thread(_looked_for, call)
        else:
            items = media.items_of(call)
        if not items:
            return call
        turns = asyncio.Semaphore(AT_ONCE)
        handles: dict[str, Any] = {}
        try:
            async with asyncio.TaskGroup() as group:
                asked = [
                    group.create_task(self._item(call, record, number, *item, turns))
                    for number, item in enumerate(items.items())
                ]
                # In the block: before Python 3.12 a task stays cancelled whose group fails as it ends.
                for one in asked:
                    handles.update(await one)
        except BaseExceptionGroup as failed:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # As in `beside`.
                raise asyncio.CancelledError from None
            raise failed.exceptions[0] from None
        return media.encoded(call, handles)

    async def _item(
        self,
        call: Call,
        record: Record,
        number: int,
        name: bytes,
        item: Raw,
        turns: asyncio.Semaphore,
    ) -> Mapping[str, Any]:
        # Of its length the prompt's says nothing, and of its cache neither.
        asked = msgspec.structs.replace(
            call, path=CHAT, api=None, body={}, blocks=(), prompt_tokens=0, streams=False
        )
        body = media.asking(call, item)
        avoid: set[str] = set()
        cause: GatewayError | None = None
        async with turns:
            while True:
                last = self._last.get(name)
                try:
                    reserved = self._engines.reserve(
                        ENCODE,
                        asked,
                        avoid=avoid,
                        alone=True,
                        reads=False,
                        among=() if last is None else (last,),
                    )
                except NoInstance as none:
                    raise (cause or none) from None
                with reserved:
                    at = reserved.instance
                    leg = Leg(at, CHAT, body, request_id=f"{call.attempt_id}-e{number}")
                    noted = record.leg(ENCODE, at)
                    try:
                        handles = media.handles_in(await self._upstream.ask(leg, call))
                    except GatewayError as error:
                        noted.end(error)
                        error.at = error.at or at.id
                        self._failed(at, error)
                        avoid.add(at.id)
                        if not error.worth_retrying or len(avoid) >= self.attempts:
                            raise
                        cause = error
                        reserved.withdraw()
                        continue
                    except BaseException as error:
                        noted.end(error)
                        raise
                    noted.end(None)
                    reserved.worked()
                    self._remember(name, at.id)
                    return handles

    def _remember(self, name: bytes, engine: str) -> None:
        self._last[name] = engine
        self._last.move_to_end(name)
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)


def is_long(call: Call) -> bool:
    """Whether what may have media is to be looked through in a thread."""
    said = media.held_in(call)
    return said is not None and len(said) > ASIDE_BYTES


def _looked_for(call: Call) -> Mapping[bytes, Raw]:
    return media.items_of(call) if media.may_have_media(call) else {}
