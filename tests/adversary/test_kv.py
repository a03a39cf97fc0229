"""KV against strangers: who does not know the secret of a fleet gets in nowhere.

A stranger knows the wire and the port, and what was recorded; a peer knows the secret as well.
"""

import contextlib
import queue
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from pdgate.engine.connector import Keep
from pdgate.transfer.base import (
    Descriptor,
    PeerLost,
    Range,
    TransferError,
)
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.runtime import channel as channels
from pdgate.transfer.runtime import handshake
from pdgate.transfer.runtime.channel import dial
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.handshake import Answering, Dialling, Unproven
from pdgate.transfer.tcp import wire
from pdgate.transfer.tcp.backend import TcpBackend
from pdgate.transfer.tcp.owner import PURPOSE as TCP
from tests.support.engine_pair import P_BLOCKS, PROMPT, arrival
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore
from tests.support.kv_strangers import (
    ASK,
    SECRET,
    Canary,
    Recorder,
    as_before,
    member,
    no_secret,
    open_identity,
    pages,
    push_into,
    raw,
    rest,
    stranger,
)


@pytest.mark.parametrize("identity", [member, open_identity])
def test_prefill_ask_read_and_write_by_a_stranger(identity: Callable[[], Identity]) -> None:
    """Read 12.5 MB and overwrote them, and another tenant's answer was wrong. On loopback the
    secret may be missing, and the words alone are of no use either.
    """
    large = replace(LAYOUT, blocks=16384)
    with closing(FakeCore("tcp", "vllm-kvt", "prefill", large, identity=identity())) as core:
        core.write(range(64), seed=9)
        before = pages(core)
        assert len(before) > 12.5e6
        shape = PageShape.of(large, "tiny", order=large.order)
        with raw(core.connector.kv_address) as sock:
            # Each of them is asked for by itself, as the port hangs up at once.
            said = as_before(sock, messages.Prefill("mine", list(PROMPT)))
        with raw(core.connector.kv_address) as sock:
            offered = as_before(sock, messages.Ask("mine", "", 1.0, SECONDS, shape))

        for one in (said, offered):
            assert isinstance(one, dict)
            assert one["type"] == "Refused"
            assert "version 1 of the KV handshake" in one["message"]
        assert core.prefills.empty()

        # And with what only the owner knows, should it leak: all of the region's epoch.
        address = core.region.descriptor.address
        epoch = bytes.fromhex(core.region.descriptor.epoch)
        for op in wire.TcpOp:
            with raw((address["host"], address["port"])) as sock:
                sock.sendall(wire.encode(wire.TcpRequest(op, epoch, [0], [len(before)])))
                with contextlib.suppress(OSError):
                    sock.sendall(bytes(1 << 20) if op is wire.TcpOp.WRITE else b"")
                assert rest(sock) in (b"", wire.answer(wire.TcpStatus.BAD_REQUEST, checked=False))
        assert pages(core) == before


def test_a_stranger_with_another_secret_or_none_is_named_and_not_let_in(
    prefill: FakeCore, caplog: pytest.LogCaptureFixture
) -> None:
    address = prefill.region.descriptor.address
    tcp = (address["host"], address["port"])
    for other, why in ((no_secret(), "does not know ours"), (open_identity(), "we have none")):
        for place, purpose in ((prefill.connector.kv_address, messages.PURPOSE), (tcp, TCP)):
            with pytest.raises(Unproven, match=why):
                dial(place, other, purpose, SECONDS)
    assert SECRET not in caplog.text
    assert SECRET not in repr(member())


def test_an_engine_without_a_secret_refuses_those_who_have_one() -> None:
    """Nobody is to believe that it is protected when the other side is not."""
    with (
        closing(FakeCore("tcp", "vllm-kvt", "prefill", identity=open_identity())) as core,
        pytest.raises(Unproven, match="another KV secret, or none"),
    ):
        dial(core.connector.kv_address, member(), messages.PURPOSE, SECONDS)


def test_a_stranger_that_claims_to_know_the_secret_proves_nothing(prefill: FakeCore) -> None:
    """The right key's id is no secret: it is on the wire."""
    liar = no_secret()
    right = Dialling(member(), messages.PURPOSE).hello
    wrong = Dialling(liar, messages.PURPOSE)
    with raw(prefill.connector.kv_address) as sock:
        sock.sendall(right)
        answer = sock.recv(handshake.ANSWER_BYTES, socket.MSG_WAITALL)
        with pytest.raises(Unproven, match="does not know the KV secret"):
            wrong.answered(answer)
        sock.sendall(secrets.token_bytes(handshake.PROOF_BYTES))
        assert rest(sock) == b""


def test_a_listener_that_knows_no_secret_learns_nothing_from_who_dials_it() -> None:
    """It can send whatever it likes: no proof and no message comes."""
    heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def serve(sock: socket.socket) -> None:
        sock.settimeout(SECONDS)
        sock.recv(handshake.HELLO_BYTES, socket.MSG_WAITALL)
        fake = Answering(open_identity(), ["x"], Dialling(open_identity(), "x").hello)
        sock.sendall(fake.answer)
        heard.put(rest(sock))

    with stranger(serve) as port:
        with pytest.raises(Unproven):
            dial(("127.0.0.1", port), member(), messages.PURPOSE, SECONDS)
        assert heard.get(timeout=SECONDS) == b""


