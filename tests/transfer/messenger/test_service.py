"""The KV port believes nothing that it is told."""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.transfer.messenger import messages, service
from pdgate.transfer.messenger.errors import Why
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.runtime.channel import Channel
from tests.support.engine_pair import P_BLOCKS, arrival
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore
from tests.support.proven import channel

SHAPE = PageShape.of(LAYOUT, "tiny", order=LAYOUT.order)


@pytest.fixture
def prefill() -> Iterator[FakeCore]:
    with closing(FakeCore("tcp", "vllm-kvt", "prefill")) as core:
        yield core


def dial(core: FakeCore) -> Channel:
    return channel(core.connector.kv_address)


def say(core: FakeCore, message: messages.Message) -> messages.Message | None:
    with dial(core) as sock:
        return talk(sock, message)


def talk(sock: Channel, message: messages.Message) -> messages.Message | None:
    messages.send(sock, message)
    return messages.receive(sock)


@settings(max_examples=30)
@given(st.binary(min_size=1, max_size=100))
def test_garbage_ends_its_own_connection_only(data: bytes) -> None:
    with closing(FakeCore("tcp", "sglang", "prefill")) as core:
        for sent in (data, struct.pack(">I", len(data)) + data):
            with dial(core) as peer:
                sock = peer.sock
                sock.sendall(sent)
                # What was left unread makes its end a reset, which may come before ours.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(4096):
                        pass
        assert say(core, messages.Abandon("nothing", "")) == messages.Released(held=False)


def test_a_message_without_end_is_not_read(prefill: FakeCore) -> None:
    with dial(prefill) as peer:
        peer.sock.sendall(struct.pack(">I", messages.MAX_BYTES + 1))

        assert peer.sock.recv(1) == b""


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
    with dial(prefill) as peer:
        peer.sock.sendall(peer.sealed(struct.pack(">I", len(data)) + data))

        assert peer.sock.recv(1) == b""


@pytest.mark.parametrize(
    "said",
    [
        messages.Ask("k" * 1025, "", 0.0, 1.0, SHAPE),
        messages.Abandon("k" * 1025, ""),
        messages.Prefill("k" * 1025, [1, 2, 3]),
        messages.Prefill("k", [1, 2, 3], readers=("n",) * 1025),
        messages.Prefill("k", [1, 2, 3], readers=("n" * 65,)),
    ],
)
def test_what_would_be_remembered_is_short(said: messages.Message, prefill: FakeCore) -> None:
    """A frame may have 32 MiB, and of keys that were given up thousands are kept."""
    refused = say(prefill, said)

    assert isinstance(refused, messages.RefusedMessage)
    assert refused.why == Why.UNSUPPORTED


def test_a_request_whose_key_no_peer_can_name_is_refused(prefill: FakeCore) -> None:
    with pytest.raises(ValueError, match="1025 characters"):
        prefill.connector.plan(arrival(wire_id="k" * 1025, params={"do_remote_decode": True}))


@pytest.mark.parametrize("wait_seconds", [float("nan"), float("inf")])
def test_nobody_waits_for_ever(wait_seconds: float, prefill: FakeCore) -> None:
    assert say(prefill, messages.Ask("k", "", wait_seconds, 1.0, SHAPE)) is None


def test_only_one_reader_gets_an_offer_confirmed(prefill: FakeCore) -> None:
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)
    ask = messages.Ask("k", "", 0.0, SECONDS, SHAPE)
    with dial(prefill) as reader:
        first, second = talk(reader, ask), talk(reader, ask)
        assert isinstance(first, messages.Offered)
        assert first == second
        assert first.first_token == 7

        release = messages.Release("k", first.offer_id)

        assert talk(reader, release) == messages.Released(held=True)
        assert talk(reader, release) == messages.Released(held=False)


def test_while_one_reads_another_is_refused(prefill: FakeCore) -> None:
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)
    ask = messages.Ask("k", "", 0.0, SECONDS, SHAPE)
    with dial(prefill) as reader:
        assert isinstance(talk(reader, ask), messages.Offered)

        answer = say(prefill, ask)

    assert isinstance(answer, messages.RefusedMessage)
    assert answer.why == Why.TAKEN


def test_a_lease_that_ends_while_one_reads_frees_the_pages_when_the_reader_leaves(
    prefill: FakeCore,
) -> None:
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)
    ask = messages.Ask("k", "", 0.0, SECONDS, SHAPE)
    with dial(prefill) as reader:
        offered = talk(reader, ask)
        assert isinstance(offered, messages.Offered)
        assert prefill.connector.dropped("r1", "the lease is over")
        late = say(prefill, ask)
        assert isinstance(late, messages.RefusedMessage)
        assert late.why == Why.EXPIRED
        assert prefill.freed.empty()

    assert prefill.freed.get(timeout=SECONDS) == "r1"
    assert say(prefill, messages.Release("k", offered.offer_id)) == messages.Released(held=False)


def ping(reader: Channel) -> None:
    assert talk(reader, messages.Ping()) == messages.Pong()


def ask_again(reader: Channel) -> None:
    assert talk(reader, messages.Ask("k", "", 0.0, SECONDS, SHAPE)) is not None


def ask_for_another(reader: Channel) -> None:
    assert talk(reader, messages.Ask("nobody's", "", SECONDS, SECONDS, SHAPE)) is not None


def drip(reader: Channel) -> None:
    """Of a message of 16 MB; the first of it says so."""
    reader.sock.sendall(b"\1")


@pytest.mark.parametrize("go_on", [ping, ask_again, ask_for_another, drip])
def test_a_reader_that_goes_on_talking_does_not_keep_the_pages(
    go_on: Callable[[Channel], None], prefill: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "READ_MARGIN_SECONDS", 0.5)
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)
    with dial(prefill) as reader:
        assert isinstance(talk(reader, messages.Ask("k", "", 0.0, 0.0, SHAPE)), messages.Offered)
        assert prefill.connector.dropped("r1", "the lease is over")
        patient_until = time.monotonic() + SECONDS / 4
        # It may be hung up on at any time, when the pages are free.
        with contextlib.suppress(OSError, AssertionError):
            while prefill.freed.empty() and time.monotonic() < patient_until:
                go_on(reader)
                time.sleep(0.1)

        assert prefill.freed.get_nowait() == "r1"


def test_an_offer_is_not_freed_by_who_does_not_know_it(prefill: FakeCore) -> None:
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)

    assert say(prefill, messages.Release("k", "guessed")) == messages.Released(held=False)

    assert prefill.freed.empty()


def test_a_prompt_of_one_token_is_not_worth_sending(prefill: FakeCore) -> None:
    answer = say(prefill, messages.Prefill("k", [1]))

    assert isinstance(answer, messages.RefusedMessage)
    assert prefill.prefills.empty()


def test_a_prompt_under_a_key_that_is_taken_is_refused(prefill: FakeCore) -> None:
    """And the one that has the key keeps it."""
    prefill.prefill(arrival(wire_id="k", params={"do_remote_decode": True}), P_BLOCKS)

    answer = say(prefill, messages.Prefill("k", [1, 2, 3]))

    assert isinstance(answer, messages.RefusedMessage)
    assert "another live request" in answer.message
    assert isinstance(say(prefill, messages.Ask("k", "", 0.0, SECONDS, SHAPE)), messages.Offered)


def test_a_port_that_is_taken_is_an_error_that_leaves_nothing_open() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
    ):
        FakeCore("tcp", "vllm-mooncake", "prefill", kv_port=taken.getsockname()[1])
