"""Connections between engines: what holds for both ends of one."""

import queue
import socket
from contextlib import closing

import pytest

from pdgate.transfer.runtime.channel import Channel, dial
from pdgate.transfer.runtime.fleet import Identity
from tests.support import waiting
from tests.support.proven import listening

SECONDS = waiting.PATIENCE_SECONDS


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
