"""Hashes of a block that all engines hold, from their KV events (extra `kv-events`).

    async with listening(fleet) as ears:
        ...                             # give all of them one text
        names = await ears.names(tokens)

Frames: topic | number | [seconds, [event, ...], rank] in msgpack. Events are maps; older engines
write them as lists. Source: vLLM 0.32.0, distributed/kv_events.py.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pdgate.cluster.kv_events import curve
from pdgate.operations.doctor.seen import SeenEngine, SeenEvents
from pdgate.protocols.extras import install

if TYPE_CHECKING:
    import zmq.asyncio

CONNECT_SECONDS: Final = 3.0
HEAR_SECONDS: Final = 3.0
"""After the call has ended; engines publish in the step that filled the block."""

NEEDS: Final = f"it needs one more package: {install('kv-events')}"
NOBODY: Final = "fewer than two engines publish KV events (vLLM: --kv-events-config)"

Name = int | bytes | str


def why_not(fleet: Iterable[SeenEngine]) -> str:
    """What stands against it; empty if nothing does."""
    if len([seen for seen in fleet if seen.events is not None]) < 2:
        return NOBODY
    return "" if find_spec("zmq") else NEEDS


class Ears:
    def __init__(self, sockets: "Mapping[str, zmq.asyncio.Socket]") -> None:
        self._sockets = sockets

    async def names(self, tokens: Mapping[str, Sequence[int]]) -> dict[str, tuple[Name, ...]]:
        """Engine -> what it calls the blocks of a prompt that it was given, as far as it was heard.

        `tokens`: engine -> that prompt, whose first block is looked for.
        """
        found: dict[str, tuple[Name, ...]] = {}

        async def hear(engine: str, wanted: Sequence[int]) -> None:
            try:
                async with asyncio.timeout(HEAR_SECONDS):
                    while True:
                        frames = await self._sockets[engine].recv_multipart()
                        for event in _events(frames[-1]):
                            if (names := _first_blocks(event, wanted)) is not None:
                                found[engine] = names
                                return
            except TimeoutError:
                return

        async with asyncio.TaskGroup() as group:
            for engine, wanted in tokens.items():
                if engine in self._sockets:
                    group.create_task(hear(engine, wanted))
        return found


@asynccontextmanager
async def listening(fleet: Iterable[SeenEngine], kv_secrets: Sequence[str]) -> AsyncIterator[Ears]:
    """To all that publish, and could be connected to. Needs pyzmq."""
    import zmq
    import zmq.asyncio
    from zmq.utils.monitor import recv_monitor_message

    async def ear(context: zmq.asyncio.Context, events: SeenEvents) -> zmq.asyncio.Socket | None:
        try:
            proven = curve.listening(events.source, kv_secrets)
        except curve.UnprovenPublisher:
            return None
        socket = context.socket(zmq.SUB)
        if proven is not None:
            proven.of(socket)
        socket.setsockopt(zmq.IPV6, 1)
        socket.subscribe(b"")
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            socket.connect(events.endpoint)
            async with asyncio.timeout(CONNECT_SECONDS):
                await recv_monitor_message(monitor)
        except (TimeoutError, zmq.ZMQError):
            return None
        return socket

    context = zmq.asyncio.Context()
    try:
        sockets = {}
        for seen in fleet:
            if seen.events is not None:
                socket = await ear(context, seen.events)
                if socket is not None:
                    sockets[seen.id] = socket
        yield Ears(sockets)
    finally:
        # Sockets and their monitors; `term` would wait for them.
        context.destroy(linger=0)


def _events(payload: bytes) -> list[Any]:
    try:
        batch = msgspec.msgpack.decode(payload)
        return list(batch[1])
    except (msgspec.DecodeError, TypeError, IndexError, KeyError):
        return []


def _first_blocks(event: Any, wanted: Sequence[int]) -> tuple[Name, ...] | None:
    """Of a BlockStored that begins the prompt."""
    if isinstance(event, list) and len(event) >= 4 and event[0] == "BlockStored":
        names, parent, held = event[1:4]
    elif isinstance(event, dict) and event.get("type") == "BlockStored":
        names, parent = event.get("block_hashes"), event.get("parent_block_hash")
        held = event.get("token_ids")
    else:
        return None
    if parent is not None or not isinstance(names, list) or not isinstance(held, list):
        return None
    return tuple(names) if held and names and list(wanted[: len(held)]) == held else None
