"""Whoever goes on with a stream, and however often, the client hears what one engine would say."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.forwarders.base import Answer, Leg
from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.forwarders.kv_lease import KvLease, KvLedger, KvRules
from pdgate.forwarders.record import Record
from pdgate.forwarders.resuming.relay import MOST_HELD
from pdgate.forwarders.resuming.resume import Resuming
from pdgate.protocols import sse
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, encode, value
from pdgate.protocols.chunks import LARGE_BYTES
from pdgate.protocols.dialects import nixl
from pdgate.protocols.errors import EngineFailed, EngineRejected, EngineTooSlow, KvExpired
from pdgate.protocols.instance import Instance, Role
from tests.forwarders.resuming.speaking import NO_CHOICES, PING, PROMPT, SAID, TEXT, Speaking
from tests.support.answers import piece, prefilled
from tests.support.heard import Heard, heard
from tests.support.scripted import (
    D0,
    D1,
    NEVER,
    P0,
    Crossing,
    Scripted,
    Step,
    Told,
    call_of,
    chat,
)

D2 = Instance("d2", "http://10.0.1.3:8200", Role.DECODE, "vllm-nixl")
USAGE = {"include_usage": True}


def ask_for(path: str = CHAT, **fields: object) -> Call:
    if path == CHAT:
        return chat(**fields)
    return call_of(encode({"model": "m", "prompt": "hi", "stream": True, **fields}), path)


LONG = b"a" * LARGE_BYTES


def many(one: Instance, count: int) -> list[Instance]:
    return [replace(one, id=f"{one.id[0]}{n}") for n in range(count)]


async def ask(engines: Speaking, call: Call, most: int = 3) -> Told:
    return await Crossing(engines, P0, D0, D1, D2, max_resumes=most).ask(call)


async def said(call: Call) -> Heard:
    """By an engine that nothing happens to."""
    return heard((await ask(Speaking(), call)).body)


def counts(least: int, most: int) -> st.SearchStrategy[object]:
    """In all the ways that engines read."""
    spelling = st.sampled_from([int, int, int, float, str, "+{}.0".format])
    return st.builds(lambda count, spelled: spelled(count), st.integers(least, most), spelling)


flags = st.sampled_from([True, False, 1, 0, "yes", "false"])
optional: dict[str, st.SearchStrategy[object]] = {
    "max_tokens": counts(1, 40) | st.none(),
    "min_tokens": counts(0, 5),
    "return_token_ids": flags,
    "stream_options": st.none() | flags.map(lambda flag: {"include_usage": flag}),
    "temperature": st.sampled_from([0, 0, 0.5]),
}
chats = st.fixed_dictionaries(
    {}, optional=optional | {"logprobs": flags, "top_logprobs": counts(0, 2)}
)
completions = st.fixed_dictionaries({}, optional=optional | {"logprobs": counts(0, 2)})


@settings(max_examples=60)
@given(
    st.tuples(st.just(CHAT), chats) | st.tuples(st.just(COMPLETIONS), completions),
    st.lists(st.integers(1, 40), min_size=1, max_size=2),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.sampled_from([b"", PING, NO_CHOICES]),
    st.sampled_from([None, ""]),
)
def test_a_broken_stream_reads_like_a_whole_one(
    asked: tuple[str, dict[str, Any]],
    breaks: list[int],
    merged: list[int],
    between: bytes,
    unfinished: str | None,
) -> None:
    call = ask_for(asked[0], **asked[1])
    engines = Speaking(*breaks, merged=merged, between=between, unfinished=unfinished)

    async def both() -> tuple[Told, Heard]:
        return await ask(engines, call), await said(call)

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


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"max_tokens": 10.0}),
        (CHAT, {"max_completion_tokens": "10"}),
        (COMPLETIONS, {"max_tokens": " 10.0"}),
        (CHAT, {"min_tokens": "5"}),
        (CHAT, {"logprobs": "true", "top_logprobs": 2.0}),
        (CHAT, {"logprobs": "false", "top_logprobs": 2}),
        (COMPLETIONS, {"logprobs": "1"}),
        (CHAT, {"return_token_ids": 1}),
        (CHAT, {"stream_options": {"include_usage": "yes"}, "max_tokens": 3.0}),
    ],
)
async def test_fields_are_read_as_engines_read_them(path: str, fields: dict[str, Any]) -> None:
    """Who takes 10.0 and "10" for 10 has to hear of no more tokens than that."""
    call = ask_for(path, **fields)

    for broken_after in range(1, 8):
        assert heard((await ask(Speaking(broken_after), call)).body) == await said(call)


async def test_token_ids_that_were_asked_for_are_there_though_nothing_breaks() -> None:
    found = await said(ask_for(return_token_ids=1))

    assert found.ids == [*SAID, 300]


@pytest.mark.parametrize("between", [PING, NO_CHOICES])
async def test_a_token_without_its_text_waits_whatever_comes_behind_it(between: bytes) -> None:
    """The client had the token then, and got it again from the next engine."""
    call = ask_for(return_token_ids=True, logprobs=True, temperature=0)

    # The role, G, r, and half of ü.
    told = await ask(Speaking(4, between=between), call)

    assert heard(told.body) == await said(call)
    assert told.record.resumed == 1


async def test_what_waits_for_text_does_not_wait_for_ever() -> None:
    """An engine that says nothing but that it is there has its words passed on at last."""
    engines = Speaking(4, how=[PING * MOST_HELD, NEVER])
    crossing = Crossing(engines, P0, D0, max_resumes=3)
    asking = asyncio.create_task(crossing.ask(ask_for()))
    await engines.waits("d0").wait()

    assert b"".join(crossing.called[0].chunks).count(PING) == MOST_HELD
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


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
    engines = Speaking(2, opening=PING + PING)

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


def of_prompt(index: int, *tokens: int, finish: str | None = None) -> bytes:
    choice = {"index": index, "text": "a", "finish_reason": finish, "token_ids": tokens}
    head = {"id": "one", "object": "text_completion", "created": 1, "model": "m"}
    return sse.event({**head, "choices": [{**choice, "prompt_token_ids": [7]}]})


OF_TWO = [of_prompt(0, 1), of_prompt(0, 2, finish="length"), of_prompt(1, 3), of_prompt(1, 4)]


@pytest.mark.parametrize("said_before", range(1, 5))
async def test_an_answer_to_several_prompts_ends_with_the_error(said_before: int) -> None:
    """It was called whole where the first choice was, though nothing of the second one had come."""
    call = ask_for(COMPLETIONS, prompt=["a", "b"], max_tokens=2)
    engines = Scripted(d0=[*OF_TWO[:said_before], EngineFailed("broke off")])

    told = await Crossing(engines, P0, D0, max_resumes=3).ask(call)

    assert str(told.error) == "broke off"
    assert sse.DONE not in told.chunks
    assert told.record.not_resumed == "several prompts"


@pytest.mark.parametrize("streams", [True, False])
def test_nor_does_one_give_way(streams: bool) -> None:
    """What goes on later would be the first choice alone."""
    body = encode({"model": "m", "prompt": ["a", "b"], "stream": streams})
    call = msgspec.structs.replace(call_of(body, COMPLETIONS), streams=streams)
    record = Record(call)

    assert Resuming.of(call, record, nobody, 3, gathers=True) is None
    assert record.not_resumed == "several prompts"


async def nobody(answer: Answer, record: Record) -> None:
    raise AssertionError


async def test_nobody_goes_on_behind_an_end() -> None:
    """Not even where the gateway cannot tell that it is one: a chunk so long is read only with its index."""
    end = of_prompt(0, 2, finish="stop").replace(b'"index":0,"text":"a"', b'"text":"%b"' % LONG)
    answer: list[Step] = [of_prompt(0, 1), end, EngineFailed("broke")]
    engines = Scripted(p0=prefilled(), d0=answer, d1=answer)

    told = await Crossing(engines, P0, D0, D1, max_resumes=3).ask(ask_for(COMPLETIONS))

    assert str(told.error) == "broke"
    assert told.chunks[-1].startswith(end[:500])
    assert told.record.not_resumed == "nothing is left to say"


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


class Late(Speaking):
    """The KV of a decode engine's leg is late, the one of this number."""

    def __init__(self, late: int, *breaks: int, refusing: EngineRejected | None = None) -> None:
        super().__init__(*breaks)
        self.late, self.refuses = late, refusing

    async def _head(self, leg: Leg) -> Sequence[Step]:
        if leg.to.role is Role.DECODE:
            self.late -= 1
            if self.late == 0:
                raise KvExpired("late", at=leg.to.id)
            if self.late < 0:
                self.refusing = self.refuses
        return await super()._head(leg)

    @property
    def salts(self) -> list[object]:
        """Those that decode engines were asked with."""
        return [value(leg.body, "cache_salt") for leg, _ in self.sent if leg.to.role is Role.DECODE]


