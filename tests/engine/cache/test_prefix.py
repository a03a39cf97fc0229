from pdgate.engine.cache import prefix
from pdgate.engine.cache.prefix import BlockPool

BLOCK = 4


def hashes(tokens: list[int]) -> list[bytes]:
    found: list[bytes] = []
    prefix.extend(found, tokens, BLOCK, len(tokens) // BLOCK)
    return found


def filled(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Blocks that hold these tokens, given back by their owner."""
    blocks = pool.allocator.take(len(tokens) // BLOCK)
    for block_id, known in zip(blocks, hashes(tokens), strict=True):
        pool.publish(block_id, known, None, [])
    pool.allocator.drop(blocks)
    return blocks


def test_a_hash_speaks_of_everything_before_it() -> None:
    """Equal blocks after different beginnings hold different KV."""
    assert hashes([1] * 4 + [7] * 4)[1] != hashes([2] * 4 + [7] * 4)[1]


def test_known_beginnings_are_borrowed() -> None:
    pool = BlockPool(8, BLOCK)
    blocks = filled(pool, [1] * 4 + [2] * 4 + [3] * 4)

    assert pool.borrow(hashes([1] * 4 + [2] * 4 + [9] * 4)) == blocks[:2]
    assert pool.allocator.used == 2


def test_a_block_taken_anew_is_not_found_any_more() -> None:
    pool = BlockPool(2, BLOCK)
    filled(pool, [1] * 8)
    pool.allocator.drop(pool.allocator.take(2))

    assert pool.borrow(hashes([1] * 8)) == []


def test_the_end_of_a_text_is_forgotten_before_its_beginning() -> None:
    pool = BlockPool(2, BLOCK)
    blocks = filled(pool, [1] * 8)
    pool.allocator.take(1)

    assert pool.borrow(hashes([1] * 8)) == blocks[:1]


def test_nothing_is_reused_when_told_so() -> None:
    pool = BlockPool(4, BLOCK, reuse=False)
    filled(pool, [1] * 8)

    assert pool.borrow(hashes([1] * 8)) == []


def test_other_seeds_give_other_names() -> None:
    names = []
    for seed in ("", "1", "2", "1"):
        found: list[bytes] = []
        prefix.extend(found, [1] * BLOCK, BLOCK, 1, prefix.root_of(seed))
        names.append(found[0])

    assert names[1] == names[3]
    assert len({*names}) == 3
