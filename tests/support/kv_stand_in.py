"""Answers for an owner that has frozen, so that a visitor gets as far as the library.

with Owned("nixl", length) as owner, stand_in(owner) as descriptor:
    transfer = backend.read(local, descriptor, ...)    # now the library waits for `owner`
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pdgate.transfer.base import Descriptor
from pdgate.transfer.external_mover import wire
from pdgate.transfer.runtime.channel import Channel
from tests.support import waiting
from tests.support.kv_owner import Owned
from tests.support.proven import channel, listening

SECONDS = waiting.PATIENCE_SECONDS


@contextmanager
def stand_in(owner: Owned) -> Iterator[Descriptor]:
    """Lets visitors in as the owner would have done; freezes it."""
    address = owner.descriptor.address
    purpose = owner.descriptor.backend
    with channel((address["host"], address["port"]), purpose) as sock:
        epoch = bytes.fromhex(owner.descriptor.epoch)
        wire.send_request(sock, wire.MoverRequest(wire.MoverWord.ENTER, epoch))
        inside = wire.receive_answer(sock)
    owner.freeze()

    def serve(visitor: Channel) -> None:
        while wire.receive_request(visitor, SECONDS):
            wire.send_answer(visitor, inside)

    with listening(purpose, serve) as port:
        yield replace(owner.descriptor, address={"host": "127.0.0.1", "port": port})
