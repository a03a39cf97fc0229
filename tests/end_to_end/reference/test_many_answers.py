"""Several prompts or choices in one call, and the odd sizes: right, and no page stays behind."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError

from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Gateway, Pair, Route, client

ROUTES = [
    Route("vllm-nixl", "staged"),
    Route("vllm-kvt", "batch"),
    Route("vllm-mooncake", "batch", "d"),
    Route("sglang", "batch"),
    Route("neuron", "batch"),
]
PROMPTS = ["first of three prompts", "the second one", "and a third, longer than the others"]


@pytest.fixture(scope="module", params=ROUTES, ids=str)
def crossing(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[tuple[Pair, Gateway]]:
    pair = fleet.pair(request.param.protocol, "shm")
    with fleet.gateway(pair, request.param) as gateway:
        yield pair, gateway


@pytest.fixture
def gateway(crossing: tuple[Pair, Gateway]) -> Gateway:
    return crossing[1]


@pytest.fixture
def single(fleet: Fleet) -> Engine:
    return fleet.single()


@pytest.fixture(autouse=True)
def _no_page_stays_behind(crossing: tuple[Pair, Gateway]) -> Iterator[None]:
    yield
    for engine in (crossing[0].prefill, crossing[0].decode):
        engine.keeps_nothing()


def asked(url: str, **fields: Any) -> dict[int, tuple[str, str]]:
    """Index -> text and finish reason."""
    answer = client(url).completions.create(
        **{"model": "pdgate-tiny", "max_tokens": 6, "temperature": 0, **fields}
    )
    return {choice.index: (choice.text, choice.finish_reason) for choice in answer.choices}


def test_a_list_of_prompts(gateway: Gateway, single: Engine) -> None:
    assert asked(gateway.url, prompt=PROMPTS) == asked(single.url, prompt=PROMPTS)


def test_a_list_of_one_prompt(gateway: Gateway, single: Engine) -> None:
    assert asked(gateway.url, prompt=PROMPTS[:1]) == asked(single.url, prompt=PROMPTS[:1])


def test_prompts_of_token_ids(gateway: Gateway, single: Engine) -> None:
    for prompt in ([1, *range(70, 90)], [[1, 70, 71], [1, 80, 81, 82]]):
        assert asked(gateway.url, prompt=prompt) == asked(single.url, prompt=prompt)


def test_several_choices(gateway: Gateway, single: Engine) -> None:
    drawn = {"prompt": PROMPTS[0], "n": 3, "temperature": 0.9, "seed": 7}

    answers = asked(gateway.url, **drawn)

    assert answers == asked(single.url, **drawn)
    assert len(set(answers.values())) > 1, "a seeded draw that differs by choice"


@pytest.mark.parametrize("limit", [1, 2])
def test_very_short_answers(gateway: Gateway, single: Engine, limit: int) -> None:
    for prompt in PROMPTS:
        short = {"prompt": prompt, "max_tokens": limit}
        assert asked(gateway.url, **short) == asked(single.url, **short)


def test_stop_strings(gateway: Gateway, single: Engine) -> None:
    (whole, _) = asked(single.url, prompt=PROMPTS[0], max_tokens=12)[0]
    stopping = {"prompt": PROMPTS[0], "max_tokens": 12, "stop": [whole[4:6]]}

    assert asked(gateway.url, **stopping) == asked(single.url, **stopping)


def test_log_probabilities(gateway: Gateway, single: Engine) -> None:
    def logprobs(url: str) -> Any:
        answer = client(url).chat.completions.create(
            model="pdgate-tiny",
            messages=[{"role": "user", "content": "how sure are you?"}],
            max_tokens=5,
            temperature=0,
            logprobs=True,
            top_logprobs=2,
        )
        found = answer.choices[0].logprobs
        assert found
        assert found.content
        return [(one.token, pytest.approx(one.logprob, abs=1e-4)) for one in found.content]

    assert logprobs(gateway.url) == logprobs(single.url)


def test_log_probabilities_of_the_prompt(
    crossing: tuple[Pair, Gateway], gateway: Gateway, single: Engine
) -> None:
    def echoed(url: str) -> Any:
        answer = client(url).completions.create(
            model="pdgate-tiny",
            prompt="echo me",
            max_tokens=2,
            temperature=0,
            echo=True,
            logprobs=1,
        )
        found = answer.choices[0].logprobs
        assert found
        return (answer.choices[0].text, found.tokens), found.token_logprobs

    if crossing[0].protocol == "sglang":
        # They stay with its prefill engines; zeros in their place were a lie.
        with pytest.raises(BadRequestError, match="log-probabilities of the prompt"):
            echoed(gateway.url)
        return
    said, expected = echoed(gateway.url), echoed(single.url)
    assert said[0] == expected[0]
    # Zeros are what an engine says of tokens that it has not computed.
    assert said[1] == pytest.approx(expected[1], abs=1e-4)


def test_a_call_with_tools(gateway: Gateway, single: Engine) -> None:
    def answered(url: str) -> list[Any]:
        with HTTP.stream(
            "POST",
            f"{url}/v1/chat/completions",
            json={
                "model": "pdgate-tiny",
                "messages": [{"role": "user", "content": "call a tool"}],
                "tools": [{"type": "function", "function": {"name": "now"}}],
                "max_tokens": 5,
                "temperature": 0,
                "stream": True,
            },
        ) as response:
            return [
                line.split('"choices":')[1] for line in response.iter_lines() if "choices" in line
            ]

    assert answered(gateway.url) == answered(single.url)
