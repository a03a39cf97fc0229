"""KV under TLS: encrypted, of both ends certified, and otherwise as without."""

import secrets
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pdgate.transfer.base import PeerLost, Range, TransferError
from pdgate.transfer.messenger import messages
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import dial
from pdgate.transfer.runtime.fleet import Identity, Keyring
from pdgate.transfer.runtime.tls import Tls
from pdgate.transfer.tcp.backend import TcpBackend
from tests.support.certificates import Authority
from tests.support.engine_pair import D_BLOCKS, Pair
from tests.support.fake_core import SECONDS, FakeCore
from tests.support.kv_strangers import SECRET, Recorder, handed_over, member, stranger


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("fleet"), "fleet")


@pytest.fixture(scope="module")
def certified(authority: Authority) -> Callable[[], Identity]:
    """An engine of the fleet, with a certificate."""
    signed = authority.signs("engine")
    tls = Tls(signed.cert, signed.key, authority.cert)
    return lambda: Identity(Keyring((SECRET,)), secrets.token_bytes(16), tls)


@pytest.mark.parametrize("dialect", ["vllm-nixl", "vllm-kvt batch", "vllm-mooncake d", "sglang"])
@pytest.mark.parametrize("mover", ["threads", "process"])
def test_kv_is_handed_over_as_without(
    dialect: str, mover: str, certified: Callable[[], Identity]
) -> None:
    with closing(Pair(dialect, "tcp", identity=certified(), mover=mover)) as pair:
        assert handed_over(pair) is None
        assert pair.d.holds(D_BLOCKS[:1], seed=1)


def test_pages_of_any_size_arrive_both_ways(certified: Callable[[], Identity]) -> None:
    """More than the buffers on the way hold, in both directions at once."""
    length = 24 << 20
    with (
        closing(TcpBackend(identity=certified())) as ours,
        closing(TcpBackend(identity=certified(), crc=True)) as theirs,
    ):
        remote, local, back = (
            theirs.allocate(2 * length),
            ours.allocate(length),
            ours.allocate(length),
        )
        local.memory[:] = secrets.token_bytes(1 << 10) * (length >> 10)
        remote.memory[length:] = secrets.token_bytes(1 << 10) * (length >> 10)
        there = remote.descriptor
        write = ours.write(local, there, [Range(0, 0, length)], SECONDS, 7)
        read = ours.read(back, there, [Range(0, length, length)], SECONDS)
        write.wait(SECONDS)
        read.wait(SECONDS)

        theirs.expect(remote, 7, 1, SECONDS).wait(SECONDS)
        assert remote.memory[:length] == local.memory
        assert remote.memory[length:] == back.memory


def test_who_listens_between_reads_nothing(certified: Callable[[], Identity]) -> None:
    with closing(FakeCore("tcp", "vllm-kvt", "prefill", identity=certified())) as core:
        recorder = Recorder(core.connector.kv_address)
        with (
            stranger(recorder) as port,
            dial(("127.0.0.1", port), certified(), messages.PURPOSE, SECONDS) as line,
        ):
            messages.send(line, messages.Abandon("a-key-that-is-secret", ""))
            assert messages.receive(line) == messages.Released(held=False)
        assert b"a-key-that-is-secret" not in recorder.there
        assert b"PDHS" not in recorder.there + recorder.back


def test_a_certificate_of_another_authority_is_none(
    certified: Callable[[], Identity], tmp_path: Path
) -> None:
    """Even with the fleet's secret; in either place."""
    other = Authority(tmp_path, "other")
    signed = other.signs("engine")
    wrong = Identity(
        Keyring((SECRET,)), secrets.token_bytes(16), Tls(signed.cert, signed.key, other.cert)
    )
    for listens, dials in ((certified(), wrong), (wrong, certified())):
        with (
            closing(FakeCore("tcp", "vllm-kvt", "prefill", identity=listens)) as core,
            pytest.raises(OSError, match=r"certificate|hung up|reset|alert"),
        ):
            dial(core.connector.kv_address, dials, messages.PURPOSE, SECONDS).close()


def test_who_has_the_secret_and_no_certificate_is_not_let_in(
    certified: Callable[[], Identity],
) -> None:
    with (
        closing(FakeCore("tcp", "vllm-kvt", "prefill", identity=certified())) as core,
        pytest.raises(OSError),  # noqa: PT011 (as the kernel or the peer's TLS says it)
    ):
        dial(core.connector.kv_address, member(), messages.PURPOSE, SECONDS)


def test_a_peer_that_ends_is_noticed_and_no_thread_stays(certified: Callable[[], Identity]) -> None:
    ours = TcpBackend(identity=certified())
    theirs = TcpBackend(identity=certified())
    remote, local = theirs.allocate(4096), ours.allocate(4096)
    ours.read(local, remote.descriptor, [Range(0, 0, 4096)], SECONDS).wait(SECONDS)
    theirs.close()
    with pytest.raises((PeerLost, TransferError)):
        ours.read(local, remote.descriptor, [Range(0, 0, 1)], SECONDS).wait(SECONDS)
    ours.close()

    for thread in threading.enumerate():
        if thread.name == "pdgate-tls":
            thread.join(SECONDS)
            assert not thread.is_alive()


def test_tls_takes_three_files_and_a_secret(authority: Authority, tmp_path: Path) -> None:
    signed = authority.signs("other-engine")
    whole = Tls(signed.cert, signed.key, authority.cert)
    with pytest.raises(ValueError, match="comes beside a KV secret"):
        fleet.configured("", whole)
    with pytest.raises(ValueError, match="the list of authorities is missing"):
        fleet.configured("", Tls(signed.cert, signed.key))
    with pytest.raises(ValueError, match="cannot read a file"):
        fleet.configured("", Tls(signed.cert, str(tmp_path / "none"), authority.cert))