@pytest.mark.parametrize("late", [1, 2], ids=["before the first byte", "in the continuation"])
async def test_what_follows_kv_that_was_late_is_asked_for_apart_from_it(late: int) -> None:
    """The engine keeps the wrong KV under the old salt; the rest of the answer would be read of it."""
    engines = Late(late, 4)

    told = await ask(engines, ask_for(cache_salt="own"))

    assert heard(told.body) == await said(ask_for())
    before, after = engines.salts[:late], engines.salts[late:]
    assert set(before) == {"own"}
    (salt,) = set(after)
    assert isinstance(salt, str)
    assert salt.startswith("own-")


async def test_nor_is_it_asked_for_as_before_where_ids_are_refused() -> None:
    said = b'{"error": {"message": "return_token_ids is not supported with stream"}}'
    engines = Late(1, refusing=EngineRejected(400, (), said))

    told = await ask(engines, ask_for(cache_salt="own"))

    assert heard(told.body).text == TEXT
    assert "own" not in engines.salts[1:]


def test_nor_when_it_goes_on_after_it_gave_way() -> None:
    call = ask_for(cache_salt="own")
    record = Record(call)
    resuming = Resuming.of(call, record, nobody, 3, gathers=True)
    assert resuming is not None

    resuming.asks_apart(KvLease(KvRules(apart=nixl.apart), "p0", KvLedger()), "word")

    assert resuming.later(record).value("cache_salt") == "own-word"


