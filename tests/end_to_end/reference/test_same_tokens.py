"""Every protocol and mode gives the answer that one undisaggregated engine would have given.

Token for token, by chat and completions, streamed and not, with the KV really moved: the
decode engine computes no more than the last token of a prompt.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from pdgate.protocols.sse import Splitter, payload
from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Gateway, Pair, Route, client
from tests.support.kv_backends import require

WHOLE = pytest.mark.matrix
ROUTES = [
    Route("vllm-nixl", "batch"),
    Route("vllm-nixl", "staged"),
    Route("vllm-kvt", "batch"),
    Route("vllm-kvt", "staged"),
    *(
        Route("vllm-mooncake", mode, g)
        for g, mode in zip("abcd", ("batch", "staged") * 2, strict=True)
    ),
    Route("sglang", "batch"),
    Route("neuron", "batch"),
]
TOKENS = 12
BLOCK_TOKENS = 16

# The built-in tokenizer makes one token of a byte, and puts one before the text.
PROMPTS = {
    "shorter than a block": "Hello",
    "exactly two blocks": "x" * (2 * BLOCK_TOKENS - 1),
    "one more than two blocks": "y" * (2 * BLOCK_TOKENS),
    "many blocks": "the quick brown fox jumps over the lazy dog. " * 7,
}


def said(engine_url: str, prompt: str, chat: bool, stream: bool) -> tuple[str, str | None, Any]:
    """Text, finish reason and usage of a greedy answer."""
    api = client(engine_url)
    options: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "model": "pdgate-tiny"}
    if stream:
        options |= {"stream": True, "stream_options": {"include_usage": True}}
    if chat:
        messages: Any = [{"role": "user", "content": prompt}]
        answer: Any = api.chat.completions.create(messages=messages, **options)
    else:
        answer = api.completions.create(prompt=prompt, **options)
    if not stream:
        (choice,) = answer.choices
        text = choice.message.content if chat else choice.text
        return text, choice.finish_reason, counted(answer.usage)
    return joined(answer, chat)


def joined(events: Iterator[Any], chat: bool) -> tuple[str, str | None, Any]:
    text, reasons, usages, roles = "", [], [], []
    for event in events:
        if event.usage:
            usages.append(counted(event.usage))
        for choice in event.choices:
            if chat and choice.delta.role:
                roles.append(choice.delta.role)
            text += (choice.delta.content if chat else choice.text) or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    assert roles == (["assistant"] if chat else [])
    (reason,), (usage,) = reasons, usages
    return text, reason, usage


def counted(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


class Counts(NamedTuple):
    """What a decode engine counted since it started, or between two looks.

    Attributes:
        moved, computed: Tokens of prompts whose KV came from a peer; which it computed itself.
    """

    moved: float
    computed: float
    answers: float

    def since(self, before: "Counts") -> "Counts":
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


def counts(decode: Engine) -> Counts:
    by_source = "vllm:prompt_tokens_by_source_total"
    return Counts(
        decode.metric(by_source, source="external_kv_transfer"),
        decode.metric(by_source, source="local_compute"),
        decode.metric("vllm:request_success_total"),
    )


# What carries the bytes does not depend on the protocol or mode, so one row for each other
# backend is enough here: tests/engine/hand_over/test_same_tokens.py has them all.
CASES = [
    *((route, "shm") for route in ROUTES),
    *(
        pytest.param((Route("vllm-mooncake", mode, g), "shm"), marks=WHOLE)
        for g, mode in zip("abcd", ("staged", "batch") * 2, strict=True)
    ),
    (Route("vllm-kvt", "batch"), "tcp"),
    (Route("vllm-mooncake", "batch", "d"), "mooncake"),
    (Route("vllm-nixl", "batch"), "nixl"),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def crossing(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[tuple[Pair, Gateway]]:
    route, transfer = request.param
    require(transfer)
    pair = fleet.pair(route.protocol, transfer)
    with fleet.gateway(pair, route) as gateway:
        yield pair, gateway


@pytest.fixture
def pair(crossing: tuple[Pair, Gateway]) -> Pair:
    return crossing[0]


@pytest.fixture
def gateway(crossing: tuple[Pair, Gateway]) -> Gateway:
    return crossing[1]


@pytest.fixture
def single(fleet: Fleet) -> Engine:
    return fleet.single()


@pytest.mark.matrix("crossing", "stream", "chat")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_the_answer_is_the_single_engines(
    gateway: Gateway, pair: Pair, single: Engine, chat: bool, stream: bool
) -> None:
    before = counts(pair.decode)

    for prompt in PROMPTS.values():
        expected = said(single.url, prompt, chat, stream)
        assert said(gateway.url, prompt, chat, stream) == expected

    # The first call of each prompt moved KV; later ones may find it in decode's own cache.
    found = counts(pair.decode).since(before)
    assert found.moved > 0
    # At most the last token of each prompt.
    assert found.computed <= found.answers


def test_the_gateways_record_says_that_the_kv_was_handed_over(gateway: Gateway) -> None:
    raw = gateway.openai().completions.with_raw_response.create(
        model="pdgate-tiny", prompt="where did this go?", max_tokens=2, temperature=0
    )

    record = gateway.record(raw.headers["x-request-id"])

    assert (record["path"], record["kv"], record["outcome"]) == (
        "disaggregated",
        "handed_over",
        "ok",
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("mode", ["batch", "staged"])
def test_a_long_chat_is_tokenised_once_and_exactly(
    fleet: Fleet, single: Engine, mode: str, stream: bool
) -> None:
    """Decode reads the ids that prefill answered: those that it would have made itself."""
    pair = fleet.pair("vllm-nixl", "shm")
    asked: dict[str, Any] = {
        "model": "pdgate-tiny",
        "messages": [
            {"role": "system", "content": "Größe: 3,5 [{"},
            {"role": "user", "content": [{"type": "text", "text": f"{mode} {stream} " * 20}]},
        ],
        # Only this makes it long.
        "metadata": {"padding": "x" * 20_000},
        "temperature": 0,
        "max_tokens": TOKENS,
        "return_token_ids": True,
        "stream": stream,
    }
    before = counts(pair.decode)
    with fleet.gateway(pair, Route("vllm-nixl", mode)) as gateway:
        through = HTTP.post(f"{gateway.url}/v1/chat/completions", json=asked)
    alone = HTTP.post(f"{single.url}/v1/chat/completions", json=asked)
    own = HTTP.post(f"{pair.decode.url}/tokenize", json={"messages": asked["messages"]}).json()

    assert (through.status_code, alone.status_code) == (200, 200), through.text
    if stream:
        said, expected = (
            [
                json.loads(data)
                for event in Splitter().feed(answer.content)
                if (data := payload(event)) not in (None, b"[DONE]")
            ]
            for answer in (through, alone)
        )
        assert said[0]["prompt_token_ids"] == own["tokens"]
        assert [ids_of(one) for one in said] == [ids_of(one) for one in expected]
    else:
        assert through.json()["prompt_token_ids"] == own["tokens"]
        assert through.json()["choices"] == alone.json()["choices"]
    found = counts(pair.decode).since(before)
    assert found.moved > 0
    assert found.computed <= 1


def ids_of(event: dict[str, Any]) -> Any:
    return [(one["delta"], one.get("token_ids")) for one in event["choices"]]
