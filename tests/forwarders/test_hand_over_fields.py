"""What each forwarder writes on the wire, protocol by protocol."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pdgate.forwarders import registry
from pdgate.forwarders.base import Delegation, Forwarder, HandOff, Leg, Mode, Plain, Rendezvous
from pdgate.forwarders.decode_first import DecodeFirst
from pdgate.forwarders.sglang import Sglang, any_room
from pdgate.forwarders.vllm_kvt import KvtBatch, KvtStaged
from pdgate.forwarders.vllm_nixl import VllmNixl
from pdgate.protocols.call import COMPLETIONS, Call, encode, parse_object, value
from pdgate.protocols.dialects import sglang
from pdgate.protocols.errors import BadRequest, EngineFailed
from pdgate.protocols.instance import Instance, Role
from tests.support.answers import BLOCKS, STATE
from tests.support.scripted import D0, P0, call_of, chat

ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
SEND = {"do_remote_decode": True, "do_remote_prefill": False}
RECEIVE = {"do_remote_decode": False, "do_remote_prefill": True}
CHOICE = {"index": 0, "finish_reason": "length", "disaggregated_params": STATE}
MIGRATES = {"cache_block_ids": [4, 7], "remote_token_ids": [5]}
REPLY = parse_object(encode({"choices": [CHOICE], "kv_transfer_params": BLOCKS, **MIGRATES}))
MOONCAKE_P = replace(
    P0, kv="10.0.0.9:8999", engine_ids=((0, "engine-0"), (1, "engine-1")), dp_rank=1, dp_size=2
)
IPV6 = replace(P0, url="http://[2001:db8::1]:8100")

CLIENT_BODY = (
    b'{"model":"m","prompt":"hi","zeta":{"b":1,"a":null},"null":null,"small":1e-5,"one":1.0,'
    b'"seed":123456789012345678901234567890,"top_k":7}'
)

EVERY = [
    ("vllm-nixl", Mode.BATCH, ""),
    ("vllm-nixl", Mode.STAGED, ""),
    ("vllm-kvt", Mode.BATCH, ""),
    ("vllm-kvt", Mode.STAGED, ""),
    *(("vllm-mooncake", mode, generation) for mode in Mode for generation in "abcd"),
    ("sglang", Mode.BATCH, ""),
    ("decode-first", Mode.BATCH, ""),
    ("neuron", Mode.BATCH, ""),
    ("neuron", Mode.BATCH, "static"),
    ("neuron", Mode.BATCH, "nixl"),
    ("neuron", Mode.STAGED, "nixl"),
    ("offload-p2p", Mode.BATCH, ""),
    ("tpu", Mode.BATCH, ""),
    ("tpu", Mode.STAGED, ""),
    ("store-mediated", Mode.STAGED, ""),
    ("mori-io", Mode.BATCH, "read"),
    ("mori-io", Mode.STAGED, "read"),
    ("mori-io", Mode.BATCH, "write"),
    ("lmdeploy", Mode.BATCH, ""),
    ("lmdeploy", Mode.STAGED, ""),
    ("tensorrt-llm", Mode.BATCH, "context-first"),
    ("tensorrt-llm", Mode.STAGED, "context-first"),
    ("tensorrt-llm", Mode.BATCH, "generation-first"),
]
LIMITS_ITSELF = ("sglang", "vllm-kvt", "decode-first", "tensorrt-llm")
"""Their prefill stops behind the first token whatever it is asked."""
MUST_STOP_BY_LENGTH = ("vllm-mooncake", "tpu", "mori-io")
"""Or their prefill keeps nothing."""


def legs_of(forwarder: Forwarder, call: Call, prefill: Instance = MOONCAKE_P) -> list[Leg]:
    """In the order of roles; Delegation has decode's only."""
    match forwarder:
        case HandOff():
            return [
                forwarder.prefill(call, prefill),
                forwarder.decode(call, prefill, D0, REPLY),
            ]
        case Rendezvous():
            return list(forwarder.legs(call, prefill, D0))
        case Delegation():
            return [forwarder.leg(call, prefill, D0)]
        case _:
            raise AssertionError(forwarder)


def params(leg: Leg) -> Any:
    return value(leg.body, "kv_transfer_params")


def of_mooncake(mode: Mode, generation: str, prefill: Instance = MOONCAKE_P) -> Sequence[Leg]:
    return legs_of(registry.load("vllm-mooncake", mode, generation), chat(), prefill)


