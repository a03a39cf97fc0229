"""A decode engine that takes a call when prefill no longer keeps its KV.

vLLM's D then reads blocks that belong to another prompt by now, and answers 200 with tokens of it.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import NIXL, Engine, Pair
from tests.end_to_end.vllm.gateway import Gateway
from tests.end_to_end.vllm.metrics import held_share, metric, settles
from tests.support.freezing import freeze, thaw

LEASE_SECONDS = 30
"""vLLM 0.32.0, NIXL's kv_lease_duration."""

OTHERS = 5
OTHERS_TOKENS = 1900
"""Together they take every block that P has."""


@contextmanager
def frozen(engine: Engine) -> Iterator[None]:
    """Its API server, which takes connections all the same: the kernel does."""
    freeze(engine.process.pid)
    try:
        yield
    finally:
        thaw(engine.process.pid)


def expired(engine: Engine) -> float:
    """Prompts whose KV nobody fetched in time."""
    return metric(engine, "vllm:nixl_num_kv_expired_reqs_total")


@pytest.mark.parametrize("pair", [NIXL], indirect=True, ids=lambda it: it.name)
def test_a_decode_that_takes_a_call_after_the_lease_gives_no_wrong_token(
    alone: Engine, pair: Pair, gateway: Gateway
) -> None:
    # Nobody else's KV may expire meanwhile: it would be taken for this call's.
    assert settles(lambda: held_share(pair.prefill) == 0, LEASE_SECONDS + 15)
    asked, before = prompt(200, f"late {gateway.mode}"), expired(pair.prefill)
    with (
        ThreadPoolExecutor(1) as elsewhere,
        client(gateway.url) as ours,
        client(pair.prefill.url) as prefill,
        client(alone.url) as reference,
    ):
        with frozen(pair.decode):
            answering = elsewhere.submit(complete, ours, asked, stream=True)
            assert settles(lambda: expired(pair.prefill) > before, LEASE_SECONDS + 15)
            for number in range(OTHERS):
                other = prompt(OTHERS_TOKENS, f"over it {gateway.mode} {number}")
                complete(prefill, other, max_tokens=1)
        said = answering.result()

        assert said.answer == complete(reference, asked, stream=True).answer
    record = gateway.record(said.call_id)
    assert len(record["attempts"]) > 1
    assert record["attempts"][0]["legs"][-1]["outcome"] == "kv_expired"
