"""Guessed tokens over real processes: the state of the prompt crosses with its pages, and nothing of an answer changes."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway, Pair, Route, client
from tests.support.waiting import wait_until

MODEL = ("--model", "pdgate-tiny-mtp")
PROMPTS = [
    f"{n} brown foxes jump over the lazy dog, and then over {n} other ones." for n in range(8)
]
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}


@pytest.fixture(scope="module")
def single(fleet: Fleet) -> Engine:
    return fleet.engine("plain", "plain", "shm", *MODEL)


@pytest.fixture(scope="module")
def pair(fleet: Fleet) -> Pair:
    return Pair(
        "vllm-kvt",
        fleet.engine("prefill", "vllm-kvt", "shm", *MODEL),
        fleet.engine("decode", "vllm-kvt", "shm", *MODEL, "--speculate", "4"),
    )


@pytest.fixture(scope="module")
def gateway(fleet: Fleet, pair: Pair) -> Iterator[Gateway]:
    with ExitStack() as running:
        yield running.enter_context(fleet.gateway(pair, Route("vllm-kvt", "batch")))


def answers(url: str, **more: Any) -> list[Any]:
    asked: dict[str, Any] = {"model": MODEL[1], "max_tokens": 24, "temperature": 0} | more
    return [client(url).completions.create(prompt=prompt, **asked).choices[0] for prompt in PROMPTS]


def texts(url: str, **more: Any) -> list[tuple[str, str]]:
    return [(choice.text, choice.finish_reason) for choice in answers(url, **more)]


@pytest.mark.parametrize(
    "more",
    [{}, {"temperature": 0.8, "seed": 5}, {"stop": ["U"]}],
    ids=["greedy", "seeded", "a stop string"],
)
def test_the_answers_are_those_of_an_engine_that_guesses_nothing(
    single: Engine, pair: Pair, gateway: Gateway, more: dict[str, Any]
) -> None:
    before = pair.decode.metric("pdgate_engine_states_used_total")

    assert texts(gateway.url, **more) == texts(single.url, **more)

    # Of every prompt the first step had guesses already, from the state that came with its pages.
    wait_until(
        lambda: pair.decode.metric("pdgate_engine_states_used_total") - before == len(PROMPTS),
        "the first steps with guesses",
    )
    assert pair.decode.metric("pdgate_engine_states_refused_total") == 0


def test_tokens_come_in_fewer_steps_and_metrics_say_so(
    single: Engine, pair: Pair, gateway: Gateway
) -> None:
    assert texts(gateway.url, max_tokens=40) == texts(single.url, max_tokens=40)
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    drafts, guessed, accepted = (
        pair.decode.metric(f"vllm:spec_decode_{name}_total") for name in names
    )
    by_place = pair.decode.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total")

    assert 0 < accepted < guessed <= 4 * drafts
    assert by_place == accepted
    turns = pair.decode.metric("pdgate_engine_turns_total")
    assert pair.decode.metric("vllm:generation_tokens_total") == turns + accepted
    # A state of prefill's is as good as one of decode's own.
    assert pair.decode.metric("pdgate_engine_states_accepted_total") > 0


def test_chats_tools_and_several_choices_are_the_same(
    single: Engine, pair: Pair, gateway: Gateway
) -> None:
    def said(url: str) -> list[Any]:
        openai = client(url)
        message: Any = {"role": "user", "content": PROMPTS[0]}
        tool: Any = {"tools": [TOOL], "tool_choice": "required"}
        called = openai.chat.completions.create(
            model=MODEL[1],
            messages=[message],
            temperature=0,
            **tool,
        )
        several = openai.completions.create(
            model=MODEL[1], prompt=PROMPTS[1], n=3, seed=9, temperature=0.9, max_tokens=16
        )
        calls = called.choices[0].message.tool_calls or []
        return [
            [(call.function.name, call.function.arguments) for call in calls],
            [choice.text for choice in several.choices],
        ]

    assert said(gateway.url) == said(single.url)