@pytest.mark.parametrize(("name", "mode", "generation"), EVERY)
def test_what_the_client_sent_reaches_decode_byte_for_byte(
    name: str, mode: Mode, generation: str
) -> None:
    """Unknown fields, nulls, number formats, long integers, the order of keys."""
    call = call_of(CLIENT_BODY)

    to_decode = legs_of(registry.load(name, mode, generation), call)[-1]

    assert encode(to_decode.body).startswith(CLIENT_BODY[:-1])
    assert to_decode.path == call.path
    assert encode(call.body) == CLIENT_BODY


@pytest.mark.parametrize(("name", "mode", "generation"), EVERY)
def test_the_rest_of_the_call_reaches_prefill_byte_for_byte(
    name: str, mode: Mode, generation: str
) -> None:
    """Both must see the same prompt, whichever fields shape it."""
    call = call_of(CLIENT_BODY)

    to_prefill = legs_of(registry.load(name, mode, generation), call)[0]

    assert encode(to_prefill.body).startswith(CLIENT_BODY[:-1])


@pytest.mark.parametrize(("ids", "prompt"), [(None, "hi"), ([5, 6], [5, 6])])
def test_decode_has_the_clients_prompt_where_tensorrt_llms_prefill_names_no_ids(
    ids: list[int] | None, prompt: object
) -> None:
    """It writes null for what it does not say."""
    forwarder = registry.load("tensorrt-llm", Mode.BATCH, "context-first")
    assert isinstance(forwarder, HandOff)
    reply = parse_object(encode({"choices": [CHOICE], "prompt_token_ids": ids}))

    leg = forwarder.decode(call_of(CLIENT_BODY, COMPLETIONS), MOONCAKE_P, D0, reply)

    assert value(leg.body, "prompt") == prompt


@pytest.mark.parametrize(("name", "mode", "generation"), EVERY)
def test_prefill_never_streams(name: str, mode: Mode, generation: str) -> None:
    forwarder = registry.load(name, mode, generation)
    if isinstance(forwarder, Delegation):
        # It has no leg to prefill.
        return
    body = legs_of(forwarder, chat(stream=True, stream_options={"include_usage": True}))[0].body

    assert body["stream"] is False
    assert "stream_options" not in body


@pytest.mark.parametrize(
    ("name", "mode", "generation"),
    [one for one in EVERY if one[0] not in LIMITS_ITSELF],
)
def test_prefill_reads_the_prompt_and_says_one_token(
    name: str, mode: Mode, generation: str
) -> None:
    """More would be decoded in the wrong place; of the two limits engines take the newer."""
    call = chat(max_tokens=200, max_completion_tokens=300, min_tokens=5)

    body = legs_of(registry.load(name, mode, generation), call)[0].body

    assert (body["max_tokens"], body["max_completion_tokens"]) == (1, 1)
    assert body.get("min_tokens") == (1 if name in MUST_STOP_BY_LENGTH else None)


@pytest.mark.parametrize(("name", "mode", "generation"), EVERY)
def test_a_retry_never_repeats_a_meeting_point(name: str, mode: Mode, generation: str) -> None:
    """A stale leg of the first attempt would meet a fresh one: wrong tokens."""
    forwarder = registry.load(name, mode, generation)
    points = {
        (
            str(value(leg.body, "bootstrap_room")),
            str((params(leg) or {}).get("transfer_id")),
            str(value(leg.body, "disaggregated_params")),
            str(value(leg.body, "migration_request")),
            leg.request_id or call.attempt_id,
        )
        for call in (chat(), chat().retried("call-1-second"))
        for leg in legs_of(forwarder, call)[-1:]
    }

    assert len(points) == 2


def test_nixl_asks_for_blocks_and_hands_them_on_word_for_word() -> None:
    prefill, decode = legs_of(VllmNixl(), chat())

    assert params(prefill) == ASK
    assert bytes(decode.body["kv_transfer_params"]) == encode(BLOCKS)


def of_tensorrt(finish: str | None, **more: object) -> Leg:
    """Decode's leg of a chat, context first."""
    forwarder = registry.load("tensorrt-llm", Mode.STAGED)
    assert isinstance(forwarder, HandOff)
    choice = {**CHOICE, "finish_reason": finish}
    return forwarder.decode(chat(), P0, D0, parse_object(encode({"choices": [choice], **more})))


