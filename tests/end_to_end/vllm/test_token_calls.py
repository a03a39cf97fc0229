"""Calls of token ids, /inference/v1/generate, which only NIXL's pair splits."""

import json
from typing import Any

import httpx2
import pytest

from pdgate.protocols.apis import GENERATE
from tests.end_to_end.vllm.asking import ASK_SECONDS, Said, prompt
from tests.end_to_end.vllm.crossing import crossed
from tests.end_to_end.vllm.engines import MODEL, NIXL, Engine, Pair
from tests.end_to_end.vllm.gateway import Gateway
from tests.end_to_end.vllm.metrics import Prompts

SAMPLING: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 1}


def ask(url: str, ids: list[int], *, stream: bool) -> tuple[Said, list[float]]:
    """The answer, and the log-probabilities of its tokens."""
    body: dict[str, Any] = {"model": MODEL, "token_ids": ids, "sampling_params": SAMPLING}
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = httpx2.post(f"{url}{GENERATE}", json={**body, **more}, timeout=ASK_SECONDS)
    assert answer.status_code == 200, answer.text
    assert "kv_transfer_params" not in answer.text or '"kv_transfer_params":null' in answer.text
    if stream:
        *events, done = answer.text.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        chunks = [json.loads(each.removeprefix("data: ")) for each in events]
    else:
        chunks = [answer.json()]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    said = Said(
        token_ids=[token for choice in choices for token in choice["token_ids"]],
        text="",
        finish_reason=choices[-1]["finish_reason"],
        prompt_tokens=chunks[-1]["usage"]["prompt_tokens"],
        call_id=answer.headers.get("x-request-id", ""),
    )
    content = [each for choice in choices for each in choice["logprobs"]["content"]]
    assert [each["token_id"] for each in content] == said.token_ids
    return said, [each["logprob"] for each in content]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tokens_are_those_of_one_engine(
    alone: Engine, pair: Pair, gateway: Gateway, stream: bool
) -> None:
    ids = prompt(150, f"tokens {pair.transfer.name} {gateway.mode} {stream}")
    before = Prompts.of(pair.decode)

    said, numbers = ask(gateway.url, ids, stream=stream)

    expected, others = ask(alone.url, ids, stream=stream)
    assert said.answer == expected.answer
    assert numbers == pytest.approx(others, abs=1e-3)
    if pair.transfer is NIXL:
        crossed(said, before, pair, gateway)
    else:
        assert gateway.record(said.call_id)["path"] == "local"
