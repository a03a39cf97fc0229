"""Events of an engine's KV cache: a msgpack batch per step.

    [ts, [event, ...], data_parallel_rank]

    {"type": "BlockStored", "block_hashes": [h, ...], "parent_block_hash": h | nil,
     "token_ids": [...], "block_size": n, "lora_id", "medium", "lora_name", "extra_keys",
     "group_idx", "kv_cache_spec_kind", ..., "lookahead_token_ids"}
    {"type": "BlockRemoved", "block_hashes": [h, ...], "medium", "group_idx", ...}
    {"type": "AllBlocksCleared"}

Older engines write each event as an array, its type first, or the batch as a map. Hashes are 64-bit integers, or bytes;
to us they are names that mean something to this one engine only.

Source: vLLM 0.32.0, vllm/distributed/kv_events.py, EventBatch and KVCacheEvent; the batch as a
map at commit 0181ea3 of that file. That there were arrays is from memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pdgate.protocols.fields import UNREADABLE

EngineHash = int | bytes


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """Full blocks that can be read from now on, one after another from the parent on.

    Attributes:
        parent_block_hash: The block before the first; None where a prompt begins.
        token_ids: Of all blocks, `block_size` each.
        extra_keys: For each block what, besides its tokens, makes its KV what it is: LoRA name,
            images, cache salt.
        group_idx: Which of the engine's KV cache groups, where there are several.
        kv_cache_spec_kind: What kind of layers that group is for.
    """

    block_hashes: list[EngineHash]
    parent_block_hash: EngineHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    block_hashes: list[EngineHash]
    medium: str | None = None
    group_idx: int | None = None


class Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The end of all cached blocks."""


class _StoredRow(Stored, tag="BlockStored", array_like=True, gc=False): ...


class _RemovedRow(Removed, tag="BlockRemoved", array_like=True, gc=False): ...


class _ClearedRow(Cleared, tag="AllBlocksCleared", array_like=True, gc=False): ...


Event = Stored | Removed | Cleared
_Row = _StoredRow | _RemovedRow | _ClearedRow


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class _MapBatch(msgspec.Struct, gc=False):
    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class _Rows(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_Row]
    data_parallel_rank: int | None = None


class _Unread(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


_batch: Final = msgspec.msgpack.Decoder(_Batch)
_map_batch: Final = msgspec.msgpack.Decoder(_MapBatch)
_rows: Final = msgspec.msgpack.Decoder(_Rows)
_unread: Final = msgspec.msgpack.Decoder(_Unread)


MOST_BATCH_BYTES: Final = 1 << 20
"""Read in one callback: 13 ms. A step of 65,536 tokens writes half of it."""
MOST_BATCH_BLOCKS: Final = 20_000
"""Taken in the same callback: 20 ms."""
MOST_UNKNOWN_EVENTS: Final = 5_000
"""Of a batch that is read event by event: 4 us each."""


class MalformedBatch(Exception):
    """The batch is no batch at all."""


class BatchTooLarge(MalformedBatch):
    """More than one callback of the event loop may take; what it said of the cache is not known."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """
    Attributes:
        at: When the engine published it, seconds since the epoch by its clock.
        unknown: Events that could not be read.
    """

    at: float
    events: Sequence[Event]
    unknown: int = 0


def read(payload: bytes) -> EventBatch:
    """Events that cannot be read are left out, and counted. Raises MalformedBatch, BatchTooLarge."""
    if len(payload) > MOST_BATCH_BYTES:
        raise BatchTooLarge(f"a batch of {len(payload)} bytes")
    batch = _read(payload)
    blocks = sum(
        len(event.block_hashes) for event in batch.events if not isinstance(event, Cleared)
    )
    if blocks > MOST_BATCH_BLOCKS:
        raise BatchTooLarge(f"a batch of {blocks} blocks")
    return batch


def _read(payload: bytes) -> EventBatch:
    try:
        batch = _batch.decode(payload)
        return EventBatch(batch.ts, batch.events)
    except UNREADABLE:
        # Maps are tried first, as every engine of this year writes them.
        pass
    for decoder in (_map_batch, _rows):
        try:
            other: _MapBatch | _Rows = decoder.decode(payload)
            return EventBatch(other.ts, other.events)
        except UNREADABLE:
            continue
    return _one_by_one(payload)


def _one_by_one(payload: bytes) -> EventBatch:
    try:
        batch = _unread.decode(payload)
    except UNREADABLE as error:
        raise MalformedBatch(str(error)) from None
    if len(batch.events) > MOST_UNKNOWN_EVENTS:
        raise BatchTooLarge(
            f"a batch of {len(batch.events)} events, of which some are of no known kind"
        )
    known: list[Event] = []
    for event in batch.events:
        kind: Any = _Row if isinstance(event, list) else Event
        try:
            known.append(msgspec.convert(event, kind))
        except (msgspec.ValidationError, RecursionError):
            continue
    return EventBatch(batch.ts, known, len(batch.events) - len(known))