@pytest.mark.parametrize("finish", ["length", "not_finished"])
def test_tensorrts_decode_gets_prefills_state_ids_and_usage(finish: str) -> None:
    ids = {"prompt_token_ids": [1, 72, 105], "usage": {"prompt_tokens": 3}}

    body = parse_object(encode(of_tensorrt(finish, **ids).body))

    told = value(body, "disaggregated_params")
    assert {name: told[name] for name in ("ctx_request_id", "first_gen_tokens", "ctx_usage")} == {
        "ctx_request_id": 1 << 41,
        "first_gen_tokens": [5],
        "ctx_usage": {"prompt_tokens": 3},
    }
    assert told["request_type"] == "generation_only"
    assert 1 << 40 <= told["disagg_request_id"] < 1 << 63
    assert value(body, "prompt_token_ids") == [1, 72, 105]


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_a_tensorrt_answer_that_ended_with_its_first_token_is_decodes_to_say(finish: str) -> None:
    """Prefill keeps nothing of it."""
    assert of_tensorrt(finish).body == chat().body


def test_generation_first_waits_for_prefill_to_say_where_it_is() -> None:
    forwarder = registry.load("tensorrt-llm", Mode.BATCH, "generation-first")
    assert isinstance(forwarder, Rendezvous)

    with pytest.raises(EngineFailed, match="has not said where it is"):
        forwarder.legs(chat(), P0, D0)

    named = replace(P0, engine_ids=((0, "tcp://10.0.0.1:5000"),))
    told = value(forwarder.legs(chat(), named, D0)[1].body, "disaggregated_params")
    assert told["ctx_info_endpoint"] == "tcp://10.0.0.1:5000"
    assert told["ctx_request_id"] == told["disagg_request_id"]


@pytest.mark.parametrize(
    "choices",
    [
        None,
        [],
        [CHOICE, CHOICE],
        [{"finish_reason": "length"}],
        "none",
        [7],
        [{**CHOICE, "finish_reason": "x" * 100_000}],
        [{**CHOICE, "disaggregated_params": "here"}],
        [{**CHOICE, "disaggregated_params": {"first_gen_tokens": [1]}}],
    ],
)
def test_what_is_no_answer_of_a_context_server_is_its_failure(choices: object) -> None:
    forwarder = registry.load("tensorrt-llm", Mode.STAGED)
    assert isinstance(forwarder, HandOff)

    with pytest.raises(EngineFailed, match="prefill"):
        forwarder.decode(chat(), P0, D0, parse_object(encode({"choices": choices})))


def test_a_tpu_prefill_that_has_no_full_block_has_not_failed() -> None:
    forwarder = registry.load("tpu", Mode.STAGED)
    assert isinstance(forwarder, HandOff)
    call = chat()

    leg = forwarder.decode(call, P0, D0, parse_object(b'{"kv_transfer_params": {}}'))

    assert leg.body == call.body


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tpu", {"remote_engine_id": "e1", "remote_block_ids": [1], "remote_port": 1}),
        ("tpu", {"uuid": None}),
        ("mori-io", {"remote_block_ids": [[1]], "remote_engine_id": "e", "uuid": 7}),
    ],
)
def test_an_answer_of_another_wire_is_named_with_what_was_expected(
    name: str, said: dict[str, object]
) -> None:
    forwarder = registry.load(name, Mode.STAGED)
    assert isinstance(forwarder, HandOff)

    with pytest.raises(EngineFailed, match=r"of another wire: (uuid|transfer_id)") as failed:
        forwarder.decode(chat(), P0, D0, parse_object(encode({"kv_transfer_params": said})))

    assert all(field in str(failed.value) for field in said)


@pytest.mark.parametrize("reply", [{}, {"kv_transfer_params": None}, {"kv_transfer_params": {}}])
@pytest.mark.parametrize(("name", "generation"), [("vllm-nixl", ""), ("vllm-mooncake", "a")])
def test_a_prefill_without_blocks_is_a_failure(
    name: str, generation: str, reply: dict[str, object]
) -> None:
    """Decode would silently read the prompt again, so the gateway says so instead."""
    forwarder = registry.load(name, Mode.BATCH, generation)
    assert isinstance(forwarder, HandOff)

    with pytest.raises(EngineFailed, match="without kv_transfer_params"):
        forwarder.decode(chat(), P0, D0, parse_object(encode(reply)))


