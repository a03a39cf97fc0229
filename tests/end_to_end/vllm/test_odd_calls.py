"""Calls that do not fit the way from P to D, or that try to choose it."""

from typing import Any

import pytest
from openai import BadRequestError

from tests.end_to_end.vllm.asking import GREEDY, client, complete, prompt
from tests.end_to_end.vllm.engines import MODEL, Engine, Pair
from tests.end_to_end.vllm.gateway import Gateway
from tests.end_to_end.vllm.metrics import held_share, settles
from tests.support.processes import answers_200

EOS = 2


def test_every_prompt_of_a_list_is_answered_and_none_is_left_behind(
    alone: Engine, pair: Pair, gateway: Gateway
) -> None:
    """P would answer with the blocks of the first prompt only, and hold those of the others."""
    salt = f"list {pair.transfer.name} {gateway.mode}"
    prompts = [prompt(40 + 30 * place, f"{salt} {place}") for place in range(3)]

    with client(gateway.url) as ours, client(alone.url) as reference:
        said = ours.completions.create(**GREEDY, prompt=prompts)
        expected = [complete(reference, each).text for each in prompts]

    assert [choice.text for choice in said.choices] == expected
    assert settles(lambda: held_share(pair.prefill) == 0)


def test_several_choices_are_those_of_one_engine(
    alone: Engine, pair: Pair, gateway: Gateway
) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"two of {pair.transfer.name}, please"}],
        "n": 2,
        "seed": 7,
        "temperature": 0.8,
        "max_tokens": 12,
    }

    with client(gateway.url) as ours, client(alone.url) as reference:
        said = ours.chat.completions.create(**asked)
        expected = reference.chat.completions.create(**asked)

    texts = [choice.message.content for choice in said.choices]
    assert texts == [choice.message.content for choice in expected.choices]
    assert len(set(texts)) == 2
    assert settles(lambda: held_share(pair.prefill) == 0)


def test_an_answer_that_ends_with_its_first_token_arrives(
    alone: Engine, pair: Pair, gateway: Gateway
) -> None:
    """Mooncake's P drops the blocks of an answer that ended by itself, and D waits for minutes."""
    asked = prompt(70, f"eos {pair.transfer.name} {gateway.mode}")
    ends: dict[str, Any] = {
        "max_tokens": 8,
        "logit_bias": {str(EOS): 100},
        "extra_body": {"return_token_ids": True},
    }

    with client(gateway.url) as ours, client(alone.url) as reference:
        said = complete(ours, asked, **ends)
        expected = complete(reference, asked, **ends)

    assert said.answer == expected.answer
    assert said.finish_reason == "stop"
    assert gateway.record(said.call_id)["path"] == "disaggregated"
    assert settles(lambda: held_share(pair.prefill) == 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": []}},
        {"kv_transfer_params": {"do_remote_decode": True}},
        {"do_remote_decode": True},
        {"transfer_id": "mine"},
    ],
    ids=str,
)
def test_a_client_cannot_say_where_kv_lies(
    fields: dict[str, Any], pair: Pair, gateway: Gateway
) -> None:
    """The first three kill an engine when they reach one."""
    asked = {**GREEDY, "extra_body": {**GREEDY["extra_body"], **fields}}

    with client(gateway.url) as ours:
        with pytest.raises(BadRequestError) as refusal:
            ours.completions.create(**asked, prompt="hello")
        assert next(iter(fields)) in str(refusal.value)

        assert len(complete(ours, "hello").token_ids) == GREEDY["max_tokens"]
    for engine in (pair.prefill, pair.decode):
        assert answers_200(f"{engine.url}/health")
