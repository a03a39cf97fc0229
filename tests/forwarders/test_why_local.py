"""Which calls one engine must serve alone, and why."""

from dataclasses import replace
from typing import Any

import pytest

from pdgate.forwarders.base import one_token
from pdgate.forwarders.sglang import Sglang
from pdgate.forwarders.vllm_nixl import VllmNixl
from pdgate.protocols.call import COMPLETIONS, Call, encode, parse_object
from pdgate.scheduling.disaggregation import Never
from pdgate.scheduling.disaggregation.decision import NEVER
from tests.support.answers import several, whole
from tests.support.scripted import D0, P0, Crossing, Scripted, call_of, chat


def completion(**fields: Any) -> Call:
    return call_of(encode({"model": "m", "prompt": "hi", **fields}), COMPLETIONS)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (completion(prompt=["a", "b"]), "several prompts"),
        (completion(prompt=[[1, 2], [3]]), "several prompts"),
        (completion(n=2), "several choices"),
        (completion(best_of=3), "several choices"),
        (chat(n=2), "several choices"),
        (completion(echo=True, logprobs=0), "logprobs of the prompt"),
        (completion(prompt_logprobs=0), "prompt_logprobs"),
        (chat(prompt_logprobs=5), "prompt_logprobs"),
        (completion(use_beam_search=True), "beam search"),
        (call_of(b'{"prompt":  \n ["a", "b"]}', COMPLETIONS), "several prompts"),
        # Engines answer both, the embeddings first.
        (completion(prompt_embeds="QUJD"), "several prompts"),
        (completion(prompt=[1, 2], prompt_embeds=["QUJD"]), "several prompts"),
        (completion(prompt="", prompt_embeds="QUJD"), "several prompts"),
        (completion(prompt=["a", "b"], prompt_embeds=[]), "several prompts"),
        (completion(prompt=None, prompt_embeds=["QUJD", "QUJE"]), "several prompts"),
        (call_of(b'{"prompt_embeds": ["QUJD", "QUJE"]}', COMPLETIONS), "several prompts"),
    ],
)
def test_what_needs_the_prompt_in_one_place_stays_local(call: Call, why: str) -> None:
    assert VllmNixl().why_local(call) == why


@pytest.mark.parametrize(
    "call",
    [
        chat(),
        chat(n=1, logprobs=True, top_logprobs=3),
        chat(n=None, best_of=None, prompt_logprobs=None),
        completion(prompt=["a"]),
        completion(prompt=[1, 2, 3]),
        completion(prompt=[[1, 2, 3]]),
        completion(prompt=[]),
        completion(prompt=None),
        completion(prompt=None, prompt_embeds="QUJD"),
        completion(prompt=[], prompt_embeds=["QUJD"]),
        completion(prompt_embeds=None),
        completion(prompt_embeds=[]),
        call_of(b'{"prompt_embeds": [ "QUJD" ]}', COMPLETIONS),
        chat(prompt="a", prompt_embeds="QUJD"),
        completion(echo=True),
        completion(logprobs=3),
        completion(n=1, best_of=1),
        chat(prompt=["a", "b"]),
        call_of(b'{"prompt": "[1, 2]"}', COMPLETIONS),
    ],
)
def test_everything_else_may_be_split(call: Call) -> None:
    assert VllmNixl().why_local(call) is None


@pytest.mark.parametrize("call", [completion(prompt=["a", "b"]), chat(n=2)])
def test_sglang_splits_those_too(call: Call) -> None:
    """It spreads them over rooms by itself."""
    assert Sglang().why_local(call) is None


async def test_a_local_call_goes_to_decode_alone() -> None:
    engines = Scripted(d0=several(whole("a")))

    told = await Crossing(engines, P0, D0).ask(chat(n=2, stream=False))

    assert engines.visits == ["d0"]
    assert "kv_transfer_params" not in engines.sent[0][0].body
    record = told.record
    assert (record.path, record.why_local, record.handed_over) == (
        "local",
        "several choices",
        False,
    )


async def test_a_call_that_is_not_worth_splitting_goes_to_decode_alone() -> None:
    engines = Scripted(d0=whole("a"))

    told = await Crossing(engines, P0, D0, rule=Never()).ask(chat(stream=False))

    assert engines.visits == ["d0"]
    assert (told.record.path, told.record.why_local) == ("local", NEVER)


async def test_sglangs_decode_gets_no_call_alone() -> None:
    """It has no decode without a prefill to meet."""
    pair = [replace(one, protocol="sglang") for one in (P0, D0)]
    engines = Scripted(p0=whole("a"), d0=whole("a"))

    told = await Crossing(engines, *pair, rule=Never()).ask(chat(stream=False))

    assert sorted(engines.visits) == ["d0", "p0"]
    assert told.record.path == "disaggregated"


def test_one_token_sets_only_the_limits_that_are_needed() -> None:
    """A field that an older engine does not know would be refused."""
    body = parse_object(b'{"model":"m","stream_options":null,"n":1,"x":1}')

    assert encode(one_token(body, y=2)) == (
        b'{"model":"m","n":1,"x":1,"max_tokens":1,"stream":false,"y":2}'
    )
