"""The KV port believes nothing that it is told."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.engine.hand_over import messages
from pdgate.engine.hand_over.shape import Shape
from tests.support.engine_pair import P_BLOCKS, arrival
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore

SHAPE = Shape.of(LAYOUT, "tiny")


@pytest.fixture
def prefill() -> Iterator[FakeCore]:
    with closing(FakeCore("tcp", "vllm-kvt", "prefill")) as core:
        yield core


def dial(core: FakeCore) -> socket.socket:
    return socket.create_connection(core.connector.kv_address, timeout=SECONDS)


def say(core: FakeCore, message: messages.Message) -> messages.Message | None:
    with dial(core) as sock:
        messages.send(sock, message)
        return messages.receive(sock)


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=1, max_size=100))
def test_garbage_ends_its_own_connection_only(data: bytes) -> None:
    with closing(FakeCore("tcp", "sglang", "prefill")) as core:
        for sent in (data, struct.pack(">I", len(data)) + data):
            with dial(core) as sock:
                sock.sendall(sent)
                # What was left unread makes its end a reset, which may come before ours.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(4096):
                        pass
        assert say(core, messages.Abandon("nothing", "")) == messages.Released(held=False)


def test_a_message_without_end_is_not_read(prefill: FakeCore) -> None:
    with dial(prefill) as sock:
        sock.sendall(struct.pack(">I", messages.MAX_BYTES + 1))

        assert sock.recv(1) == b""


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "Ask", "key": "k", "engine_id": "", "wait_seconds": "long", "shape": {}},
        {"type": "Ask", "key": 5},
        {"type": "Prefill", "key": "k", "prompt": ["a"]},
        {"type": "Released", "held": True},
        {"type": "Shutdown"},
        [1, 2],
    ],
)
def test_a_message_of_another_kind_is_hung_up_on(bad: object, prefill: FakeCore) -> None:
    data = msgspec.msgpack.encode(bad)
    with dial(prefill) as sock:
        sock.sendall(struct.pack(">I", len(data)) + data)

        assert sock.recv(1) == b""


@pytest.mark.parametrize("wait_seconds", [float("nan"), float("inf")])
def test_nobody_waits_for_ever(wait_seconds: float, prefill: FakeCore) -> None:
    assert say(prefill, messages.Ask("k", "", wait_seconds, SHAPE)) is None


def test_only_one_reader_gets_an_offer_confirmed(prefill: FakeCore) -> None:
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)
    ask = messages.Ask("k", "", 0.0, SHAPE)
    first, second = say(prefill, ask), say(prefill, ask)
    assert isinstance(first, messages.Offered)
    assert first == second
    assert first.first_token == 7

    release = messages.Release("k", first.offer_id)

    assert say(prefill, release) == messages.Released(held=True)
    assert say(prefill, release) == messages.Released(held=False)


def test_an_offer_is_not_freed_by_who_does_not_know_it(prefill: FakeCore) -> None:
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)

    assert say(prefill, messages.Release("k", "guessed")) == messages.Released(held=False)

    assert prefill.freed.empty()


def test_a_prompt_of_one_token_is_not_worth_sending(prefill: FakeCore) -> None:
    answer = say(prefill, messages.Prefill("k", [1]))

    assert isinstance(answer, messages.Refused)
    assert prefill.prefills.empty()


def test_a_prompt_under_a_key_that_is_taken_is_refused(prefill: FakeCore) -> None:
    """And the one that has the key keeps it."""
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)

    answer = say(prefill, messages.Prefill("k", [1, 2, 3]))

    assert isinstance(answer, messages.Refused)
    assert "another live request" in answer.message
    assert isinstance(say(prefill, messages.Ask("k", "", 0.0, SHAPE)), messages.Offered)


def test_a_port_that_is_taken_is_an_error_that_leaves_nothing_open() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
    ):
        FakeCore("tcp", "vllm-mooncake", "prefill", kv_port=taken.getsockname()[1])
