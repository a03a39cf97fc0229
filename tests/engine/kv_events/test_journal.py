"""What a prefix cache does is told in order, so that a listener can follow it."""

from collections.abc import Sequence

from pdgate.engine.cache import prefix
from pdgate.engine.cache.prefix import BlockPool
from pdgate.engine.kv_events.journal import Event, EventJournal, name_of

BLOCK = 4


def hashes(tokens: Sequence[int]) -> list[bytes]:
    found: list[bytes] = []
    prefix.extend(found, tokens, BLOCK, len(tokens) // BLOCK)
    return found


class Told:
    """A pool of blocks, and what it has told."""

    def __init__(self, blocks: int, *, reuse: bool = True) -> None:
        self.events: list[Event] = []
        self.journal = EventJournal(BLOCK, self.events.extend)
        self.pool = BlockPool(blocks, BLOCK, reuse, self.journal)

    def fills(self, tokens: Sequence[int]) -> None:
        """With the KV of these tokens, of which it then needs none any more."""
        blocks, known = self.pool.allocator.take(len(tokens) // BLOCK), hashes(tokens)
        for index, block_id in enumerate(blocks):
            before = known[index - 1] if index else None
            held = tokens[index * BLOCK : (index + 1) * BLOCK]
            self.pool.publish(block_id, known[index], before, held)
        self.pool.allocator.drop(blocks)
        self.journal.flush()


def test_blocks_that_follow_one_another_are_one_event() -> None:
    told = Told(8)

    told.fills([1, 2, 3, 4, 5, 6, 7, 8])

    assert told.events == [
        {
            "type": "BlockStored",
            "block_hashes": [name_of(one) for one in hashes([1, 2, 3, 4, 5, 6, 7, 8])],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4, 5, 6, 7, 8],
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
    ]


def test_a_salt_is_told_with_the_first_block() -> None:
    """As vLLM does: what follows hangs on it by its parent."""
    told = Told(8)
    first, second = hashes([1, 2, 3, 4, 5, 6, 7, 8])

    told.journal.stored(None, first, [1, 2, 3, 4], "mine")
    told.journal.stored(first, second, [5, 6, 7, 8], "mine")
    told.journal.flush()

    (event,) = told.events
    assert event["extra_keys"] == [["mine"], None]


def test_what_is_known_already_is_not_told_again() -> None:
    told = Told(8)
    told.fills([1] * 4)

    told.fills([1] * 4 + [2] * 4)

    assert told.events[1]["token_ids"] == [2] * 4
    assert told.events[1]["parent_block_hash"] == name_of(hashes([1] * 4)[0])


def test_what_is_overwritten_is_removed_before_the_new_is_stored() -> None:
    told = Told(2)
    told.fills([1] * 4 + [2] * 4)

    told.fills([3] * 4)

    assert [event["type"] for event in told.events] == [
        "BlockStored",
        "BlockRemoved",
        "BlockStored",
    ]
    assert told.events[1]["block_hashes"] == [name_of(hashes([1] * 4 + [2] * 4)[1])]


def test_an_engine_that_reuses_nothing_has_nothing_to_tell() -> None:
    told = Told(8, reuse=False)

    told.fills([1] * 8)

    assert told.events == []
