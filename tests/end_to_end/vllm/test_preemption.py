"""Engines that run out of blocks while KV is on its way: whoever is preempted says no wrong token, and nothing stays behind.

p     a cache of 23 blocks, 64 tokens a step: a prompt of 12 blocks does not fit beside an answer of as many and more,
      and is preempted half way, while its layers are being written into d
d     the same cache: answers grow in it until some have to go, while others' KV comes in
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from pdgate.engine.vllm.metrics import PREFIX
from tests.end_to_end.vllm.asking import GREEDY, Said, client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, Engine, Fleet, pdgate_over, ready
from tests.end_to_end.vllm.metrics import Counted, held_share, metric, settles
from tests.support.ports import LOOPBACK, free_port

BLOCKS = 24
"""The first of which is vLLM's own."""
STEP_TOKENS = 64
LEASE_SECONDS = 30.0
AT_ONCE = 6
GROWS = 10 * BLOCK
"""Tokens of an answer that is still growing when the prompt beside it does not fit any more."""
ROUNDS = 8
"""At most, until something has been preempted."""
FEW = (
    *("--num-gpu-blocks-override", str(BLOCKS)),
    *("--max-model-len", str((BLOCKS - 1) * BLOCK)),
    *("--max-num-batched-tokens", str(STEP_TOKENS)),
    # A prompt begins while there is a block for its first step.
    "--no-scheduler-reserve-full-isl",
    "--no-enable-prefix-caching",
)


@dataclass(frozen=True, slots=True)
class Cramped:
    prefill: Engine
    decode: Engine
    kv_port: int

    def ask(self, tokens: list[int], max_tokens: int) -> Said:
        """Of decode, which has prefill compute the prompt."""
        params = {"remote_host": LOOPBACK, "remote_port": self.kv_port}
        extra = {**GREEDY["extra_body"], "kv_transfer_params": params}
        with client(self.decode.url) as direct:
            return complete(direct, tokens, extra_body=extra, max_tokens=max_tokens)

    def holds_nothing(self) -> bool:
        stranded = metric(self.decode, f"{PREFIX}stranded_blocks")
        held = metric(self.prefill, f"{PREFIX}held_blocks")
        shares = [held_share(engine) for engine in (self.prefill, self.decode)]
        return [stranded, held, *shares] == [0, 0, 0, 0]


@pytest.fixture(scope="module")
def cramped(fleet: Fleet, starting_alone: object) -> Iterator[Cramped]:
    transfer = pdgate_over("tcp", lease_seconds=LEASE_SECONDS)
    kv_port = free_port()
    with ExitStack() as stack:
        starting = []
        for role in ("kv_producer", "kv_consumer"):
            port = free_port()
            flags = [*transfer.flags(role, port, kv_port), *FEW]
            starting.append((fleet.start(stack, f"cramped-{role}", port, flags), port))
        prefill, decode = (ready(process, port) for process, port in starting)
        yield Cramped(prefill, decode, kv_port)


def preempted(engine: Engine) -> float:
    return metric(engine, "vllm:num_preemptions_total")


def together(cramped: Cramped, asked: Sequence[list[int]], max_tokens: int) -> list[Said]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda tokens: cramped.ask(tokens, max_tokens), asked))


def expected_of(alone: Engine, asked: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    with client(alone.url) as direct:
        return [complete(direct, tokens, max_tokens=max_tokens).token_ids for tokens in asked]


def test_decode_that_preempts_while_kv_comes_in_says_no_wrong_token(
    cramped: Cramped, alone: Engine
) -> None:
    """Six answers that grow from 3 to 6 blocks, in a cache of 23."""
    before, loaded = preempted(cramped.decode), Counted.by(cramped.decode).transfers
    rounds = 0
    while preempted(cramped.decode) == before and rounds < ROUNDS:
        asked = [prompt(2 * BLOCK + 5, f"decode {rounds} {number}") for number in range(AT_ONCE)]
        said = together(cramped, asked, 4 * BLOCK)
        assert [one.token_ids for one in said] == expected_of(alone, asked, 4 * BLOCK)
        rounds += 1

    assert preempted(cramped.decode) > before
    assert settles(lambda: Counted.by(cramped.decode).transfers - loaded == rounds * AT_ONCE)
    assert settles(cramped.holds_nothing, LEASE_SECONDS + 10)


def test_a_prefill_that_is_preempted_fails_its_call_alone(cramped: Cramped, alone: Engine) -> None:
    """Decode is told at once, and says nothing: that is how vllm-kvt ends a failed load."""
    local = prompt(11 * BLOCK + 5, "an answer at prefill")
    tokens = prompt(11 * BLOCK + 5, "a prompt for decode")
    with ThreadPoolExecutor(1) as beside, client(cramped.prefill.url) as direct:
        growing = beside.submit(complete, direct, local, max_tokens=GROWS)
        assert settles(lambda: held_share(cramped.prefill) * BLOCKS > 11)

        said = cramped.ask(tokens, 4)

        assert (said.finish_reason, said.token_ids) == ("abort", [])
        # vLLM counts only the preempted that say something afterwards.
        cramped.decode.process.wait_for_line("preempted: the prefill engine ran out of blocks")
        assert [growing.result().token_ids] == expected_of(alone, [local], GROWS)
    assert settles(cramped.holds_nothing, LEASE_SECONDS + 10)
    assert [cramped.ask(tokens, 4).token_ids] == expected_of(alone, [tokens], 4)
