"""With `early_first_token` a stream is committed on prefill's token, and what comes behind it is decode's."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pdgate.forwarders.base import Answer, Forwarder, Leg, Mode
from pdgate.forwarders.early import why_not_early
from pdgate.forwarders.execution import MOST_DIFFERING
from pdgate.forwarders.neuron import Neuron
from pdgate.forwarders.record import Record
from pdgate.forwarders.sglang import Sglang
from pdgate.forwarders.vllm_nixl import VllmNixl
from pdgate.protocols import sse
from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import CHAT, COMPLETIONS, encode
from pdgate.protocols.errors import EngineFailed, EngineRefused, EngineRejected
from pdgate.protocols.instance import Instance
from tests.support.answers import opening, piece, prefilled, streamed, whole
from tests.support.scripted import (
    D0,
    D1,
    NEVER,
    P0,
    P1,
    PATIENCE_SECONDS,
    After,
    Crossing,
    Scripted,
    Told,
    Turns,
    call_of,
    chat,
)

GREEDY: dict[str, Any] = {"temperature": 0}
SKY = streamed("The", " sky")


def text(told: Told) -> str:
    """What the client has of what these engines say."""
    said = b"".join(told.chunks)
    return "".join(part for part in ("The", " sky", "An") if part.encode() in said)


async def told_of(crossing: Crossing) -> None:
    """Until the only client has something of its answer."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not crossing.called:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await crossing.called[0].hears.wait()


def mooncake(*records: Instance) -> list[Instance]:
    return [
        replace(
            one,
            protocol="vllm-mooncake",
            generation="d",
            kv="10.0.0.1:8998",
            engine_ids=((0, "e"),),
        )
        for one in records
    ]


async def test_the_client_has_prefills_token_before_decodes_head() -> None:
    on = asyncio.Event()
    engines = Scripted(p0=prefilled("The"), d0=After(on, SKY))
    crossing = Crossing(engines, P0, D0, early_first_token=True)

    asking = asyncio.create_task(crossing.ask(chat(**GREEDY)))
    await told_of(crossing)

    assert text(crossing.called[0]) == "The"
    on.set()
    body = (await asking).body
    assert body.count(b"The") == 1
    assert body.endswith(b"".join(SKY[2:]))


async def test_it_is_off_unless_asked_for() -> None:
    on = asyncio.Event()
    engines = Scripted(p0=prefilled("The"), d0=After(on, SKY))
    crossing = Crossing(engines, P0, D0)

    asking = asyncio.create_task(crossing.ask(chat(**GREEDY)))
    await engines.waits("d0").wait()

    assert not crossing.called[0].chunks
    on.set()
    assert (await asking).body == b"".join(SKY)


async def test_engines_that_start_together_need_no_head_of_decode_either() -> None:
    on = asyncio.Event()
    engines = Scripted(p0=prefilled("The"), d0=After(on, SKY))
    crossing = Crossing(engines, *mooncake(P0, D0), early_first_token=True)

    asking = asyncio.create_task(crossing.ask(chat(**GREEDY, min_tokens=1)))
    await told_of(crossing)

    assert text(crossing.called[0]) == "The"
    on.set()
    assert (await asking).body.count(b"The") == 1


async def test_what_fails_behind_the_token_ends_the_stream() -> None:
    """The price: no other attempt, as the client has a part of this one."""
    on = asyncio.Event()
    failing = After(on, EngineFailed("500"))
    engines = Scripted(p0=prefilled("The"), d0=failing, d1=failing)
    crossing = Crossing(engines, P0, D0, D1, early_first_token=True)
    asking = asyncio.create_task(crossing.ask(chat(**GREEDY)))
    await told_of(crossing)

    on.set()
    told = await asking

    assert isinstance(told.error, EngineFailed)
    assert len(engines.visits) == 2
    assert text(told) == "The"


async def test_what_fails_before_the_token_is_out_is_tried_again() -> None:
    either = Turns(EngineFailed("500"), SKY)
    engines = Scripted(p0=prefilled("The"), d0=either, d1=either)

    told = await Crossing(engines, P0, D0, D1, early_first_token=True).ask(chat(**GREEDY))

    assert told.body.count(b"The") == 1
    assert len(engines.visits) == 4


