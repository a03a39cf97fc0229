"""A call outlives the prefill engine that was computing it, if there is another.

(First of this folder by its name: with two prefill engines there is no room for a third of
the fixtures that others share.)
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, PDGATE_TCP, Engine, Fleet, Transfer, ready
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.end_to_end.vllm.metrics import held_share, settles
from tests.support.ports import LOOPBACK, free_port

TOKENS = 10 * BLOCK
ALL_BLOCKS = 256


@dataclass(frozen=True)
class Trio:
    prefills: list[Engine]
    decode: Engine
    serve: list[str]
    transfer: Transfer = PDGATE_TCP


@pytest.fixture(scope="module")
def trio(fleet: Fleet) -> Iterator[Trio]:
    with ExitStack() as stack:
        starting = []
        for name, role in (("p1", "kv_producer"), ("p2", "kv_producer"), ("d", "kv_consumer")):
            port, kv_port = free_port(), free_port()
            flags = PDGATE_TCP.flags(role, port, kv_port)
            starting.append((fleet.start(stack, f"trio-{name}", port, flags), port, kv_port))
        p1, p2, decode = (ready(process, port) for process, port, _ in starting)
        at = [f"{LOOPBACK}:{kv_port}" for *_, kv_port in starting]
        serve = [
            *PDGATE_TCP.prefill_flag(p1.url, at[0]),
            *PDGATE_TCP.prefill_flag(p2.url, at[1]),
            *("--decode", decode.url),
            *("--prefill-policy", "round_robin"),
        ]
        yield Trio([p1, p2], decode, serve)


@pytest.fixture(scope="module")
def gateway(trio: Trio, fleet: Fleet) -> Iterator[Gateway]:
    with gateway_over(trio, "batch", fleet.logs) as gateway:
        yield gateway


def test_calls_of_a_prefill_engine_that_dies_are_answered_by_another(
    trio: Trio, gateway: Gateway
) -> None:
    """Both are frozen first, so that each has a call whose KV decode waits for."""
    first, second = trio.prefills
    prompts = [prompt(TOKENS, f"outlives {number}") for number in range(2)]
    with client(gateway.url) as through, ThreadPoolExecutor(2) as beside:
        for engine in trio.prefills:
            complete(through, prompt(TOKENS, f"warm {engine.url}"))
        for engine in trio.prefills:
            engine.process.signal(SIGSTOP)
        waiting = [beside.submit(complete, through, asked) for asked in prompts]
        assert settles(lambda: held_share(trio.decode) * ALL_BLOCKS >= 2 * TOKENS / BLOCK)

        first.process.signal(SIGKILL)
        second.process.signal(SIGCONT)
        said = [one.result() for one in waiting]

    with client(second.url) as direct:
        assert [one.token_ids for one in said] == [complete(direct, p).token_ids for p in prompts]
    attempts = sorted(len(gateway.record(one.call_id)["attempts"]) for one in said)
    assert attempts[0] == 1
    assert attempts[1] > 1
    assert settles(lambda: held_share(trio.decode) == 0)


def test_without_another_decode_reads_the_prompt_itself(trio: Trio, gateway: Gateway) -> None:
    """(Last: it takes the other prefill engine too.)"""
    trio.prefills[1].process.signal(SIGSTOP)
    with client(gateway.url) as through, ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(complete, through, prompt(TOKENS, "nobody is left"))
        assert settles(lambda: held_share(trio.decode) > 0)
        trio.prefills[1].process.signal(SIGKILL)
        said = waiting.result()

    with client(trio.decode.url) as direct:
        right = complete(direct, prompt(TOKENS, "nobody is left"))
    assert said.token_ids == right.token_ids
    assert gateway.record(said.call_id)["path"] == "decode_only"
    assert settles(lambda: held_share(trio.decode) == 0)
