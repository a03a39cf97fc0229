"""The process that writes an engine's pages: python -m pdgate.transfer.messenger.mover_process

    argv    socket to the engine, KV memory, its length, the backend's name and options (JSON)

The first packet on the socket is who we are to peers (mover_wire.py). It maps the same memory as the engine, so an order is a few numbers and the engine's
interpreter has no part in the copy. It ends when the engine does, however that goes.
"""

import json
import os
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field

from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Backend, Descriptor, Region, Transfer, TransferError
from pdgate.transfer.messenger import mover_wire as wire
from pdgate.transfer.messenger.mover import when_settled


@dataclass(eq=False, slots=True)
class _Goal:
    """
    Attributes:
        line: The peer's connection.
    """

    remote: Descriptor
    line: int
    writes: set[Transfer] = field(default_factory=set)
    cancelled: bool = False


class MoverOrders:
    def __init__(self, sock: socket.socket, backend: Backend, local: Region) -> None:
        self._sock = sock
        self._backend = backend
        self._local = local
        self._lock = threading.Lock()
        self._open: dict[int, _Goal] = {}
        self._begun: dict[int, bytearray] = {}

    def serve(self) -> None:
        """Returns when the engine is gone."""
        while (received := wire.receive_order(self._sock)) is not None:
            order, line = received
            match order:
                case wire.Open(destination, descriptor):
                    # Without it, as we are out of descriptors, nothing may be written there: the
                    # peer could not see that we do.
                    if line is not None:
                        self._open[destination] = _Goal(descriptors.from_data(descriptor), line)
                case wire.More(number, ranges):
                    self._begun.setdefault(number, bytearray()).extend(ranges)
                case wire.MoverWrite():
                    self._write(order)
                case wire.MoverCancel(destination):
                    self._cancel(destination)
                case wire.Close(destination):
                    if (goal := self._open.pop(destination, None)) is not None:
                        os.close(goal.line)

    def _cancel(self, destination: int) -> None:
        goal = self._open.get(destination)
        # It was closed meanwhile, so it has ended.
        if goal is None:
            return
        goal.cancelled = True
        with self._lock:
            writes = list(goal.writes)
        for transfer in writes:
            transfer.cancel()

    def _write(self, order: wire.MoverWrite) -> None:
        goal = self._open.get(order.destination)
        ranges = wire.unpack(self._begun.pop(order.number, bytearray()) + order.ranges)
        left = max(0.0, order.until - time.monotonic())
        try:
            if goal is None:
                raise TransferError("our mover has no descriptor left for the peer's connection")
            if goal.cancelled:
                raise TransferError("it was cancelled before it began")
            transfer = self._backend.write(self._local, goal.remote, ranges, left, order.immediate)
        except (TransferError, ValueError) as error:
            self._say(order.number, error)
            return
        with self._lock:
            goal.writes.add(transfer)

        def ended() -> None:
            with self._lock:
                goal.writes.discard(transfer)
            self._say(order.number, transfer.error)

        when_settled(transfer, ended)

    def _say(self, number: int, error: Exception | None) -> None:
        said = wire.MoveEnded(number, "" if error is None else str(error) or repr(error))
        with self._lock:
            self._sock.send(wire.encode(said))


def main() -> None:
    sock, memory, length, name, options = sys.argv[1:]
    engine = socket.socket(fileno=int(sock))
    identity = wire.receive_introduction(engine).identity()
    backend = registry.load(name, identity=identity, **json.loads(options))
    local = backend.adopt(int(memory), int(length))
    os.close(int(memory))
    code = 0
    try:
        MoverOrders(engine, backend, local).serve()
    # Whatever it is, it must not keep us here; the engine sees that we are gone.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 1
    # At once, whatever the threads do: nothing may be written for an engine that is gone.
    os._exit(code)


if __name__ == "__main__":
    main()
