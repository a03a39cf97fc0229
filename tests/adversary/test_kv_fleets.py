"""KV between engines that mean well: of one fleet, of two, and of two versions."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from pdgate.transfer.base import (
    Descriptor,
    PeerLost,
    Range,
)
from pdgate.transfer.messenger import messages
from pdgate.transfer.runtime import channel as channels
from pdgate.transfer.runtime import handshake
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.handshake import Dialling
from pdgate.transfer.tcp import wire
from pdgate.transfer.tcp.backend import TcpBackend
from tests.support.engine_pair import D_BLOCKS, DIALECTS, Pair, arrival
from tests.support.fake_core import SECONDS, FakeCore
from tests.support.kv_strangers import (
    SECRET,
    U32,
    handed_over,
    member,
    no_secret,
    open_identity,
    pages,
    raw,
    rest,
    stranger,
)


def test_a_hello_of_another_version_is_refused_with_both_numbers(
    prefill: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = bytearray(Dialling(member(), messages.PURPOSE).hello)
    hello[4] = 2
    # What a later version may have more to say.
    hello += bytes(100)
    with raw(prefill.connector.kv_address) as sock:
        sock.sendall(hello)
        answer = sock.recv(handshake.VERDICT_BYTES, socket.MSG_WAITALL)
        assert answer[:4] == handshake.MAGIC
        assert answer[4:6] == bytes([1, handshake.HandshakeVerdict.OTHER_VERSION])


def test_a_listener_of_another_version_is_named_with_both_numbers() -> None:
    def later(sock: socket.socket) -> None:
        sock.settimeout(SECONDS)
        sock.recv(handshake.HELLO_BYTES, socket.MSG_WAITALL)
        sock.sendall(
            handshake.MAGIC + bytes([2, handshake.HandshakeVerdict.OTHER_VERSION]) + bytes(50)
        )
        rest(sock)

    with stranger(later) as port, closing(FakeCore("tcp", "vllm-kvt", "decode")) as decode:
        params = {"remote_host": "127.0.0.1", "remote_port": port, "do_remote_prefill": True}
        decode.load(arrival("d1", "k", params=params), D_BLOCKS)
        error = decode.result()

    assert error is not None
    assert error.startswith("unproven peer")
    assert "version 2" in error
    assert "version 1" in error


def test_a_prefill_engine_from_before_the_handshake_is_named() -> None:
    """It takes the HELLO for a message of a gigabyte and hangs up."""

    def earlier(sock: socket.socket) -> None:
        sock.settimeout(SECONDS)
        (length,) = U32.unpack(sock.recv(U32.size, socket.MSG_WAITALL))
        assert length > messages.MAX_BYTES

    with stranger(earlier) as port, closing(FakeCore("tcp", "vllm-kvt", "decode")) as decode:
        params = {"remote_host": "127.0.0.1", "remote_port": port, "do_remote_prefill": True}
        decode.load(arrival("d1", "k", params=params), D_BLOCKS)
        error = decode.result()

    assert error is not None
    assert "hung up at the KV handshake" in error
    assert "ours is version 1" in error


def test_a_memory_owner_from_before_the_handshake_is_named() -> None:
    def earlier(sock: socket.socket) -> None:
        sock.settimeout(SECONDS)
        assert sock.recv(4, socket.MSG_WAITALL) != wire.MAGIC
        channels._farewell(sock, wire.answer(wire.TcpStatus.BAD_REQUEST, checked=False))

    with stranger(earlier) as port, closing(TcpBackend()) as tcp:
        there = Descriptor("tcp", "00" * 16, 4096, {"host": "127.0.0.1", "port": port})
        with pytest.raises(PeerLost, match="knows no KV handshake, we speak version 1"):
            tcp.read(tcp.allocate(1), there, [Range(0, 0, 1)], SECONDS).wait(SECONDS)


@pytest.fixture(params=["tcp", "shm"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fleet_with_a_secret_hands_over_by_every_protocol(dialect: str, backend: str) -> None:
    with closing(Pair(dialect, backend, identity=member())) as pair:
        assert handed_over(pair) is None
        assert pair.d.holds(D_BLOCKS[:1], seed=1)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("theirs", [no_secret, open_identity])
def test_between_fleets_nothing_is_handed_over_and_nobody_waits(
    dialect: str, theirs: Callable[[], Identity]
) -> None:
    with ExitStack() as stack:
        pair = stack.enter_context(closing(Pair(dialect, "tcp", identity=member())))
        pair.d.connector.close()
        pair.d.backend.close()
        peer = f"127.0.0.1:{pair.p.settings.api_port}" if dialect.endswith("static") else ""
        pair.d = FakeCore("tcp", pair.protocol, "decode", peer=peer, identity=theirs())
        stack.callback(pair.d.close)
        # Joining is no proof: whoever may speak to both engines can say where the other is.
        pair.join(pair.d)
        started = time.monotonic()

        error = handed_over(pair)

        assert error is not None
        assert error.startswith("unproven peer")
        assert time.monotonic() - started < SECONDS
        assert not any(pages(pair.d))


def test_a_mover_process_proves_itself_as_its_engine_does() -> None:
    with closing(Pair("vllm-kvt batch", "tcp", identity=member(), mover="process")) as pair:
        assert handed_over(pair) is None
        command = Path(f"/proc/{pair.p.mover_pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pair.p.mover_pid}/environ").read_bytes()

    assert SECRET.encode() not in command + environment
