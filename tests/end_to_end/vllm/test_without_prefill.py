"""Prefill is killed while decode waits for its KV. (After all others: it leaves no P behind.)

Left to itself, Mooncake's D waits for 480 s.
"""

import signal
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import MOONCAKE, NIXL, Engine, Fleet, Pair
from tests.end_to_end.vllm.gateway import gateway_over
from tests.end_to_end.vllm.metrics import metric, running, settles
from tests.support.freezing import freeze

LIMIT_SECONDS = 60.0
"""Of which an answer takes one; the rest is for a busy machine."""


@pytest.mark.parametrize("pair", [NIXL, MOONCAKE], indirect=True, ids=lambda it: it.name)
def test_a_prefill_that_is_killed_leaves_the_prompt_to_decode(
    alone: Engine, pair: Pair, fleet: Fleet
) -> None:
    asked = prompt(200, f"killed {pair.transfer.name}")
    with (
        gateway_over(pair, "batch", fleet.logs) as gateway,
        ThreadPoolExecutor(1) as elsewhere,
        client(gateway.url) as ours,
        client(alone.url) as reference,
    ):
        # It has the call, and says nothing.
        freeze(pair.prefill.process.pid)
        answering = elsewhere.submit(complete, ours, asked)
        counted = Engine(gateway.url, gateway.process)
        assert settles(lambda: metric(counted, "pdgate_instance_calls", role="prefill") == 1)
        killed = monotonic()
        pair.prefill.process.signal(signal.SIGKILL)

        said = answering.result()

        assert said.answer == complete(reference, asked).answer
        assert monotonic() - killed < LIMIT_SECONDS
        assert settles(lambda: running(pair.decode) == 0)
