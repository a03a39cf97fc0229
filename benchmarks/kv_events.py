"""What it costs to follow engines' KV events: `python -m benchmarks.kv_events`.

A publisher of ours repeats a history of blocks stored and removed, over real sockets; the CPU time
of the thread that listens is divided by the blocks. Half of the prompts are tied to bytes, as are
those that a gateway has seen. Prints JSON, and a line to read.

    blocks_per_step   how many blocks an engine's batch is about: fewer make each dearer
    microseconds      CPU of the event loop's thread, for a block
    share_of_core     at 10,000 blocks a second
    bytes_per_block   of memory, for a block that an engine has
"""

import asyncio
import json
import time
import tracemalloc
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from pdgate.engine.kv_events.publisher import Publisher
from pdgate.gateway.kv_events import subscriber as feeding
from pdgate.gateway.kv_events.cached import Cached
from pdgate.gateway.kv_events.events import Stored, read
from pdgate.gateway.kv_events.prompts import IndexedPrompt
from pdgate.gateway.kv_events.sources import EventSource
from pdgate.gateway.kv_events.subscriber import Subscriber
from pdgate.gateway.kv_events.translation import EventTranslation, SeenEventCounts
from pdgate.scheduling.prefix import PrefixIndex

BLOCK_TOKENS = 16
PROMPT_BLOCKS = 512
BYTE_BLOCKS = PROMPT_BLOCKS * BLOCK_TOKENS * 4 // 512
PROMPTS = 100
EVENTS_PER_SECOND = 10_000
NAME_BYTES = 36
"""Of a number of 64 bits, which were there before memory was counted."""
ANY_PORT = "tcp://127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Text:
    tokens: list[int]
    names: list[int]


def texts(random: Random, count: int) -> list[Text]:
    return [
        Text(
            [random.randrange(150_000) for _ in range(PROMPT_BLOCKS * BLOCK_TOKENS)],
            [random.getrandbits(64) for _ in range(PROMPT_BLOCKS)],
        )
        for _ in range(count)
    ]


def stored(text: Text, first: int, end: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": text.names[first:end],
        "parent_block_hash": text.names[first - 1] if first else None,
        "token_ids": text.tokens[first * BLOCK_TOKENS : end * BLOCK_TOKENS],
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": None,
        "group_idx": 0,
    }


def history(made: list[Text], step: int) -> Iterator[list[dict[str, Any]]]:
    """Batches: each prompt is read step by step, and later evicted block by block, end first."""
    for number, text in enumerate(made):
        old = made[number - PROMPTS // 4] if number >= PROMPTS // 4 else None
        for first in range(0, PROMPT_BLOCKS, step):
            batch = []
            if old is not None:
                gone = old.names[::-1][first : first + step]
                batch += [
                    {"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU"}
                    for name in gone
                ]
            batch.append(stored(text, first, first + step))
            yield batch


async def microseconds(made: list[Text], step: int) -> tuple[float, int]:
    """CPU for a block, and how many blocks it was measured with."""
    batches = list(history(made, step))
    publisher = Publisher(ANY_PORT, ANY_PORT, keeps=len(batches))
    for batch in batches:
        publisher.publish(batch)
    translation, seen = EventTranslation(PrefixIndex()), SeenEventCounts()
    # Somebody has to say how long blocks are before prompts can be tied to them.
    translation.take(
        "another", 0, read(msgspec.msgpack.encode([1.0, batches[0], 0])), SeenEventCounts()
    )
    for number, text in enumerate(made[::2]):
        blocks = array("Q", range(number << 32, (number << 32) + BYTE_BLOCKS))
        ends = [(index + 1) * len(text.tokens) // BYTE_BLOCKS for index in range(BYTE_BLOCKS)]
        translation.learn(IndexedPrompt(blocks, ends, text.tokens, None))
    done = asyncio.Event()

    def taken(payload: bytes) -> None:
        translation.take("engine", 0, read(payload), seen)
        if feed.counts.batches == len(batches):
            done.set()

    source = EventSource(publisher.endpoint, publisher.replay_endpoint)
    begun = time.thread_time()
    feed = Subscriber(source, taken, lambda: None)
    await done.wait()
    spent = time.thread_time() - begun
    feed.close()
    publisher.close()
    assert seen.malformed == 0
    assert feed.counts.gaps == 0
    blocks_seen = seen.stored + seen.removed
    return spent / blocks_seen * 1e6, blocks_seen


def bytes_per_block(made: list[Text]) -> float:
    payloads = [[read_back(stored(text, 0, PROMPT_BLOCKS))] for text in made]
    tracemalloc.start()
    cached = Cached()
    for (event,) in payloads:
        cached.stored(event)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (taken + NAME_BYTES * len(cached)) / len(cached)


def read_back(event: dict[str, Any]) -> Stored:
    (found,) = read(msgspec.msgpack.encode([1.0, [event], 0])).events
    assert isinstance(found, Stored)
    return found


def main() -> None:
    feeding.REST_SECONDS = 0.0  # type: ignore[misc]
    made = texts(Random(7), PROMPTS)
    rows = []
    for step in (1, 8, 64, 512):
        spent, blocks = asyncio.run(microseconds(made, step))
        share = spent * EVENTS_PER_SECOND / 1e6
        rows.append(
            {
                "blocks_per_step": step,
                "blocks": blocks,
                "microseconds": round(spent, 2),
                "share_of_core": round(share, 4),
            }
        )
        print(f"{step:4} blocks a batch: {spent:5.2f} us a block, {share:6.1%} of a core")
    print(json.dumps({"feeding": rows, "bytes_per_block": round(bytes_per_block(made))}))


if __name__ == "__main__":
    main()
