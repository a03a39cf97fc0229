"""`--early-first-token` over stock vLLM: prefill's token is out while decode stands still, and decode loads the whole prompt.

Decode is given the prompt alone and samples its first token by itself, also where the prompt ends at a block's border.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from tests.end_to_end.vllm.asking import Said, client, complete, prompt
from tests.end_to_end.vllm.crossing import crossed
from tests.end_to_end.vllm.engines import BLOCK, MODEL, NIXL, Engine, Fleet, Pair
from tests.end_to_end.vllm.gateway import UNWATCHED, Gateway, gateway_over
from tests.end_to_end.vllm.measure_early import begins_whole
from tests.end_to_end.vllm.metrics import Prompts, held_share, settles
from tests.end_to_end.vllm.parts import frozen

pytestmark = pytest.mark.parametrize("pair", [NIXL], indirect=True, ids=lambda it: it.name)

LENGTHS: Final = {
    "one block": BLOCK,
    "ten blocks": 10 * BLOCK,
    "ten blocks and a token": 10 * BLOCK + 1,
}
TOKENS: Final = 8
LEASE_SECONDS: Final = 30
"""NIXL's, as stock vLLM has it."""
TRIED: Final = 100
"""Prompts; of the bytes that the model's tokens are, few are half a character."""


@pytest.fixture(scope="module")
def early(pair: Pair, fleet: Fleet) -> Iterator[Gateway]:
    # Other files' tests leave P with KV that no engine fetches.
    assert settles(lambda: held_share(pair.prefill) == 0, 2 * LEASE_SECONDS)
    with gateway_over(
        pair, "staged", fleet.logs, flags=(*UNWATCHED, "--early-first-token")
    ) as gateway:
        yield gateway


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS.keys())
def test_the_token_is_there_while_decode_stands_still_and_the_prompt_is_loaded(
    length: int, alone: Engine, pair: Pair, early: Gateway
) -> None:
    asked, expected = said_in_whole_characters(alone, length)
    before = Prompts.of(pair.decode)

    with client(early.url) as ours, ExitStack() as standing:
        standing.enter_context(frozen(pair.decode, "EngineCore"))
        answer: Any = ours.completions.with_raw_response.create(
            model=MODEL,
            prompt=asked,
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = iter(answer.parse())
        text = next(chunks).choices[0].text
        assert text
        standing.close()
        usage: Any = None
        for chunk in chunks:
            text += "".join(choice.text for choice in chunk.choices)
            usage = chunk.usage or usage

    assert text == expected
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (length, TOKENS)
    said = Said([], text, "length", length, answer.headers["x-request-id"])
    crossed(said, before, pair, early)
    assert (Prompts.of(pair.decode) - before).transferred == length


def said_in_whole_characters(alone: Engine, length: int) -> tuple[list[int], str]:
    """A prompt whose answer begins with a whole character, and the answer."""
    with client(alone.url) as reference:
        for number in range(TRIED):
            asked = prompt(length, f"early {number} {length}")
            if begins_whole(reference, asked):
                return asked, complete(reference, asked, max_tokens=TOKENS).text
    raise AssertionError(f"of {TRIED} answers none begins with a whole character")
