"""Whoever goes on with a stream, and however often, the client hears what one engine would say."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.forwarders.base import Leg
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, encode
from pdgate.protocols.errors import EngineFailed, EngineRejected, EngineTooSlow
from pdgate.protocols.instance import Instance, Role
from tests.forwarders.resuming.speaking import PROMPT, SAID, TEXT, Speaking
from tests.support.answers import piece
from tests.support.heard import Heard, heard
from tests.support.scripted import D0, D1, P0, Crossing, Step, Told, call_of, chat

D2 = Instance("d2", "http://10.0.1.3:8200", Role.DECODE, "vllm-nixl")
USAGE = {"include_usage": True}


def ask_for(path: str = CHAT, **fields: object) -> Call:
    if path == CHAT:
        return chat(**fields)
    return call_of(encode({"model": "m", "prompt": "hi", "stream": True, **fields}), path)


async def ask(engines: Speaking, call: Call, most: int = 3) -> Told:
    return await Crossing(engines, P0, D0, D1, D2, max_resumes=most).ask(call)


async def said(call: Call) -> Heard:
    """By an engine that nothing happens to."""
    return heard((await ask(Speaking(), call)).body)


optional: dict[str, st.SearchStrategy[object]] = {
    "max_tokens": st.integers(1, 40) | st.none(),
    "min_tokens": st.integers(0, 5),
    "return_token_ids": st.booleans(),
    "stream_options": st.sampled_from([None, {"include_usage": True}]),
    "temperature": st.sampled_from([0, 0, 0.5]),
}
chats = st.fixed_dictionaries(
    {}, optional=optional | {"logprobs": st.booleans(), "top_logprobs": st.integers(0, 2)}
)
completions = st.fixed_dictionaries({}, optional=optional | {"logprobs": st.integers(0, 2)})


@settings(max_examples=40)
@given(
    st.tuples(st.just(CHAT), chats) | st.tuples(st.just(COMPLETIONS), completions),
    st.lists(st.integers(1, 40), min_size=1, max_size=2),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_a_broken_stream_reads_like_a_whole_one(
    asked: tuple[str, dict[str, Any]], breaks: list[int], merged: list[int]
) -> None:
    call = ask_for(asked[0], **asked[1])

    async def both() -> tuple[Told, Heard]:
        return await ask(Speaking(*breaks, merged=merged), call), await said(call)

    told, whole = asyncio.run(both())

    if told.error is not None:
        drawn = call.value("temperature") != 0 and max(merged) > 1
        assert drawn or told.record.not_resumed == "two engines failed at the same token"
        return
    broken = heard(told.body)
    assert broken == whole
    assert len(broken.heads) == 1


async def test_the_rest_is_asked_for_by_token_ids() -> None:
    """No text is tokenized again, and nobody is asked for more tokens than are left."""
    engines = Speaking(4)

    await ask(engines, ask_for(max_tokens=10, min_tokens=5, user="u", logprobs=True))

    legs = [leg for leg, _ in engines.sent if leg.to.role is Role.DECODE]
    assert [leg.path for leg in legs] == [CHAT, COMPLETIONS]
    body = json.loads(encode(legs[1].body))
    del body["kv_transfer_params"]
    # The role, G, r, and half of ü, which nobody has heard.
    assert body["prompt"] == [*PROMPT, *SAID[:2]]
    assert (body["max_tokens"], body["min_tokens"], body["logprobs"]) == (8, 3, 0)
    assert set(body) == {
        "logprobs", "max_tokens", "min_tokens", "model", "prompt", "return_token_ids", "stream",
        "user",
    }  # fmt: skip


async def test_prefill_is_not_asked_for_ids_that_nobody_reads() -> None:
    engines = Speaking()

    await ask(engines, ask_for())

    assert ["return_token_ids" in leg.body for leg, _ in engines.sent] == [False, True]


async def test_the_engine_that_broke_off_is_not_asked_again() -> None:
    engines = Speaking(4, 4)

    told = await ask(engines, ask_for())

    assert heard(told.body).text == TEXT
    assert sorted(engines.visits) == ["d0", "d1", "d2", "p0", "p0", "p0"]
    assert len(set(engines.attempt_ids)) == 3
    assert told.record.resumed == 2
    outcomes = [leg.outcome for leg in told.record.legs if leg.role is Role.DECODE]
    assert outcomes == ["engine_failed", "engine_failed", "ok"]


@pytest.mark.parametrize(
    "how",
    [
        EngineTooSlow("silence"),
        piece("", "abort"),
        piece("", "error"),
        b'data: {"error": {"message": "boom", "code": 500}}\n\n',
        b'data: {"choices"',
    ],
    ids=["silence", "abort", "error", "error event", "half an event"],
)
async def test_every_kind_of_break_is_one(how: Step) -> None:
    """The last one is an engine that closes the connection as if all had been said."""
    told = await ask(Speaking(5, how=[how]), ask_for())

    assert heard(told.body).text == TEXT
    assert told.record.resumed == 1


async def test_before_the_first_token_the_same_question_is_asked_again() -> None:
    """What an engine's parsers would make of the text has not been seen yet."""
    engines = Speaking(2, opening=b": ping\n\n: ping\n\n")

    told = await ask(engines, ask_for())

    assert heard(told.body) == await said(ask_for())
    assert [leg.path for leg, _ in engines.sent] == [CHAT] * 4


