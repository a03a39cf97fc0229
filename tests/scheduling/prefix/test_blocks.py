from pdgate.protocols.call import CHAT, Call, Raw, encode, parse_object
from pdgate.scheduling.prefix.index import BLOCK_BYTES, MOST_BLOCKS, blocks_of, hashed

SYSTEM = {"role": "system", "content": "You answer in verse. " * 100}
FIRST = {"role": "user", "content": "And now a first question. " * 40}


def asked(**fields: object) -> Call:
    return Call("c", "c-1", CHAT, parse_object(encode({"model": "m", **fields})))


def common(one: Call, other: Call) -> int:
    """How many blocks the two have in common, from the first on."""
    same = [a == b for a, b in zip(blocks_of(one), blocks_of(other), strict=False)]
    return (*same, False).index(False)


def test_the_next_turn_of_a_conversation_begins_with_all_blocks_of_this_one() -> None:
    this = asked(messages=[SYSTEM, FIRST])
    following = asked(messages=[SYSTEM, FIRST, {"role": "assistant", "content": "Well, " * 500}])

    assert common(this, following) == len(blocks_of(this)) > 3
    assert len(blocks_of(following)) > len(blocks_of(this))


def test_so_it_does_wherever_the_list_happens_to_end() -> None:
    """Also where the bracket that closes it would be the last byte of a block."""
    for length in range(BLOCK_BYTES):
        said = {"role": "user", "content": "x" * length}
        this, following = asked(messages=[said]), asked(messages=[said, FIRST])

        assert common(this, following) == len(blocks_of(this))


def test_so_it_does_with_spaces_before_the_bracket() -> None:
    def spread(*messages: object) -> Call:
        text = b"[\n" + b",\n".join(encode(m) for m in messages) + b" " * 600 + b"\n]"
        return Call("c", "c-1", CHAT, {"model": Raw(b'"m"'), "messages": Raw(text)})

    for length in range(0, BLOCK_BYTES, 7):
        said = {"role": "user", "content": "x" * length}
        # The last block of the 600 spaces may differ: a client that writes so is not common.
        assert common(spread(said), spread(said, FIRST)) >= len(blocks_of(spread(said))) - 1


def test_prompts_that_differ_once_have_nothing_in_common_behind_it() -> None:
    one = asked(prompt="a" * 2000 + "b" + "a" * 2000)
    other = asked(prompt="a" * 2000 + "c" + "a" * 2000)

    assert common(one, other) == 3
    assert not set(blocks_of(one)[3:]) & set(blocks_of(other)[3:])


def test_a_prompt_may_be_token_ids() -> None:
    ids = list(range(5000))

    assert common(asked(prompt=ids), asked(prompt=[*ids, 5000, 5001])) == len(
        blocks_of(asked(prompt=ids))
    )
    assert blocks_of(asked(token_ids=ids)) == blocks_of(asked(prompt=ids))


def test_what_changes_an_engine_s_cache_from_its_first_token_on_changes_every_block() -> None:
    plain = asked(messages=[SYSTEM])
    for field, other in {
        "model": "an-adapter",
        "cache_salt": "tenant-7",
        "chat_template": "{{ messages }}",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "reasoning_effort": "high",
        "reasoning": {"effort": "high"},
        "extra_key": "tenant-7",
        "lora_path": "an-adapter",
        "truncate_prompt_tokens": 500,
        "truncation_side": "left",
        "truncation": "auto",
    }.items():
        assert common(plain, asked(messages=[SYSTEM], **{field: other})) == 0, field


def test_what_changes_only_the_answer_changes_no_block() -> None:
    assert blocks_of(asked(messages=[SYSTEM], temperature=0.5, user="u", seed=3)) == blocks_of(
        asked(messages=[SYSTEM])
    )


def test_responses_and_messages_have_beginnings_too() -> None:
    turns = [[FIRST], [FIRST, {"role": "assistant", "content": "Well, " * 500}]]

    for before, name in (("instructions", "input"), ("system", "messages")):
        this, following = (asked(**{before: "Be brief.", name: turn}) for turn in turns)
        other = asked(**{before: "Be long.", name: turns[0]})
        assert common(this, following) == len(blocks_of(this)) > 1
        assert common(this, other) == 0


def test_long_tools_are_blocks_of_the_prompt_too() -> None:
    """Agents send tens of kilobytes of them, which engines cache before the messages."""
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 5000}}]
    one = asked(tools=tools, messages=[{"role": "user", "content": "1" * 600}])
    other = asked(tools=tools, messages=[{"role": "user", "content": "2" * 600}])

    assert common(one, other) == -(-len(encode(tools)) // BLOCK_BYTES)


def test_an_image_is_bytes_like_any_other() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3000}}
    one = asked(messages=[{"role": "user", "content": [picture, {"type": "text", "text": "a"}]}])
    other = asked(messages=[{"role": "user", "content": [picture, {"type": "text", "text": "b"}]}])

    assert common(one, other) == len(blocks_of(one))


def test_a_short_prompt_and_none_at_all_have_no_blocks() -> None:
    assert not blocks_of(asked(messages=[{"role": "user", "content": "hi"}]))
    assert not blocks_of(asked(input="what is this"))
    assert not blocks_of(asked(prompt=""))


def test_they_are_made_once_for_a_call_and_its_retries() -> None:
    call = asked(messages=[SYSTEM])
    blocks = blocks_of(call)

    assert blocks_of(call) is blocks
    assert blocks_of(call.retried("c-2")) is blocks


def test_a_prompt_without_end_is_hashed_only_so_far() -> None:
    assert len(hashed(asked(prompt="x" * (MOST_BLOCKS + 5) * BLOCK_BYTES))) == MOST_BLOCKS
