"""An engine whose model is on tensors answers as one on arrays does, alone and as either half of a pair, token for token."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, partial

import pytest

from pdgate.engine.core import EngineCore
from pdgate.engine.request import Sampling
from pdgate.engine.tensors import own_pages
from pdgate.forwarders.base import Mode
from pdgate.transfer import registry
from tests.engine.tensors.on_tensors import KINDS, layout_of
from tests.support.core_pairs import Crossing, Row, side, until
from tests.support.engine_cores import GREEDY, Engine, ask, tokens_of
from tests.support.ranked_engines import holds_nothing
from tests.support.waiting import wait_until

ASKED = {
    "The quick brown fox jumps over the lazy dog, and then over another.": GREEDY,
    "One whose tokens are drawn with a seed, and whose last block is not full.": Sampling(
        max_tokens=24, temperature=1.0, seed=11, ignore_eos=True
    ),
}
ROWS = [
    Row("vllm-kvt", Mode.BATCH),
    Row("vllm-nixl", Mode.STAGED),
    Row("vllm-mooncake", Mode.BATCH, "d"),
    Row("sglang", Mode.BATCH),
]
ON = {"prefill": (True, False), "decode": (False, True), "both": (True, True)}
"""Which halves are on tensors."""
SPLITS = [(1, 1), (2, 1), (1, 2)]


@cache
def expected(kind: str) -> dict[str, list[int]]:
    """What NumPy's engine says, alone."""
    return alone(kind, on_tensors=False)


def alone(kind: str, *, on_tensors: bool) -> dict[str, list[int]]:
    model = KINDS[kind](on_tensors=on_tensors)
    where = layout_of(model)
    made = Engine(memoryview(b""))
    made.core = EngineCore(model, where, own_pages(where, model.tensors), made.deliver)
    made.core.start()
    found = {prompt: made.tokens(ask(prompt, prompt, how)) for prompt, how in ASKED.items()}
    made.core.stop()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_alone_it_says_what_numpy_says(kind: str) -> None:
    assert alone(kind, on_tensors=True) == expected(kind)


@pytest.mark.matrix("row", "backend", "kind", "on", "split")
@pytest.mark.parametrize("split", SPLITS, ids=lambda it: f"{it[0]}to{it[1]}")
@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["tcp", "shm"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_pair_says_what_numpy_says_alone(
    row: Row, backend: str, kind: str, on: str, split: Sequence[int]
) -> None:
    with ExitStack() as stack:
        prefill, decode = (
            side(
                stack,
                role,
                row.protocol,
                stack.enter_context(closing(registry.load(backend))),
                layout_of(KINDS[kind](on_tensors=on_tensors), tp),
                model=replace(KINDS[kind](on_tensors=on_tensors), root="tiny"),
                mover="threads",
            )
            for role, on_tensors, tp in zip(("prefill", "decode"), ON[on], split, strict=True)
        )
        crossing = Crossing(row, prefill, decode)

        for number, (prompt, sampling) in enumerate(ASKED.items()):
            found = tokens_of(crossing.answer(prompt, sampling, f"c{number}-1"))
            until(prefill.core.told, "release")
            assert found == expected(kind)[prompt]

        assert decode.stats.prompts_from_peer > 0
        for one in (prefill, decode):
            wait_until(partial(holds_nothing, one), "no page in use")
