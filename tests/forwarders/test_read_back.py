"""What a decode engine has of a turn is read by the prefill engine of the next one: whose, when, how often, and of which tokens."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pdgate.forwarders import read_back
from pdgate.forwarders.base import Leg
from pdgate.forwarders.read_back import KEPT_SECONDS, KvReadBack
from pdgate.protocols.call import Call, encode, parse_object, value
from pdgate.protocols.dialects import nixl
from pdgate.protocols.errors import EngineFailed, EngineRefused
from tests.support.answers import piece, prefilled
from tests.support.clock import Clock
from tests.support.scripted import D0, P0, P1, Crossing, Scripted, call_of

USER, ASSISTANT = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "fine"}
FIRST = [USER]
SECOND = [USER, ASSISTANT, USER]
IDS = list(range(100))
SAID = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [list(range(10, 18))],
    "remote_num_tokens": 120,
    "remote_engine_id": "d-life",
    "remote_request_id": "r1",
    "remote_host": "10.0.1.1",
    "remote_port": 5600,
    "remote_registration_generation": 3,
}


class Turning(Scripted):
    """Prefill names the ids of each prompt, and tells them when it is asked for them before."""

    def __init__(self, **scripts: Any) -> None:
        event = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], '
        event += b'"kv_transfer_params": %b}\n\n' % encode(SAID)
        ends = [piece("fine"), event, b"data: [DONE]\n\n"]
        answers = {"p0": prefilled(prompt_token_ids=IDS), "p1": prefilled(prompt_token_ids=IDS)}
        super().__init__(**{**answers, "d0": ends, **scripts})
        self.tells: Any = {"tokens": [*IDS, 1, 2, 3]}
        self.questions: list[Leg] = []

    async def ask(self, leg: Leg, call: Call) -> Any:
        if leg.path != "/tokenize":
            return await super().ask(leg, call)
        self.questions.append(leg)
        if isinstance(self.tells, Exception):
            raise self.tells
        return parse_object(encode(self.tells))


class Conversation:
    def __init__(self, engines: Turning, **more: Any) -> None:
        self.engines, self.clock = engines, Clock()
        self.crossing = Crossing(engines, P0, P1, D0, **more)
        self.back = self.crossing.execution.read_back = KvReadBack(engines, self.clock)
        self._hear()

    def _hear(self) -> None:
        """As the upstream does with what it keeps from clients."""
        opened = self.engines.open

        def open_(leg: Leg, call: Call, **more: Any) -> Any:
            if leg.hears is not None:
                for event in self.engines.scripts["d0"]:  # type: ignore[union-attr]
                    leg.hears(event)  # type: ignore[arg-type]
            return opened(leg, call, **more)

        self.engines.open = open_  # type: ignore[method-assign]

    async def say(self, messages: Any, key: str = "", **fields: Any) -> Any:
        """What prefill was asked to do about KV."""
        before = len(self.engines.sent)
        call = call_of(encode({"model": "m", "messages": messages, "stream": True, **fields}))
        told = await self.crossing.ask(call, key)
        assert told.error is None
        (leg,) = [leg for leg, _ in self.engines.sent[before:] if leg.to.id.startswith("p")]
        return _params(leg)


def _params(leg: Leg) -> Any:
    return json.loads(encode(leg.body))["kv_transfer_params"]


def reads(params: Any) -> bool:
    return params["remote_block_ids"] is not None


async def test_the_next_turn_names_decodes_blocks_of_the_last_one_to_a_prefill_without_it() -> None:
    """Only whole ones of that prompt, and every other word as decode said it."""
    told = Conversation(Turning())

    assert not reads(await told.say(FIRST))
    params = await told.say(SECOND)

    assert params == {**SAID, "remote_block_ids": [list(range(10, 16))], "remote_num_tokens": 96}
    (question,) = told.engines.questions
    assert question.to.id == [leg.to.id for leg, _ in told.engines.sent if leg.to.id[0] == "p"][-1]
    assert value(question.body, "messages") == SECOND
    assert told.back.outcomes["sent"] == 1


async def test_blocks_are_named_once() -> None:
    told = Conversation(Turning())
    await told.say(FIRST)

    assert reads(await told.say(SECOND))
    assert not reads(await told.say(SECOND))
    assert not reads(await told.say(SECOND))


async def test_the_engine_that_has_read_the_turn_is_not_told_to() -> None:
    told = Conversation(Turning())
    told.crossing.endpoints.mark_down("p1", "off")
    await told.say(FIRST)

    assert not reads(await told.say(SECOND))
    assert told.engines.questions == []
    assert told.back.outcomes["has_it"] == 1


@pytest.mark.parametrize(
    ("key", "fields"),
    [("other", {}), ("own", {"cache_salt": "other"}), ("own", {"model": None})],
)
async def test_nobody_else_gets_it(key: str, fields: Any) -> None:
    told = Conversation(Turning())
    await told.say(FIRST, "own", cache_salt="own")
    (kept,) = told.back.turns

    assert not reads(await told.say(SECOND, key, **{"cache_salt": "own", **fields}))
    assert told.engines.questions == []
    assert kept in told.back.turns


@pytest.mark.parametrize(
    "tells",
    [
        {"tokens": [*IDS[:-1], 7, 1, 2, 3]},
        {"tokens": IDS},
        {"tokens": "all"},
        {"tokens": [1 << 80, *IDS]},
        {"tokens": None},
        {},
        EngineFailed("500"),
    ],
)
async def test_a_prompt_that_does_not_begin_with_the_last_one_reads_nothing(tells: Any) -> None:
    """A template may leave out what was thought in earlier turns: KV of other tokens would answer wrong."""
    told = Conversation(Turning())
    told.engines.tells = tells
    await told.say(FIRST)

    assert not reads(await told.say(SECOND))
    outcomes = told.back.outcomes
    assert outcomes["other_prompt"] + outcomes["unknown_prompt"] == 1


@pytest.mark.parametrize(
    "messages", [[{**USER, "content": "ho"}, ASSISTANT, USER], FIRST, [ASSISTANT, *SECOND]]
)
async def test_another_conversation_is_not_even_asked_about(messages: Any) -> None:
    told = Conversation(Turning())
    await told.say(FIRST)

    assert not reads(await told.say(messages))
    assert told.engines.questions == []


async def test_what_is_too_old_is_not_asked_for() -> None:
    told = Conversation(Turning())
    await told.say(FIRST)
    told.clock.now += KEPT_SECONDS + 1

    assert not reads(await told.say(SECOND))
    assert told.back.outcomes["expired"] == 1
    assert len(told.back.turns) == 1


@pytest.mark.parametrize("what", ["d0", "m"])
async def test_weights_that_changed_and_processes_that_are_gone_are_forgotten(what: str) -> None:
    told = Conversation(Turning())
    await told.say(FIRST)
    told.back.forget(what)

    assert not reads(await told.say(SECOND))


async def test_a_decode_that_refuses_is_gone() -> None:
    told = Conversation(Turning())
    await told.say(FIRST)
    told.crossing.execution.failed(D0, EngineRefused("gone", at="d0"))

    assert len(told.back.turns) == 0


async def test_a_prefill_that_cannot_read_it_is_asked_again_without() -> None:
    engines = Turning()
    told = Conversation(engines)
    await told.say(FIRST)
    engines.scripts["p1"] = EngineFailed("decode's blocks are gone")

    call = call_of(encode({"model": "m", "messages": SECOND, "stream": True}))
    answered = await told.crossing.ask(call)

    assert answered.error is None
    asked = [reads(_params(leg)) for leg, _ in engines.sent if leg.to.id in ("p0", "p1")]
    assert asked[:2] == [False, True]
    assert sum(asked) == 1


@pytest.mark.parametrize(
    "fields",
    [{"tool_choice": "none"}, {"documents": []}, {"reasoning_effort": "low"}, {"unheard_of": 1}],
)
async def test_what_tokenize_would_not_know_of_is_left_alone(fields: Any) -> None:
    """Its ids would not be those of the prompt."""
    told = Conversation(Turning())
    await told.say(FIRST, **fields)

    assert len(told.back.turns) == 0


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_back, "MOST_TURNS", 3)
    told = Conversation(Turning())
    for n in range(10):
        await told.say([{**USER, "content": str(n)}])
    assert len(told.back.turns) == 3

    monkeypatch.setattr(read_back, "MOST_HELD_BYTES", 500)
    await told.say(FIRST)
    assert len(told.back.turns) == 1
    assert told.back.held_bytes == len(encode(SAID))
    told.back.forget("m")
    assert told.back.held_bytes == 0


def test_a_flood_of_fields_in_decodes_answer_is_not_kept() -> None:
    turn = KvReadBack(Scripted()).turn(call_of(encode({"messages": FIRST})), "")
    assert turn is not None
    for _ in range(100):
        turn.hears(b'data: {"kv_transfer_params": "' + b"x" * 10_000)

    assert len(turn._half) <= read_back.MOST_SAID_BYTES
    turn.hears(b'"}\n\n')
    assert turn.said == b""


@pytest.mark.parametrize("line", [b"\n", b"\r\n"])
@pytest.mark.parametrize("cut", [*range(1, 40, 7), 4096])
def test_what_decode_says_is_read_wherever_its_answer_is_cut(cut: int, line: bytes) -> None:
    """And however its lines end."""
    said = b'data: {"choices": [], "kv_transfer_params": %b}\n\ndata: [DONE]\n\n' % encode(SAID)
    whole = said.replace(b"\n", line)
    turn = KvReadBack(Scripted()).turn(call_of(encode({"messages": FIRST})), "")
    assert turn is not None
    for at in range(0, len(whole), cut):
        turn.hears(whole[at : at + cut])

    assert parse_object(turn.said).keys() == SAID.keys()


@pytest.mark.parametrize(
    ("change", "tokens", "blocks"),
    [
        ({}, 100, 6),
        ({}, 96, 6),
        ({}, 95, 5),
        ({}, 1000, 7),
        ({}, 15, None),
        ({"remote_num_tokens": 128}, 100, 6),
        ({"remote_num_tokens": 129}, 100, None),
        ({"remote_num_tokens": 500}, 200, 3),
        ({"remote_num_tokens": None}, 100, None),
        ({"remote_block_ids": [[1, 2], [3, 4]]}, 100, None),
        ({"remote_block_ids": [[1, 2, 3]], "remote_num_tokens": 33}, 33, None),
        ({"remote_block_ids": "all"}, 100, None),
        ({"do_remote_decode": False}, 100, None),
        ({"remote_host": None}, 100, None),
    ],
)
def test_blocks_are_cut_to_the_tokens_that_are_known(
    change: dict[str, Any], tokens: int, blocks: int | None
) -> None:
    """Of eight blocks for 120 tokens, each has sixteen."""
    found = nixl.read_back(encode({**SAID, **change}), tokens)

    assert (None if found is None else len(value(found, "remote_block_ids")[0])) == blocks


def test_what_is_no_object_is_not_read() -> None:
    for said in (b"", b"[]", b"{", b"\xff", b"null"):
        assert nixl.read_back(said, 100) is None


async def test_other_protocols_and_apis_are_left_alone() -> None:
    engines = Turning()
    records = [replace(one, protocol="tpu") for one in (P0, D0)]
    crossing = Crossing(engines, *records)
    back = crossing.execution.read_back = KvReadBack(engines)
    await crossing.ask(call_of(encode({"model": "m", "messages": FIRST, "stream": True})))

    assert "return_token_ids" not in engines.sent[0][0].body
    assert back.turn(call_of(encode({"prompt": "x"}), "/v1/completions"), "") is None
