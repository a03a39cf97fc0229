"""Answers for an owner that has frozen, so that a visitor gets as far as the library.

with Owned("nixl", length) as owner, stand_in(owner) as descriptor:
    transfer = backend.read(local, descriptor, ...)    # now the library waits for `owner`
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pdgate.transfer.base import Descriptor
from pdgate.transfer.kit.listener import Listener
from pdgate.transfer.visiting import wire
from tests.support.kv_owner import Owned

SECONDS = 10.0


@contextmanager
def stand_in(owner: Owned) -> Iterator[Descriptor]:
    """Lets visitors in as the owner would have done; freezes it."""
    address = owner.descriptor.address
    with socket.create_connection((address["host"], address["port"]), SECONDS) as sock:
        epoch = bytes.fromhex(owner.descriptor.epoch)
        wire.send_request(sock, wire.Request(wire.Word.ENTER, epoch))
        inside = wire.receive_answer(sock)
    owner.freeze()

    def serve(visitor: socket.socket) -> None:
        while wire.receive_request(visitor, SECONDS):
            wire.send_answer(visitor, inside)

    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener("stand-in", listening, serve)
    try:
        here = {"host": "127.0.0.1", "port": listening.getsockname()[1]}
        yield replace(owner.descriptor, address=here)
    finally:
        listener.close()
