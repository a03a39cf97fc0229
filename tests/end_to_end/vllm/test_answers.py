"""Prefill on one engine and decode on another give the answer of one engine, token for token."""

import pytest

from tests.end_to_end.vllm.asking import GREEDY, chat, client, complete, prompt
from tests.end_to_end.vllm.by_hand import decode, prefill
from tests.end_to_end.vllm.crossing import crossed
from tests.end_to_end.vllm.engines import BLOCK, Engine, Pair
from tests.end_to_end.vllm.gateway import Gateway
from tests.end_to_end.vllm.metrics import Prompts

streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

LENGTHS = {
    "less than a block": 5,
    "one block": BLOCK,
    "one block and a token": BLOCK + 1,
    "several blocks": 100,
    "many blocks": 700,
}


@streamed_or_not
@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS.keys())
def test_a_completion_equals_that_of_one_engine(
    length: int, stream: bool, alone: Engine, pair: Pair, gateway: Gateway
) -> None:
    asked = prompt(length, f"{pair.transfer.name} {gateway.mode} {length} {stream}")
    before = Prompts.of(pair.decode)

    with client(gateway.url) as ours, client(alone.url) as reference:
        said = complete(ours, asked, stream=stream)
        expected = complete(reference, asked)

    assert said.answer == expected.answer
    assert len(said.token_ids) == GREEDY["max_tokens"]
    crossed(said, before, pair, gateway)


@streamed_or_not
@pytest.mark.parametrize("repeated", [1, 40], ids=["short", "long"])
def test_a_chat_answer_equals_that_of_one_engine(
    repeated: int, stream: bool, alone: Engine, pair: Pair, gateway: Gateway
) -> None:
    said_before = f"{pair.transfer.name}, {gateway.mode}, {stream}: which gate? " * repeated
    before = Prompts.of(pair.decode)

    with client(gateway.url) as ours, client(alone.url) as reference:
        said = chat(ours, said_before, stream=stream)
        expected = chat(reference, said_before)

    assert said.answer == expected.answer
    crossed(said, before, pair, gateway, shared_tokens=BLOCK)


def test_with_the_kv_of_another_prompt_the_answer_is_another(alone: Engine, pair: Pair) -> None:
    """So the comparisons above can fail: what D says does depend on what it was handed."""
    salt = f"control {pair.transfer.name}"
    theirs, ours = prompt(100, f"{salt} theirs"), prompt(100, f"{salt} ours")
    before = Prompts.of(pair.decode)

    said = decode(pair, ours, prefill(pair, theirs))

    with client(alone.url) as reference:
        assert said.token_ids != complete(reference, ours).token_ids
    assert (Prompts.of(pair.decode) - before).computed == pair.transfer.computed_by_decode
    # And by the same way as above, the right KV gives the right answer.
    right = prompt(100, f"{salt} right")
    with client(alone.url) as reference:
        assert decode(pair, right, prefill(pair, right)).token_ids == (
            complete(reference, right).token_ids
        )
