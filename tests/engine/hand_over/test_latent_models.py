"""A model with latent attention crosses as any other: one plane, no heads, each shard has all of it."""

from contextlib import ExitStack, closing
from functools import lru_cache

import pytest

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.core import EngineCore
from pdgate.engine.layout import Layout
from pdgate.engine.model.load import LoadedModel
from pdgate.forwarders.base import Mode
from pdgate.transfer import registry
from tests.support.core_pairs import Crossing, Row, side, until
from tests.support.engine_cores import GREEDY, Engine, ask, tokens_of
from tests.support.latent_models import CONFIG, latent_model
from tests.support.waiting import wait_until

ROWS = [
    Row("vllm-nixl", Mode.STAGED),
    Row("vllm-kvt", Mode.BATCH),
    Row("vllm-mooncake", Mode.BATCH, "d"),
    Row("sglang", Mode.BATCH),
]
PROMPT = "The quick brown fox jumps over the lazy dog, and then over another."


@lru_cache
def model() -> LoadedModel:
    return latent_model()


def layout(tp: int = 1) -> Layout:
    return Layout(CONFIG.layers, 32, 1, 16, CONFIG.head_dim, tp=tp, planes=1)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    where = layout()
    alone = Engine(memoryview(bytearray(where.total_bytes)))
    alone.core = EngineCore(model(), where, KvMemory(where, [alone.memory]), alone.deliver)
    alone.core.start()
    found = alone.tokens(ask("alone", PROMPT))
    alone.core.stop()
    return found


@pytest.mark.parametrize("split", [(1, 1), (2, 1), (1, 4)], ids=lambda it: f"{it[0]}to{it[1]}")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_answer_is_the_single_engines(
    row: Row, split: tuple[int, int], expected: list[int]
) -> None:
    with ExitStack() as stack:
        prefill, decode = (
            side(
                stack,
                role,
                row.protocol,
                stack.enter_context(closing(registry.load("tcp"))),
                layout(tp),
                model=model(),
                mover="threads",
            )
            for role, tp in zip(("prefill", "decode"), split, strict=True)
        )

        found = tokens_of(Crossing(row, prefill, decode).answer(PROMPT, GREEDY, "c1-1"))
        until(prefill.core.told, "release")

        assert found == expected
        assert decode.stats.prompts_from_peer > 0
        # Told that it may, prefill has not always done so yet.
        wait_until(lambda: prefill.used() == decode.used() == 0, "no page in use")


def test_neuron_refuses_it_at_the_start() -> None:
    with (
        ExitStack() as stack,
        closing(registry.load("tcp")) as backend,
        pytest.raises(ValueError, match="caches a latent"),
    ):
        side(stack, "prefill", "neuron", backend, layout(), model=model())
