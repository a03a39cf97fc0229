"""Connections between engines: what holds for both ends of one."""

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from pdgate.transfer.runtime.channel import Channel, connected, dial
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.listener import shut
from tests.support import waiting
from tests.support.proven import listening

SECONDS = waiting.PATIENCE_SECONDS


def test_one_that_still_connects_can_be_stopped() -> None:
    """To a host that is gone, or as here to one that takes nobody any more."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waits = stack.enter_context(closing(socket.socket()))
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())
        connecting: queue.Queue[socket.socket] = queue.Queue()
        failed: queue.Queue[OSError] = queue.Queue()

        def connect() -> None:
            try:
                dial(full.getsockname(), Identity(), "test", 2 * SECONDS, watch=connecting.put)
            except OSError as error:
                failed.put(error)

        threading.Thread(target=connect, daemon=True).start()
        shut(connecting.get(timeout=SECONDS))

        assert not isinstance(failed.get(timeout=SECONDS), TimeoutError)


def test_the_next_of_a_hosts_addresses_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening("test", lambda channel: None) as port, socket.socket() as closed:
        # Bound, so that nobody else is there, and not listening.
        closed.bind(("127.0.0.1", 0))
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", at))
            for at in (closed.getsockname()[1], port)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

        dial(("127.0.0.1", 0), Identity(), "test", SECONDS).close()

        del found[1]
        with pytest.raises(ConnectionRefusedError):
            dial(("127.0.0.1", 0), Identity(), "test", SECONDS)


@pytest.fixture
def silent_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Names are not resolved before the test is over. Set when one is asked for."""
    asked, over = threading.Event(), threading.Event()

    def getaddrinfo(*_: object, **__: object) -> object:
        asked.set()
        assert over.wait(2 * SECONDS)
        raise socket.gaierror("no server answers")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield asked
    over.set()


def test_a_name_has_to_be_found_in_time(silent_resolver: threading.Event) -> None:
    with pytest.raises(TimeoutError, match=r"host\.example"):
        connected(("host.example", 1), time.monotonic() + 0.2)

    assert silent_resolver.is_set()


def test_a_name_that_is_looked_up_can_be_given_up(silent_resolver: threading.Event) -> None:
    def give_up(sock: socket.socket) -> None:
        assert silent_resolver.wait(SECONDS)
        threading.Thread(target=shut, args=(sock,)).start()

    with pytest.raises(ConnectionAbortedError, match=r"host\.example"):
        connected(("host.example", 1), time.monotonic() + 2 * SECONDS, give_up)


def test_a_name_that_is_none_is_an_error() -> None:
    for name in ("a..b", "a\0b", "x" * 64):
        with pytest.raises(OSError, match=r"is not a host|[Nn]ame"):
            connected((name, 1), time.monotonic() + SECONDS)


def test_a_name_is_found() -> None:
    with listening("test", lambda channel: None) as port:
        dial(("localhost", port), Identity(), "test", SECONDS).close()


@pytest.mark.parametrize("end", ["dials", "answers"])
def test_either_end_finds_out_that_the_others_host_is_gone(end: str) -> None:
    """It may wait for a word with nothing of its own on the way, and the kernel's own patience is two hours."""
    answering: queue.Queue[Channel] = queue.Queue()

    def serve(channel: Channel) -> None:
        answering.put(channel)
        channel.sock.recv(1)

    with (
        listening("test", serve) as port,
        closing(dial(("127.0.0.1", port), Identity(), "test", SECONDS)) as dialled,
    ):
        channel = dialled if end == "dials" else answering.get(timeout=SECONDS)
        wire = channel.wire

        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count = (
            wire.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        # Longer than Linux tries to send what may still land in pages: tcp_retries2.
        assert 16 * 60 < idle + interval * count <= 20 * 60
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