@pytest.mark.parametrize("said_before", [2, 3, 4], ids=["finish", "usage", "done"])
@pytest.mark.parametrize("half", [b"", b"data: [DO"], ids=["", "and a half"])
async def test_what_is_left_after_the_finish_needs_no_engine(said_before: int, half: bytes) -> None:
    call = ask_for(COMPLETIONS, max_tokens=2, stream_options=USAGE)
    engines = Speaking(said_before, how=[half, EngineFailed("broke off")])

    told = await ask(engines, call)

    assert heard(told.body) == await said(call)
    assert told.record.resumed == 0
    assert len(engines.visits) == 2


async def test_what_was_said_at_once_is_said_again_and_left_out() -> None:
    """Nobody knows whether several tokens end with a character."""
    call = ask_for(temperature=0, logprobs=True, return_token_ids=True, stream_options=USAGE)
    engines = Speaking(4, merged=[1, 1, 3, 2])

    told = await ask(engines, call)

    assert heard(told.body) == await said(call)
    asked_again = json.loads(encode(engines.sent[-1][0].body))["prompt"]
    assert asked_again == [*PROMPT, *SAID[:2]]


@pytest.mark.parametrize("flag", [True, 1, "yes"])
async def test_flags_mean_what_they_mean_to_engines(flag: object) -> None:
    """The ids are the client's, and the usage that an engine broke off before."""
    call = ask_for(return_token_ids=flag, stream_options={"include_usage": flag})

    # The role, tokens with the end, and neither usage nor [DONE].
    told = await ask(Speaking(1 + len(SAID) + 1), call)

    assert b'"token_ids"' in told.body
    assert b'"usage"' in told.body


async def test_what_was_drawn_at_once_cannot_be_drawn_again() -> None:
    told = await ask(Speaking(3, merged=[2]), ask_for(temperature=0.5))

    assert isinstance(told.error, EngineFailed)
    assert told.record.not_resumed.startswith("several tokens came at once")


async def test_a_call_that_ends_two_engines_at_the_same_token_is_not_tried_on_a_third() -> None:
    engines = Speaking(4, 0)

    told = await ask(engines, ask_for(COMPLETIONS))

    assert isinstance(told.error, EngineFailed)
    assert told.record.not_resumed == "two engines failed at the same token"
    assert len(engines.visits) == 4


async def test_an_engine_that_says_something_else_does_not_go_on() -> None:
    class Other(Speaking):
        async def _head(self, leg: Leg) -> Sequence[Step]:
            steps = await super()._head(leg)
            if len(self.sent) == 2:
                return steps
            return [s.replace(b"114]", b"113]") if isinstance(s, bytes) else s for s in steps]

    told = await ask(Other(2, merged=[2, 1]), ask_for(temperature=0))

    assert isinstance(told.error, EngineFailed)
    assert TEXT.startswith(heard(b"".join(told.chunks)).text)


async def test_there_is_an_end_to_resuming() -> None:
    told = await ask(Speaking(3, 3, 3), ask_for(), most=2)

    assert isinstance(told.error, EngineFailed)
    assert TEXT.startswith(heard(b"".join(told.chunks)).text)
    assert told.record.not_resumed == "too many breaks"


async def test_the_client_hears_of_the_break_when_nobody_can_go_on() -> None:
    """And not of what is said to a question that it never asked."""
    told = await ask(Speaking(4, then=EngineRejected(400, (), b"{}")), ask_for())

    assert isinstance(told.error, EngineFailed)
    assert str(told.error) == "broke off"


@pytest.mark.parametrize("missing", ["token_ids", "prompt_token_ids"])
async def test_without_token_ids_there_is_no_resuming(missing: str) -> None:
    told = await ask(Speaking(4, without=missing), ask_for())

    assert isinstance(told.error, EngineFailed)
    assert told.record.not_resumed.startswith("the engine returns no token ids")


async def test_an_engine_that_refuses_to_return_ids_is_asked_without() -> None:
    """The client never asked for them, so it must not be the one to hear of it."""
    said = b'{"error": {"message": "return_token_ids is not supported with stream"}}'
    engines = Speaking(refusing=EngineRejected(400, (), said))

    told = await ask(engines, ask_for())

    assert heard(told.body).text == TEXT
    assert told.record.not_resumed == ""
    engines = Speaking(4, refusing=EngineRejected(400, (), said))
    assert (await ask(engines, ask_for())).record.not_resumed.startswith("the engine refuses")
    told = await ask(
        Speaking(refusing=EngineRejected(400, (), said)), ask_for(return_token_ids=True)
    )
    assert isinstance(told.error, EngineRejected)


async def test_pictures_cannot_be_said_in_tokens() -> None:
    content = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    told = await ask(Speaking(4), ask_for(messages=[{"role": "user", "content": content}]))

    assert told.record.not_resumed == "more than text in the prompt"
    assert told.error is not None


async def test_off_nothing_is_asked_for_and_nothing_kept() -> None:
    engines = Speaking(4)

    told = await ask(engines, ask_for(), most=0)

    assert not any("return_token_ids" in leg.body for leg, _ in engines.sent)
    assert told.error is not None
    assert told.record.not_resumed == ""
