"""Hashes of a block that all engines hold, from their KV events (of those with a KV secret: extra `kv-events`).

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
from typing import Any, Final

import msgspec

from pdgate.cluster.kv_events import curve
from pdgate.cluster.zmtp import dialled
from pdgate.cluster.zmtp.wire import EndedConnection, Wire
from pdgate.operations.doctor.seen import SeenEngine, SeenEvents
from pdgate.protocols.extras import install

CONNECT_SECONDS: Final = 3.0
MOST_BATCH_BYTES: Final = 64 << 20
HEAR_SECONDS: Final = 3.0
"""After the call has ended; engines publish in the step that filled the block."""

NEEDS: Final = f"it needs one more package: {install('kv-events')}"
NOBODY: Final = "fewer than two engines publish KV events (vLLM: --kv-events-config)"

Name = int | bytes | str


def why_not(fleet: Iterable[SeenEngine]) -> str:
    """What stands against it; empty if nothing does."""
    there = [seen.events for seen in fleet if seen.events is not None]
    if len(there) < 2:
        return NOBODY
    encrypted = any(curve.FIELD in events.source for events in there)
    return NEEDS if encrypted and find_spec("nacl") is None else ""


class Ears:
    def __init__(self, wires: Mapping[str, Wire]) -> None:
        self._wires = wires

    async def names(self, tokens: Mapping[str, Sequence[int]]) -> dict[str, tuple[Name, ...]]:
        """Engine -> what it calls the blocks of a prompt that it was given, as far as it was heard.

        `tokens`: engine -> that prompt, whose first block is looked for.
        """
        found: dict[str, tuple[Name, ...]] = {}

        async def hear(engine: str, wanted: Sequence[int]) -> None:
            try:
                async with asyncio.timeout(HEAR_SECONDS):
                    while True:
                        frames = await self._wires[engine].receive()
                        for event in _events(frames[-1]):
                            if (names := _first_blocks(event, wanted)) is not None:
                                found[engine] = names
                                return
            except (EndedConnection, OSError, EOFError):
                # Too late, or its engine has left.
                return

        async with asyncio.TaskGroup() as group:
            for engine, wanted in tokens.items():
                if engine in self._wires:
                    group.create_task(hear(engine, wanted))
        return found


@asynccontextmanager
async def listening(fleet: Iterable[SeenEngine], kv_secrets: Sequence[str]) -> AsyncIterator[Ears]:
    """Listen to all that publish, and could be connected to."""
    wires: dict[str, Wire] = {}
    try:
        for seen in fleet:
            if seen.events is not None:
                wire = await _ear(seen.events, kv_secrets)
                if wire is not None:
                    wires[seen.id] = wire
        yield Ears(wires)
    finally:
        for wire in wires.values():
            wire.close()


async def _ear(events: SeenEvents, kv_secrets: Sequence[str]) -> Wire | None:
    try:
        proven = curve.listening(events.source, kv_secrets)
        async with asyncio.timeout(CONNECT_SECONDS):
            wire = await dialled.dial(
                events.endpoint, dialled.SUB, MOST_BATCH_BYTES, _at_once, proven
            )
    except (curve.UnprovenPublisher, EndedConnection, OSError, UnicodeError):
        return None
    dialled.subscribe(wire, "")
    return wire


async def _at_once() -> None:
    """Nothing else is served meanwhile."""
    await asyncio.sleep(0)


def _events(payload: bytes) -> list[Any]:
    try:
        batch = msgspec.msgpack.decode(payload)
        return list(batch[1])
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, IndexError, KeyError):
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