async def test_a_decode_that_refuses_is_replaced_where_it_is_chosen_late() -> None:
    either = Turns(EngineRefused("down"), SKY)
    engines = Scripted(p0=prefilled("The"), d0=either, d1=either)
    crossing = Crossing(engines, P0, D0, D1, mode=Mode.STAGED, early_first_token=True)

    told = await crossing.ask(chat(**GREEDY))

    assert len(set(engines.visits)) == 3
    assert told.body.count(b"The") == 1


async def test_engines_that_disagree_make_no_answer_of_both() -> None:
    engines = Scripted(p0=prefilled("The"), d0=[*streamed("An"), NEVER])

    told = await Crossing(engines, P0, D0, early_first_token=True).ask(chat(**GREEDY))

    assert isinstance(told.error, EngineFailed)
    assert text(told) == "The"
    assert engines.left_early == ["d0"]


@pytest.mark.parametrize(
    "rest",
    [
        [opening(), sse.DONE],
        [opening(), piece("", "stop"), sse.DONE],
        [opening(), sse.event({"choices": [{"index": 0, "delta": {"reasoning": "Hm"}}]}), NEVER],
        [opening(), piece("Th"), sse.DONE],
        [opening(), piece("Th"), piece("")],
        whole("The sky"),
    ],
    ids=[
        "the end alone",
        "an empty answer",
        "reasoning",
        "a part of it",
        "a part, and no end",
        "no stream",
    ],
)
async def test_an_answer_without_the_token_is_an_error(rest: Any) -> None:
    engines = Scripted(p0=prefilled("The"), d0=rest)

    told = await Crossing(engines, P0, D0, early_first_token=True).ask(chat(**GREEDY))

    assert isinstance(told.error, EngineFailed)
    assert sse.DONE not in b"".join(told.chunks)


async def test_engines_that_disagreed_once_are_waited_for() -> None:
    """They may do so again, as where a parser of reasoning is on for every chat; decode is well all the same."""
    engines = Scripted(p0=prefilled("The"), d0=streamed("An", " ox"))
    crossing = Crossing(engines, P0, D0, early_first_token=True)

    first = await crossing.ask(chat(**GREEDY))
    others = [await crossing.ask(chat(**GREEDY)) for _ in range(3)]

    assert isinstance(first.error, EngineFailed)
    assert [other.body for other in others] == [b"".join(streamed("An", " ox"))] * 3


async def test_engines_that_disagree_are_not_counted_as_failing() -> None:
    models = [f"m{number}" for number in range(MOST_DIFFERING + 1)]
    engines = Scripted(p0=prefilled("The"), d0=streamed("An", " ox"))
    crossing = Crossing(engines, P0, D0, early_first_token=True)
    for engine in ("p0", "d0"):
        crossing.endpoints.mark_up(engine, models)

    told = [await crossing.ask(chat(**GREEDY, model=model)) for model in models]

    assert all(isinstance(one.error, EngineFailed) for one in told[:-1])
    assert crossing.endpoints.by_id["d0"].breaker.latest == 0
    # So many models differ that none begins early any more.
    assert told[-1].body == b"".join(streamed("An", " ox"))


async def test_a_call_that_was_refused_with_token_ids_waits_for_decode() -> None:
    refused = EngineRejected(400, (), b'{"error": {"message": "return_token_ids"}}')
    engines = Scripted(p0=prefilled("The"), d0=Turns(refused, SKY))
    crossing = Crossing(engines, P0, D0, early_first_token=True, max_resumes=1)

    told = await crossing.ask(chat(**GREEDY))

    assert told.body == b"".join(SKY)


async def test_a_slow_client_holds_decode_back_as_soon_as_there_is_one() -> None:
    on = asyncio.Event()
    engines = Scripted(p0=prefilled("The"), d0=After(on, SKY))
    crossing = Crossing(engines, P0, D0, early_first_token=True)
    call = chat(**GREEDY)
    answers: list[Answer] = []
    told = Told(Record(call))

    async def slow(answer: Answer, record: Record) -> None:
        answers.append(answer)
        answer.pause()
        await told.take(answer, record)

    asking = asyncio.create_task(crossing.execution.serve(call, told.record, slow))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await told.hears.wait()
    on.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert text(told) == "The"

    answers[0].resume()
    await asking

    assert text(told) == "The sky"


async def test_a_decode_that_fails_before_prefill_has_answered_is_tried_again() -> None:
    either = Turns(EngineFailed("500"), SKY)
    engines = Scripted(d0=either, d1=either)
    prefill = Turns(NEVER, prefilled("The"))
    engines.scripts |= {"p0": prefill, "p1": prefill}
    crossing = Crossing(engines, *mooncake(P0, P1, D0, D1), early_first_token=True)

    told = await crossing.ask(chat(**GREEDY, min_tokens=1))

    assert told.body.count(b"The") == 1
    assert len(engines.visits) == 4