@pytest.mark.parametrize(
    ("prefill", "host", "port"),
    [
        (P0, "10.0.0.1", 28000),
        (replace(P0, kv="10.9.9.9:14579"), "10.9.9.9", 14579),
        (replace(P0, kv="10.9.9.9"), "10.9.9.9", 28000),
        (replace(P0, kv=":14579"), "10.0.0.1", 14579),
        (IPV6, "2001:db8::1", 28000),
        (replace(P0, dp_rank=0, dp_size=2), "10.0.0.1", 28000),
        (replace(P0, kv="10.9.9.9:14579", dp_rank=3, dp_size=4), "10.9.9.9", 14582),
    ],
)
def test_kvt_names_the_rpc_address_and_not_the_http_port(
    prefill: Instance, host: str, port: int
) -> None:
    peer = {"remote_host": host, "remote_port": port}

    assert params(KvtBatch().leg(chat(), prefill, D0)) == peer
    assert params(KvtStaged().decode(chat(), prefill, D0, {})) == {
        **peer,
        "do_remote_prefill": True,
    }


def test_kvt_staged_asks_prefill_to_hold() -> None:
    assert params(KvtStaged().prefill(chat(), P0)) == {"do_remote_decode": True}


@pytest.mark.parametrize("forwarder", [KvtBatch(), KvtStaged()])
def test_kvt_tells_decode_when_it_is_to_read_the_prompt(forwarder: Forwarder) -> None:
    """Without a word it would wait for somebody to push."""
    leg = forwarder.local(chat(), D0)

    assert (leg.to, params(leg)) == (D0, {"do_local_prefill": True})


@pytest.mark.parametrize("mode", Mode)
def test_mooncake_a_repeats_prefills_answer(mode: Mode) -> None:
    prefill, decode = of_mooncake(mode, "a")

    assert params(prefill) == ASK
    assert params(decode) == BLOCKS


@pytest.mark.parametrize("mode", Mode)
def test_mooncake_b_names_the_bootstrap_server(mode: Mode) -> None:
    prefill, decode = of_mooncake(mode, "b")

    assert params(prefill) == SEND
    assert params(decode) == {
        **RECEIVE,
        "bootstrap_server_host": "10.0.0.9",
        "bootstrap_server_port": 8999,
    }
    assert prefill.headers == {}


@pytest.mark.parametrize("mode", Mode)
def test_mooncake_c_pins_the_rank_whose_engine_it_names(mode: Mode) -> None:
    prefill, decode = of_mooncake(mode, "c")

    assert params(prefill) == SEND
    assert prefill.headers == {"x-data-parallel-rank": "1"}
    assert params(decode) == {
        **RECEIVE,
        "remote_bootstrap_addr": "http://10.0.0.9:8999",
        "remote_engine_id": "engine-1",
        "remote_dp_rank": 1,
    }


@pytest.mark.parametrize("mode", Mode)
def test_mooncake_d_gives_both_the_same_transfer_id(mode: Mode) -> None:
    prefill, decode = of_mooncake(mode, "d")

    assert params(prefill) == {**SEND, "transfer_id": "xfer-call-1-first"}
    assert params(decode) == {
        **RECEIVE,
        "transfer_id": "xfer-call-1-first",
        "remote_engine_id": "engine-1",
        "remote_bootstrap_addr": "http://10.0.0.9:8999",
    }


def test_mooncake_finds_the_bootstrap_server_without_being_told() -> None:
    prefill = replace(IPV6, engine_ids=((0, "engine-0"),))

    decode = of_mooncake(Mode.BATCH, "d", prefill)[1]

    assert params(decode)["remote_bootstrap_addr"] == "http://[2001:db8::1]:8998"
    assert params(decode)["remote_engine_id"] == "engine-0"


@pytest.mark.parametrize("generation", ["c", "d"])
def test_mooncake_does_not_guess_an_engine_id(generation: str) -> None:
    """Decode would wait for an engine that is not there."""
    with pytest.raises(EngineFailed, match="has not named it") as caught:
        of_mooncake(Mode.BATCH, generation, replace(MOONCAKE_P, engine_ids=((0, "engine-0"),)))

    assert caught.value.at == "p0"


def test_decode_first_tells_decode_when_to_ask_the_queue() -> None:
    """Nobody else decides: without the field decode computes the prompt itself."""
    (leg,) = legs_of(DecodeFirst(), chat())

    assert (leg.to, params(leg)) == (D0, {"do_queued_prefill": True})
    assert params(DecodeFirst().local(chat(), D0)) is None


