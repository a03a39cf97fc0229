"""Every protocol over every backend, split alike or not, answers as one engine alone would.

    protocol   all, in each spelling that makes the engines do something else
    backend    shm, tcp, mooncake, nixl: each side has one of its own
    split      shards of prefill : of decode; each shard has a region of its own, and its
               queries see that region only, so a head in the wrong shard changes the answer

The cores and connectors are real, and the legs are those that a gateway's forwarder
writes; only HTTP is left out, because processes are what such a test costs.
tests/end_to_end/reference has it, with processes, for a part of the rows.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from pdgate.engine.hand_over.neuron import NeuronHandOver
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.engine.request import Sampling
from pdgate.transfer import registry
from pdgate.transfer.base import Region
from tests.support.core_pairs import ROWS, Crossing, Row, Side, side, until
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of
from tests.support.kv_backends import BACKENDS, require
from tests.support.waiting import wait_until

BLOCKS, BLOCK_TOKENS = 32, 16
SPLITS = [(1, 1), (2, 1), (1, 2), (4, 2)]
"""The built-in model has two KV heads, so four shards have each of them twice."""
ASKED = {
    "The quick brown fox jumps over the lazy dog, and then over another.": replace(
        GREEDY, max_tokens=6
    ),
    "One whose beginning nobody has cached, and whose tokens are drawn with a seed.": Sampling(
        max_tokens=6, temperature=1.0, seed=11, ignore_eos=True
    ),
}
"""Prompts of several blocks, the last of them not full, and how to answer."""


class Memories:
    """A backend for each side, and regions for each number of shards: all rows use the same."""

    def __init__(self, backend: str, stack: ExitStack) -> None:
        self._stack = stack
        self.backends = {role: registry.load(backend) for role in ("prefill", "decode")}
        for made in self.backends.values():
            stack.callback(made.close)
        self._regions: dict[tuple[str, int], list[Region]] = {}

    def blank(self, role: str, tp: int) -> list[Region]:
        """Regions in which nothing is left of another row, for any size of blocks."""
        if (role, tp) not in self._regions:
            total_bytes = layout(BLOCKS, BLOCK_TOKENS, tp).total_bytes
            allocate = self.backends[role].allocate
            self._regions[role, tp] = [allocate(total_bytes) for _ in range(tp)]
        regions = self._regions[role, tp]
        for region in regions:
            region.memory[:] = bytes(len(region.memory))
        return regions


@pytest.fixture(scope="module", params=BACKENDS)
def memories(request: pytest.FixtureRequest) -> Iterator[Memories]:
    require(request.param)
    with ExitStack() as stack:
        yield Memories(request.param, stack)


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    alone = engine()
    alone.core.start()
    found = {prompt: alone.tokens(ask(prompt, prompt, how)) for prompt, how in ASKED.items()}
    alone.core.stop()
    return found


@pytest.mark.matrix("memories", "row", "split")
@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split[0]}to{split[1]}")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_answer_is_the_single_engines(
    memories: Memories, expected: dict[str, list[int]], row: Row, split: tuple[int, int]
) -> None:
    assert_crossing(memories, expected, row, split, (BLOCK_TOKENS, BLOCK_TOKENS))


@pytest.mark.matrix("memories", "row", "blocks")
@pytest.mark.parametrize("blocks", [(8, 32), (32, 8)], ids=lambda both: f"{both[0]}to{both[1]}")
@pytest.mark.parametrize("row", [one for one in ROWS if one.protocol != "neuron"], ids=str)
def test_blocks_may_have_other_sizes(
    memories: Memories, expected: dict[str, list[int]], row: Row, blocks: tuple[int, int]
) -> None:
    assert_crossing(memories, expected, row, (2, 1), blocks)


def assert_crossing(
    memories: Memories,
    expected: dict[str, list[int]],
    row: Row,
    split: tuple[int, int],
    block_tokens: tuple[int, int],
) -> None:
    found = {}
    with ExitStack() as stack:

        def started(role: str, tp: int, tokens: int) -> Side:
            return side(
                stack,
                role,
                row.protocol,
                memories.backends[role],
                layout(BLOCKS * BLOCK_TOKENS // tokens, tokens, tp),
                regions=memories.blank(role, tp),
                # The pushing process is the end-to-end tests' part: each costs a start.
                mover="threads",
            )

        prefill, decode = (
            started(*one) for one in zip(("prefill", "decode"), split, block_tokens, strict=True)
        )
        crossing = Crossing(row, prefill, decode)
        for number, (prompt, sampling) in enumerate(ASKED.items()):
            found[prompt] = tokens_of(crossing.answer(prompt, sampling, f"c{number}-1"))
            until(prefill.core.told, "release")

        assert found == expected
        lengths = [len(ask("", prompt).prompt) for prompt in ASKED]
        # But the last token of each, where prefill does not hand the one behind it over.
        assert isinstance(decode.connector, TwoSided | NeuronHandOver)
        computed = 0 if decode.connector.hands_first_token else len(lengths)
        assert decode.stats.prompts_from_peer == sum(lengths) - computed
        assert decode.stats.prompts_computed == computed
        # Told that it may, prefill has not always done so yet.
        wait_until(lambda: prefill.used() == decode.used() == 0, "no page in use")