def test_a_recording_of_a_peer_opens_nothing(prefill: FakeCore) -> None:
    recorder = Recorder(prefill.connector.kv_address)
    with (
        stranger(recorder) as port,
        dial(("127.0.0.1", port), member(), messages.PURPOSE, SECONDS) as line,
    ):
        messages.send(line, ASK)
        assert isinstance(messages.receive(line), messages.Offered)

    with raw(prefill.connector.kv_address) as sock:
        sock.sendall(recorder.there)
        # It may have hung up already.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)

        # Another nonce, so the recorded proof is none, and no message is answered.
        assert len(rest(sock)) == handshake.ANSWER_BYTES


def test_what_a_listener_says_cannot_be_said_back_to_it(prefill: FakeCore) -> None:
    with raw(prefill.connector.kv_address) as sock:
        sock.sendall(Dialling(member(), messages.PURPOSE).hello)
        answer = sock.recv(handshake.ANSWER_BYTES, socket.MSG_WAITALL)
        sock.sendall(answer[-handshake.PROOF_BYTES :])

        assert rest(sock) == b""


def test_frames_cannot_be_repeated_left_out_or_swapped(prefill: FakeCore) -> None:
    for spoil in ("repeat", "leave out", "swap", "cut off"):
        with dial(prefill.connector.kv_address, member(), messages.PURPOSE, SECONDS) as line:
            one = messages.frame(line, messages.Ping())
            two = messages.frame(line, messages.Abandon("nothing", ""))
            line.sock.settimeout(SECONDS)
            match spoil:
                case "repeat":
                    line.sock.sendall(one + one)
                    assert messages.receive(line) == messages.Pong()
                case "leave out":
                    line.sock.sendall(two)
                case "swap":
                    line.sock.sendall(two + one)
                case _:
                    line.sock.sendall(one[:-1] + bytes([one[-1] ^ 1]))

            assert rest(line.sock) == b""


def test_a_connection_for_one_port_is_of_no_use_at_another(prefill: FakeCore) -> None:
    """A stranger in the middle passes a peer's dialling on to a port of another kind."""
    address = prefill.region.descriptor.address
    with (
        stranger(Recorder((address["host"], address["port"]))) as port,
        pytest.raises(Unproven, match="not for messenger"),
    ):
        dial(("127.0.0.1", port), member(), messages.PURPOSE, SECONDS)


def test_another_engine_of_the_fleet_cannot_stand_in_for_the_one_that_was_named() -> None:
    with (
        closing(TcpBackend(identity=member())) as ours,
        closing(TcpBackend(identity=member())) as theirs,
    ):
        region = theirs.allocate(4096)
        other = {**region.descriptor.address, "peer": secrets.token_hex(16)}

        with pytest.raises(PeerLost, match="another engine than was meant"):
            ours.read(
                ours.allocate(4096),
                replace(region.descriptor, address=other),
                [Range(0, 0, 1)],
                SECONDS,
            ).wait(SECONDS)


def test_a_forged_push_or_loan_dials_nobody() -> None:
    """Of a stranger they are not even read; `Prefill` names the canary as the lender."""
    canary = Canary()
    with (
        stranger(canary) as port,
        closing(FakeCore("tcp", "vllm-kvt", "prefill", identity=member())) as core,
    ):
        core.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
        lent = messages.Lent("127.0.0.1", port, "", "x", 4)
        address: dict[str, object] = {"host": "127.0.0.1", "port": port}
        for said in (
            messages.Prefill("forged", list(PROMPT), lent),
            push_into("k", address),
        ):
            with raw(core.connector.kv_address) as sock:
                assert isinstance(as_before(sock, said), dict)
            with raw(core.connector.kv_address) as sock:
                sock.sendall(Dialling(no_secret(), messages.PURPOSE).hello)
                with contextlib.suppress(OSError):
                    sock.sendall(bytes(handshake.PROOF_BYTES) + messages.plain(said))
                rest(sock)
        core.finish(arrival("p1", "k"), Keep(SECONDS), P_BLOCKS)

        assert core.prefills.empty()
    assert canary.heard.empty()


def test_without_a_secret_nobody_beyond_loopback_is_dialled() -> None:
    """192.0.2.1 is nobody's (RFC 5737); to dial it would take until a deadline."""
    started = time.monotonic()
    with closing(TcpBackend()) as tcp:
        far = Descriptor("tcp", "00" * 16, 4096, {"host": "192.0.2.1", "port": 9})
        with pytest.raises(PeerLost, match="not loopback, and we have no KV secret"):
            tcp.read(tcp.allocate(1), far, [Range(0, 0, 1)], SECONDS).wait(SECONDS)
    assert time.monotonic() - started < channels.HANDSHAKE_SECONDS


def test_who_is_dialled_hears_no_more_than_a_hello_until_it_has_proven_itself() -> None:
    """Whoever has the address named: no key, no token and no page."""
    canary = Canary()
    with stranger(canary) as port, closing(TcpBackend(identity=member())) as tcp:
        there = Descriptor("tcp", "00" * 16, 4096, {"host": "127.0.0.1", "port": port})
        with pytest.raises(TransferError):
            tcp.write(tcp.allocate(4096), there, [Range(0, 0, 4096)], SECONDS, 1).wait(SECONDS)
        heard = canary.heard.get(timeout=SECONDS)

    assert len(heard) == handshake.HELLO_BYTES
    assert SECRET.encode() not in heard