@pytest.mark.parametrize("asked", [{"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}])
def test_sglang_refuses_what_stays_with_prefill(asked: dict[str, object]) -> None:
    """Decode would say zeros."""
    with pytest.raises(BadRequest, match="stay with SGLang's prefill engines"):
        Sglang().legs(chat(**asked), P0, D0)

    Sglang().legs(chat(logprobs=True), P0, D0)


def test_sglang_sends_both_to_one_room() -> None:
    prefill, decode = Sglang(lambda: 42).legs(chat(), replace(P0, kv="10.0.0.9:9000"), D0)

    meeting = {"bootstrap_host": "10.0.0.9", "bootstrap_port": 9000, "bootstrap_room": 42}
    for leg in (prefill, decode):
        assert {name: leg.body[name] for name in meeting} == meeting
    assert value(decode.body, "stream") is True


def test_sglang_puts_an_ipv6_host_in_brackets() -> None:
    body = Sglang(lambda: 42).legs(chat(), IPV6, D0)[0].body

    assert (body["bootstrap_host"], body["bootstrap_port"]) == ("[2001:db8::1]", 8998)


@pytest.mark.parametrize("room", [0, 5, 8, sglang.ROOMS - 1])
@pytest.mark.parametrize("rank", [0, 1, 7])
def test_sglangs_room_lands_on_decodes_rank(room: int, rank: int) -> None:
    """Decode looks for the request on rank room % dp_size."""
    decode = replace(D0, dp_rank=rank, dp_size=8)

    prefill_leg, decode_leg = Sglang(lambda: room).legs(chat(), P0, decode)

    aligned = decode_leg.body["bootstrap_room"]
    assert prefill_leg.body["bootstrap_room"] == aligned
    assert aligned % 8 == rank
    assert abs(aligned - room) < 8
    assert 0 <= aligned < 1 << 63


def test_sglangs_rooms_are_numbers_that_it_takes() -> None:
    rooms = {any_room() for _ in range(50)}

    assert len(rooms) == 50
    assert all(0 <= room < sglang.ROOMS for room in rooms)


@pytest.mark.parametrize(
    ("prefill", "address"), [(P0, "10.0.0.1:8100"), (IPV6, "[2001:db8::1]:8100")]
)
def test_neurons_ids_name_the_other_side(prefill: Instance, address: str) -> None:
    to_prefill, to_decode = legs_of(registry.load("neuron", Mode.BATCH), chat(), prefill)

    assert to_prefill.request_id == "cmpl-call-1-first_10.0.1.1:8200"
    assert to_decode.request_id == f"cmpl-call-1-first_{address}"


def test_static_neuron_gives_both_the_same_id() -> None:
    legs = legs_of(registry.load("neuron", Mode.BATCH, "static"), chat())

    assert [leg.request_id for leg in legs] == ["cmpl-call-1-first"] * 2


def test_a_plain_engine_gets_the_call_as_it_came() -> None:
    call, at = chat(n=3), Instance("s0", "http://s0", Role.PLAIN, "plain")

    leg = Plain().local(call, at)

    assert (leg.to, leg.body, leg.path, leg.headers) == (at, call.body, call.path, {})


def test_sglang_is_told_the_ranks_that_are_configured() -> None:
    p, d = replace(P0, dp_rank=1, dp_size=2), replace(D0, dp_rank=3, dp_size=4)

    to_prefill, to_decode = (leg.body for leg in Sglang(lambda: 8).legs(chat(), p, d))

    assert to_prefill["routed_dp_rank"] == to_decode["disagg_prefill_dp_rank"] == 1
    assert to_decode["routed_dp_rank"] == 3
    assert "disagg_prefill_dp_rank" not in to_prefill


def test_sglang_is_told_no_rank_where_none_is_configured() -> None:
    for leg in Sglang(lambda: 8).legs(chat(), P0, D0):
        assert not [name for name in leg.body if name.endswith("dp_rank")]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    "said",
    [
        b'{"remote_block_ids":[[4,7]],"remote_registration_generation":2}',
        b'{"remote_block_ids" : [[4, 7]], "lookahead_token_ids":[[1,2],null], "a":{"b":1e-5,"c":1.0}}',
        b'{"remote_block_ids":[[4,7]],"x":123456789012345678901234567890,"x\\u00e9":"y"}',
    ],
    ids=["0.33", "others", "numbers"],
)
def test_what_nixls_prefill_says_reaches_decode_byte_for_byte(mode: Mode, said: bytes) -> None:
    """Of a release to come as well: names that are not known here, spaces, numbers as they are written."""
    forwarder = registry.load("vllm-nixl", mode)
    assert isinstance(forwarder, HandOff)
    reply = parse_object(b'{"kv_transfer_params":%b}' % said)

    leg = forwarder.decode(chat(), P0, D0, reply)

    assert encode(leg.body).endswith(b'"kv_transfer_params":%b}' % said)
