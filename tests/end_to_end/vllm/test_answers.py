"""Prefill on one engine and decode on another give the answer of one engine, token for token."""

from typing import Any

import httpx2
import pytest

from pdgate.protocols.dialects.nixl import ASK
from tests.end_to_end.vllm.asking import ASK_SECONDS, GREEDY, chat, client, complete, prompt
from tests.end_to_end.vllm.by_hand import decode, prefill
from tests.end_to_end.vllm.crossing import crossed
from tests.end_to_end.vllm.engines import BLOCK, NIXL, Engine, Pair
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


@streamed_or_not
def test_a_long_chat_is_tokenised_once(
    stream: bool, alone: Engine, pair: Pair, gateway: Gateway
) -> None:
    """NIXL's decode takes the ids that prefill answered; the others' are told as before."""
    asked = f"once {pair.transfer.name}, {gateway.mode}, {stream}: Größe 3,5? " * 4
    # Only this makes it long.
    padding = {**GREEDY["extra_body"], "metadata": {"padding": "x" * 20_000}}
    before = Prompts.of(pair.decode)

    with client(gateway.url) as ours, client(alone.url) as reference:
        said = chat(ours, asked, stream=stream, extra_body=padding)
        expected = chat(reference, asked)

    assert said.answer == expected.answer
    crossed(said, before, pair, gateway, shared_tokens=BLOCK)


def test_decode_reads_the_ids_that_prefill_answered(alone: Engine, pair: Pair) -> None:
    """And not its messages, which are others here: so what the gateway hands on is of use."""
    if pair.transfer is not NIXL:
        pytest.skip("the frontend is the same with every connector")
    theirs = [
        {"role": "user", "content": "the prompt that prefill has read, of several blocks " * 4}
    ]
    read = ask_chat(pair.prefill, theirs, kv_transfer_params={**ASK}, max_tokens=1)
    params = {**read["kv_transfer_params"], "prompt_token_ids": read["prompt_token_ids"]}

    said = ask_chat(
        pair.decode, [{"role": "user", "content": "another"}], kv_transfer_params=params
    )

    expected = ask_chat(alone, theirs)
    assert said["prompt_token_ids"] == read["prompt_token_ids"] == expected["prompt_token_ids"]
    assert said["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]


def ask_chat(engine: Engine, messages: Any, **more: Any) -> dict[str, Any]:
    asked = {**GREEDY, **GREEDY["extra_body"], "messages": messages, **more}
    del asked["extra_body"]
    answer = httpx2.post(f"{engine.url}/v1/chat/completions", json=asked, timeout=ASK_SECONDS)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


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