async def test_a_token_of_no_use_leaves_the_attempts() -> None:
    either = Turns(EngineFailed("500"), SKY)
    engines = Scripted(p0=prefilled(""), d0=either, d1=either)

    told = await Crossing(engines, P0, D0, D1, early_first_token=True).ask(chat(**GREEDY))

    assert told.body == b"".join(SKY)


async def test_a_client_that_leaves_ends_the_leg_behind_its_token() -> None:
    engines = Scripted(p0=prefilled("The"), d0=NEVER)
    crossing = Crossing(engines, P0, D0, early_first_token=True)
    asking = asyncio.create_task(crossing.ask(chat(**GREEDY)))
    await told_of(crossing)

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert engines.left_early == ["d0"]
    assert crossing.reserved == {}


def why(
    forwarder: Forwarder | None = None, path: str = CHAT, *, least: int = 0, **body: Any
) -> str:
    body = {"model": "m", "prompt": "hi", "stream": True, **body}
    to_prefill = Leg(P0, path, {"min_tokens": least} if least else {})
    return why_not_early(call_of(encode(body), path), forwarder or VllmNixl(), to_prefill)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": None},
        {"temperature": 0.1},
        {"temperature": False},
        {"temperature": "0"},
        {"temperature": 1, "seed": 7},
        {"stream": False},
        {"stop": "x"},
        {"stop": ["x" * 20_000]},
        {"logprobs": True},
        {"logprobs": 0},
        {"tools": [{}]},
        {"tools": [{"name": "x" * 20_000}]},
        {"tool_choice": "auto"},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a"},
        {"structured_outputs": {"choice": ["a"]}},
        {"reasoning_effort": "low"},
        {"include_reasoning": False},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"echo": True},
        {"n": 2},
        {"best_of": 2},
        {"use_beam_search": True},
        {"prompt_logprobs": 0},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": "5"},
        {"max_completion_tokens": 1.5},
        {"min_tokens": -1},
        {"min_tokens": 5, "max_tokens": 4},
        {"min_tokens": 17},
        {"min_tokens": 1, "ignore_eos": True},
        {"return_token_ids": True},
        {"stream_options": {"continuous_usage_stats": True}},
        {"stream_options": {"include_usage": "maybe"}},
        {"stream_options": 1},
        {"of_an_engine_to_come": 1},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_what_may_not_be_decodes_own_token_is_not_sent(fields: dict[str, Any]) -> None:
    assert not why(**GREEDY)
    assert why(**GREEDY | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"max_tokens": 1},
        {"min_tokens": 4, "max_tokens": 4},
        {"ignore_eos": True},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": False}},
        {"stop": [], "tools": [], "tool_choice": "none", "n": 1, "logprobs": False},
        {"response_format": {"type": "text"}},
        {"seed": 7, "top_p": 0.9, "logit_bias": {"5": -100}, "cache_salt": "mine"},
        {"of_an_engine_to_come": None},
    ],
    ids=str,
)
def test_fields_that_change_nothing_of_the_token_do_not_hold_it_back(
    fields: dict[str, Any],
) -> None:
    assert not why(**GREEDY | fields)


def test_only_routes_whose_first_event_we_can_write() -> None:
    assert not why(path=COMPLETIONS, **GREEDY)
    assert why(path=COMPLETIONS, **GREEDY | {"prompt": ["a", "b"]})
    assert why(path=MESSAGES, **GREEDY)
    assert why(path=RESPONSES, **GREEDY)


def test_a_prefill_that_answers_last_has_no_token_early() -> None:
    assert why(Sglang(), **GREEDY)


def test_a_decode_that_goes_on_behind_prefills_token_may_sample() -> None:
    assert not why(Neuron(), temperature=1)
    assert why(temperature=1)
    assert why(Neuron(), temperature=1, max_tokens=0)


def test_a_prefill_that_may_not_end_says_nothing_of_an_answer_that_may() -> None:
    assert why(least=1, **GREEDY)
    assert not why(least=1, **GREEDY, min_tokens=1)
    # vLLM forbids the end with min_tokens even where it is ignored, so decode may say it and prefill not.
    assert why(least=1, **GREEDY, ignore_eos=True)
