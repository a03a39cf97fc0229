"""Prefill's first token goes out early, and the client cannot tell but by the clock."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.forwarders.first_token import FirstTokenStream, RenamedAnswer
from pdgate.protocols import sse
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, encode, parse_object
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance, Role
from tests.support.answers import opening, piece, prefilled, streamed, usage, whole
from tests.support.scripted import NEVER, After, Crossing, Scripted, call_of, chat

PUBLIC_ID = "chatcmpl-u"
PREFILL_ID, DECODE_ID, PUBLIC = "cmpl-u_10.0.0.1:80", "cmpl-u_10.0.0.1:8000", "u"
RENAMES = {PREFILL_ID.encode(): b"u", DECODE_ID.encode(): b"u"}
PATHS = [CHAT, COMPLETIONS]


def asked(path: str, **fields: Any) -> Call:
    if path == CHAT:
        return chat(**fields)
    return call_of(encode({"model": "m", "prompt": "hi", "stream": True, **fields}), path)


def merged(call: Call, first: str, stream: Sequence[bytes], **reply: Any) -> bytes:
    """What the client gets in all."""
    merge = FirstTokenStream(call, RENAMES)
    told = whole(first, path=call.path, id=f"chatcmpl-{PREFILL_ID}", finish="length", **reply)
    early = merge.first(parse_object(encode(told)))
    return early + b"".join(map(merge.feed, stream)) + merge.end()


def early(call: Call, reply: Any) -> bytes:
    return FirstTokenStream(call, RENAMES).first(parse_object(encode(reply)))


@dataclass
class Seen:
    """A stream as a client understands it.

    Attributes:
        text: Choice index -> everything that it said.
        order: Kinds of events; each kind of text only once.
    """

    text: dict[int, str] = field(default_factory=dict)
    roles: int = 0
    finishes: list[Any] = field(default_factory=list)
    usages: list[Any] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)

    def note(self, kind: str) -> None:
        if self.order[-1:] != [kind]:
            self.order.append(kind)


def seen(stream: bytes) -> Seen:
    splitter, found = sse.Splitter(), Seen()
    events = splitter.feed(stream)
    assert splitter.rest == b""
    for event in events:
        data = sse.payload(event)
        if data == b"[DONE]":
            found.note("done")
            continue
        chunk = json.loads(data)
        found.ids.add(chunk["id"])
        if chunk.get("usage"):
            found.usages.append(chunk["usage"])
            found.note("usage")
        for choice in chunk["choices"]:
            delta = choice.get("delta", choice)
            if "role" in delta:
                found.roles += 1
                found.note("role")
            text = delta.get("content", delta.get("text")) or ""
            if text:
                found.note("text")
            found.text[choice["index"]] = found.text.get(choice["index"], "") + text
            if choice["finish_reason"] is not None:
                found.finishes.append(choice["finish_reason"])
                found.note("finish")
    return found


def cut(data: Any, places: list[int]) -> list[Any]:
    borders = [0, *sorted({min(place, len(data)) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


texts = st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from('\ufffd" \\\n'), max_size=9)
places = st.lists(st.integers(0, 900), max_size=8)


@given(
    path=st.sampled_from(PATHS),
    first=texts,
    rest=texts,
    chunk_places=st.lists(st.integers(0, 18), max_size=5),
    byte_places=places,
    finish_with_text=st.booleans(),
    with_usage=st.booleans(),
)
def test_the_client_sees_decodes_stream_with_ids_renamed(
    path: str,
    first: str,
    rest: str,
    chunk_places: list[int],
    byte_places: list[int],
    finish_with_text: bool,
    with_usage: bool,
) -> None:
    """However text is split over chunks, and chunks over packets."""
    texts_of_chunks = cut(first + rest, chunk_places)
    decode_id = f"chatcmpl-{DECODE_ID}"
    last = "stop" if finish_with_text else None
    stream = b"".join(
        [
            *([opening(decode_id)] if path == CHAT else []),
            *(piece(text, path=path, id=decode_id) for text in texts_of_chunks[:-1]),
            piece(texts_of_chunks[-1], last, path=path, id=decode_id),
            *([] if finish_with_text else [piece("", "stop", path=path, id=decode_id)]),
            *([usage(id=decode_id)] if with_usage else []),
            sse.DONE,
        ]
    )

    got = merged(asked(path), first, cut(stream, byte_places))

    assert b"10.0.0.1" not in got
    assert seen(got) == seen(stream.replace(DECODE_ID.encode(), b"u"))


kinds = st.lists(
    st.tuples(
        st.sampled_from(["content", "content", "reasoning", "end", "done"]),
        st.text("ab", max_size=3),
    ),
    max_size=6,
)


@given(first=st.text("ab", min_size=1, max_size=2), said=kinds)
def test_whatever_decode_says_its_answer_or_an_error_is_what_the_client_gets(
    first: str, said: list[tuple[str, str]]
) -> None:
    stream, answer, thinks_first = [opening()], "", False
    for kind, text in said:
        match kind:
            case "content":
                answer += text
                stream.append(piece(text))
            case "reasoning":
                thinks_first |= bool(text) and not answer.startswith(first)
                delta = {"index": 0, "delta": {"reasoning": text}, "finish_reason": None}
                stream.append(sse.event({"id": "x", "choices": [delta]}))
            case "end":
                stream.append(piece("", "stop"))
            case _:
                stream.append(sse.DONE)
    merge = FirstTokenStream(asked(CHAT), {})
    got = merge.first(parse_object(encode(prefilled(first))))
    try:
        got += b"".join(map(merge.feed, stream)) + merge.end()
    except EngineFailed:
        return

    assert seen(got).text[0] == answer
    assert not thinks_first


@pytest.mark.parametrize("path", PATHS)
def test_the_first_token_does_not_wait_for_decode(path: str) -> None:
    got = seen(
        early(asked(path), whole("The", path=path, id=f"chatcmpl-{PREFILL_ID}", finish="length"))
    )

    assert got.text == {0: "The"}
    assert got.order == (["role", "text"] if path == CHAT else ["text"])
    assert got.ids == {"chatcmpl-u"}


def test_decodes_role_and_first_token_are_taken_out() -> None:
    got = merged(asked(CHAT), "The", streamed("The", " sky"))

    assert got.count(b'"role"') == 1
    assert got.count(b"The") == 1
    assert got.endswith(b"".join(streamed("The", " sky", id=PUBLIC_ID)[2:]))


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_of_one_token_keeps_its_finish_reason(path: str) -> None:
    got = seen(merged(asked(path), "The", [piece("The", "length", path=path)]))

    assert (got.text, got.finishes) == ({0: "The"}, ["length"])


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_of_no_text_passes_as_it_is(path: str) -> None:
    """The first token was the last: it ends the answer and has no text."""
    stream = [opening(), piece("", "stop", path=path), usage(), sse.DONE]

    assert merged(asked(path), "", stream) == b"".join(stream)


def test_usage_and_the_end_come_once() -> None:
    got = merged(asked(CHAT), "The", [*streamed("The")[:-1], usage(), sse.DONE])

    assert got.endswith(usage(id=PUBLIC_ID) + sse.DONE)
    assert got.count(b'"usage"') == 1


def test_comments_pass() -> None:
    got = merged(asked(CHAT), "The", [b": ping\n\n", *streamed("The", "re")])

    assert b": ping\n\n" in got


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["e"]},
        {"tools": [{"type": "function"}]},
        {"functions": [{}]},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"logprobs": 0},
        {"echo": True},
        {"return_token_ids": True},
        {"stream_options": {"continuous_usage_stats": True}},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", PATHS)
def test_nothing_goes_early_where_the_first_chunk_may_change(
    path: str, fields: dict[str, Any]
) -> None:
    """A stop string may begin in it; log-probabilities would be lost with it."""
    call = asked(path, **fields)
    stream = [opening(), piece("The", path=path), piece("", "stop", path=path), sse.DONE]

    assert early(call, whole("The", path=path, finish="length")) == b""
    assert merged(call, "The", stream) == b"".join(stream)


@pytest.mark.parametrize(
    "fields",
    [{"stop": None}, {"stop": []}, {"logprobs": None}, {"logprobs": False}, {"tools": []}],
    ids=str,
)
def test_fields_that_ask_for_nothing_do_not_hold_it_back(fields: dict[str, Any]) -> None:
    assert early(asked(CHAT, **fields), prefilled("The"))


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": [{"id": "call_1"}]},
        {"content": "x", "tool_calls": [{"id": "call_1"}]},
        {"content": "x", "reasoning_content": "hm"},
        {"content": [{"type": "text"}]},
        {},
    ],
    ids=str,
)
def test_only_plain_text_goes_early(message: dict[str, Any]) -> None:
    choice = {"index": 0, "message": message, "finish_reason": "length"}

    assert early(asked(CHAT), {"id": "x", "choices": [choice]}) == b""


@pytest.mark.parametrize(
    "mark", ["<think>", "[THINK]", "<|channel|>", "\n<think>", "\u25c1think\u25b7", "\n", " "]
)
def test_the_mark_of_a_parser_waits_for_decode(mark: str) -> None:
    """Prefill's one token says no more of it than that, and decode's stream has it as reasoning, or not at all."""
    assert early(asked(CHAT), prefilled(mark)) == b""


def test_a_token_that_ends_the_answer_waits_for_decode() -> None:
    assert early(asked(CHAT), whole("The", finish="stop")) == b""


def test_an_engine_with_ids_of_its_own_keeps_the_answers() -> None:
    """Clients put chunks together by it."""
    stream = FirstTokenStream(asked(CHAT), {})
    first = stream.first(parse_object(encode(prefilled("The", id="of-prefill"))))

    got = seen(first + b"".join(map(stream.feed, streamed("The", " sky", id="of-decode"))))

    assert (got.ids, got.text) == ({"of-prefill"}, {0: "The sky"})


@pytest.mark.parametrize("reply", [{}, {"choices": []}, {"choices": None}, {"choices": "x"}])
def test_a_reply_without_a_choice_sends_nothing(reply: dict[str, Any]) -> None:
    assert early(asked(CHAT), reply) == b""


def test_half_a_character_waits_for_its_other_half() -> None:
    stream = streamed("\u00e9")

    assert merged(asked(CHAT), "\ufffd", stream) == b"".join(stream)


def test_ids_of_tool_calls_stay() -> None:
    """Only ids that carry an address change."""
    call = sse.event({"id": DECODE_ID, "choices": [{"delta": {"tool_calls": [{"id": "call_9"}]}}]})

    got = merged(asked(CHAT, tools=[{}]), "", [call])

    assert got == call.replace(DECODE_ID.encode(), b"u")


@pytest.mark.parametrize("path", PATHS)
def test_engines_that_disagree_are_an_error(path: str) -> None:
    """Some of one answer and some of the other would be worse."""
    with pytest.raises(EngineFailed, match="disagree"):
        merged(asked(path), "The", [piece("An", path=path)])


@pytest.mark.parametrize("path", PATHS)
def test_a_decode_that_ends_without_the_first_token_disagrees_too(path: str) -> None:
    with pytest.raises(EngineFailed, match="without prefill's first token"):
        merged(asked(path), "The", [piece("Th", path=path), piece("", "stop", path=path)])


@pytest.mark.parametrize(
    "nonsense",
    [
        b"data: nope\n\n",
        b'data: {"choices": "\xff"}\n\n',
        b'data: {"choices": %b}\n\n' % (b"[" * 20_000 + b"]" * 20_000),
        b"data: []\n\n",
        b'data: {"choices": [1]}\n\n',
        b'data: {"choices": 7}\n\n',
    ],
    ids=["no JSON", "no UTF-8", "too deep", "a list", "no choice", "no choices"],
)
def test_what_is_no_chunk_is_the_engines_failure(nonsense: bytes) -> None:
    with pytest.raises(EngineFailed, match="no chunk"):
        merged(asked(CHAT), "The", [nonsense])


@given(places)
def test_ids_are_renamed_across_packets(byte_places: list[int]) -> None:
    answer = encode(whole("The", id=f"chatcmpl-{DECODE_ID}"))
    merge = RenamedAnswer(RENAMES)

    got = b"".join(map(merge.feed, cut(answer, byte_places))) + merge.end()

    assert got == answer.replace(DECODE_ID.encode(), b"u")


@pytest.mark.parametrize("turned", [False, True])
def test_an_id_that_begins_like_another_is_renamed_whole(turned: bool) -> None:
    """Port 80 and port 8000 of one host."""
    renames = dict(sorted(RENAMES.items(), reverse=turned))
    merge = RenamedAnswer(renames)
    merge.feed(f'"{PREFILL_ID}" "{DECODE_ID}-0"'.encode())

    assert merge.end() == b'"u" "u-0"'


P = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "neuron")
D = Instance("d0", "http://10.0.1.1:8200", Role.DECODE, "neuron")


async def test_the_client_hears_prefill_while_decode_is_silent() -> None:
    engines = Scripted(p0=prefilled("The"), d0=[NEVER])
    crossing = Crossing(engines, P, D)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()

    await crossing.called[0].hears.wait()

    assert seen(b"".join(crossing.called[0].chunks)).text == {0: "The"}
    asking.cancel()


async def test_both_legs_make_one_answer() -> None:
    engines = Scripted(p0=prefilled("The"), d0=streamed("The", " sky"))

    told = await Crossing(engines, P, D).ask(chat())

    got = seen(told.body)
    assert (got.text, got.roles, got.finishes) == ({0: "The sky"}, 1, ["stop"])
    assert got.order == ["role", "text", "finish", "done"]


async def test_a_whole_answer_is_decodes_alone() -> None:
    """It holds the first token already."""
    engines = Scripted(p0=prefilled("The"), d0=whole("The sky"))

    told = await Crossing(engines, P, D).ask(chat(stream=False))

    assert told.body == encode(whole("The sky"))


async def test_no_address_gets_out() -> None:
    engines = Scripted(p0=prefilled("The"))
    crossing = Crossing(engines, P, D)
    call = chat()
    stream = streamed("The", " sky", id=f"chatcmpl-cmpl-{call.attempt_id}_10.0.0.1:8100")
    engines.scripts["d0"] = b"".join(stream)[:100], b"".join(stream)[100:]

    told = await crossing.ask(call)

    assert seen(told.body).ids == {"x"}


async def test_disagreement_ends_the_stream_and_says_so() -> None:
    """After the first byte there is no other way."""
    engines = Scripted(p0=prefilled("The"), d0=[*streamed("An"), NEVER])

    told = await Crossing(engines, P, D).ask(chat())

    assert isinstance(told.error, EngineFailed)
    assert engines.visits.count("d0") == 1
    assert engines.left_early == ["d0"]


async def test_nonsense_ends_the_stream_too() -> None:
    engines = Scripted(p0=prefilled("The"), d0=[b"data: nope\n\n", NEVER])

    told = await Crossing(engines, P, D).ask(chat())

    assert isinstance(told.error, EngineFailed)


async def test_a_failed_prefill_is_retried_with_both_legs() -> None:
    other = Instance("p1", "http://10.0.0.2:8100", Role.PREFILL, "neuron")
    engines = Scripted(p0=prefilled("The"), d0=streamed("The"))
    engines.scripts["p1"] = After(engines.waits("d0"), EngineFailed("500"))
    engines.scripts["d0"] = [NEVER]
    crossing = Crossing(engines, P, other, D)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()
    engines.scripts["d0"] = streamed("The")

    told = await asking

    assert seen(told.body).text == {0: "The"}
    assert engines.left_early == ["d0"]