class Uncrossed(Speaking):
    """Once a stream has broken, engines of a role fail: prefill, or decode that is to load KV."""

    def __init__(
        self, role: Role, failure: EngineFailed, alone: EngineFailed | None = None
    ) -> None:
        super().__init__(4, then=alone)
        self.role, self.failure = role, failure

    async def _head(self, leg: Leg) -> Sequence[Step]:
        hands_over = leg.to.role is Role.PREFILL or "kv_transfer_params" in leg.body
        if not self.breaks and leg.to.role is self.role and hands_over:
            self.failure.at = leg.to.id
            raise self.failure
        if self.then is not None:
            self.then.at = leg.to.id
        return await super()._head(leg)


LOAD_FAILED = EngineFailed("the decode engine answered with status 500")


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("ds", [2, 3, 4])
async def test_a_load_that_fails_behind_a_break_is_not_the_call(ps: int, ds: int) -> None:
    """The first engine was killed, the second had no KV: a third one reads all of it itself."""
    engines = Uncrossed(Role.DECODE, LOAD_FAILED)

    told = await Crossing(engines, *many(P0, ps), *many(D0, ds), max_resumes=3).ask(ask_for())

    assert heard(told.body) == await said(ask_for())
    assert [visit[0] for visit in engines.visits] == ["p", "d", "p", "d", "d"]


async def test_unless_an_engine_fails_there_without_kv_too() -> None:
    engines = Uncrossed(Role.DECODE, LOAD_FAILED, alone=EngineFailed("boom"))

    told = await Crossing(engines, P0, *many(D0, 5), max_resumes=9).ask(ask_for())

    assert str(told.error) == "broke off"
    assert told.record.not_resumed == "two engines failed at the same token"
    assert len({visit for visit in engines.visits if visit[0] == "d"}) == 3


@pytest.mark.parametrize(
    ("failure", "policy"),
    [
        (EngineFailed("broke off", broke_off=True), OnPrefillFailure.RETRY_THEN_RECOMPUTE),
        (LOAD_FAILED, OnPrefillFailure.RETRY),
    ],
    ids=["ended", "decode must not read"],
)
async def test_or_was_ended_by_it(failure: EngineFailed, policy: OnPrefillFailure) -> None:
    engines = Uncrossed(Role.DECODE, failure)
    crossing = Crossing(engines, P0, *many(D0, 5), max_resumes=9, on_prefill_failure=policy)

    told = await crossing.ask(ask_for())

    assert told.record.not_resumed == "two engines failed at the same token"
    assert len({visit for visit in engines.visits if visit[0] == "d"}) == 2


@pytest.mark.parametrize(
    ("policy", "asked"),
    [(OnPrefillFailure.RETRY_THEN_RECOMPUTE, 2), (OnPrefillFailure.RECOMPUTE, 1)],
)
@pytest.mark.parametrize("ps", [2, 3, 4])
async def test_where_prefill_fails_decode_reads_what_has_been_said(
    ps: int, policy: OnPrefillFailure, asked: int
) -> None:
    engines = Uncrossed(Role.PREFILL, EngineFailed("the prefill engine answered with status 500"))
    crossing = Crossing(engines, *many(P0, ps), D0, D1, max_resumes=3, on_prefill_failure=policy)

    told = await crossing.ask(ask_for())

    assert heard(told.body) == await said(ask_for())
    assert [visit[0] for visit in engines.visits] == ["p", "d", *["p"] * asked, "d"]


async def test_the_last_time_decode_reads_what_has_been_said() -> None:
    """However the prefill engines fail, and also if each does so in another way."""
    engines = Uncrossed(Role.PREFILL, EngineTooSlow("slow"))

    told = await Crossing(engines, *many(P0, 4), D0, D1, max_resumes=3).ask(ask_for())

    assert heard(told.body) == await said(ask_for())
    assert [visit[0] for visit in engines.visits] == ["p", "d", "p", "p", "d"]


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
