"""KV ports under floods of those who prove nothing."""

import contextlib
import itertools
import resource
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from pdgate.transfer.messenger import messages
from pdgate.transfer.runtime import channel as channels
from pdgate.transfer.runtime import handshake
from pdgate.transfer.runtime.channel import dial
from pdgate.transfer.runtime.handshake import Dialling
from pdgate.transfer.runtime.strangers import MOST
from tests.support.fake_core import SECONDS, FakeCore
from tests.support.kv_strangers import member, raw, rest, select_readable


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "HANDSHAKE_SECONDS", 0.5)


def test_a_handshake_byte_by_byte_ends_at_its_deadline(impatient: None, prefill: FakeCore) -> None:
    hello = Dialling(member(), messages.PURPOSE).hello
    with raw(prefill.connector.kv_address) as sock:
        started, sent = time.monotonic(), 0
        with contextlib.suppress(OSError):
            for byte in itertools.cycle(hello[:20]):
                sock.sendall(bytes([byte]) if sent else hello[:1])
                sent += 1
                if select_readable(sock, 0.05):
                    break
        assert rest(sock) == b""
        # Far less than a timeout for each of the bytes would have given it.
        assert time.monotonic() - started < SECONDS


def test_a_thousand_half_open_connections_keep_nobody_out(prefill: FakeCore) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    threads = threading.active_count()
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        half = [stack.enter_context(raw(prefill.connector.kv_address)) for _ in range(1000)]
        for sock in half[::2]:
            with contextlib.suppress(OSError):
                sock.sendall(handshake.MAGIC)

        with dial(prefill.connector.kv_address, member(), messages.PURPOSE, SECONDS) as line:
            messages.send(line, messages.Ping())
            assert messages.receive(line) == messages.Pong()
            # Those that were there for longest were let go, before their deadline.
            half[0].settimeout(SECONDS)
            assert rest(half[0]) == b""
            settled = threading.Event()
            until = time.monotonic() + SECONDS
            while threading.active_count() - threads > MOST + 8 and time.monotonic() < until:
                settled.wait(0.05)
            assert threading.active_count() - threads <= MOST + 8


def test_a_flood_of_strangers_is_a_line_or_two_in_the_log(
    prefill: FakeCore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the flood takes here.
    monkeypatch.setattr(channels, "LOG_SECONDS", 600.0)
    for _ in range(200):
        with raw(prefill.connector.kv_address) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            sock.shutdown(socket.SHUT_WR)
            rest(sock)

    lines = [one for one in caplog.records if "not let in" in one.message]
    assert len(lines) < 5
