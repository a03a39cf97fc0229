"""KV transfer by Mooncake's transfer engine, over TCP or RDMA; visiting/ keeps its rules.

It is the engine that vLLM's and SGLang's Mooncake connectors use, so it runs on the same
networks. The two ends find each other by P2PHANDSHAKE, or by a metadata server.

It listens on every interface, whatever host it is given: random ports for handshakes and
for data. A peer that reaches them can read and write registered memory. Keep them inside the
cluster; on a shared machine, give the process a network namespace.

What we do not leave to it (observed with mooncake-transfer-engine 0.3.13.post1, tcp):

    local memory     is read and written even if it was never registered
    its own queue    overflows at about 2,000 pieces a peer, and the call fails
    a failed call    returns at the first piece that failed; the others still move for as
                     long as they need. Only an engine that is destroyed moves nothing
    a hung peer      holds a call until the peer ends; nothing cancels it

Memory of a GPU goes by its address, by RDMA alone: the card reads it itself (GPUDirect). By TCP the
library would have to be one that was built for CUDA, which it does not tell. Not run on a GPU yet.

So one engine serves peers and another moves what we ask for, and that one is replaced
after a failure. Destroying it takes a second in which no Python code runs.
"""

import dataclasses
import logging
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from pdgate.transfer.base import PeerLost, TransferError
from pdgate.transfer.external_mover.backend import Visiting
from pdgate.transfer.external_mover.library import Library, Move
from pdgate.transfer.memory import CUDA, HOST
from pdgate.transfer.mooncake.engine import HANDSHAKE, Make, MooncakeEngine, MooncakeSettings, maker
from pdgate.transfer.runtime.fleet import Identity

PIECES_PER_CALL = 512
MAX_PIECES_PER_PEER = 1024
"""Under way at once, of its queue of about 2,000."""
LOOK_SECONDS = 0.1

log = logging.getLogger(__name__)


class MooncakeBackend(Visiting):
    name: ClassVar = "mooncake"
    moves: ClassVar = frozenset({HOST, CUDA})

    def __init__(
        self,
        host: str = "127.0.0.1",
        advertise: str = "",
        *,
        port: int = 0,
        protocol: str = "tcp",
        metadata_server: str = HANDSHAKE,
        device_name: str = "",
        identity: Identity | None = None,
    ) -> None:
        """`protocol` and what comes after it are Mooncake's own, see engine.Settings.

        Raises LookupError (not installed), ValueError, OSError.
        """
        self._settings = MooncakeSettings(protocol, metadata_server, device_name)
        super().__init__(host, advertise, port=port, identity=identity)

    def adopter_options(self) -> Mapping[str, Any]:
        return {**super().adopter_options(), **dataclasses.asdict(self._settings)}

    def open_library(self, host: str, advertise: str) -> Library:
        engines = MooncakeEngines(
            maker(advertise, self._settings), reaches_devices=self._settings.protocol == "rdma"
        )
        log.warning("mooncake listens on every interface, not only on %s", host)
        return engines


class MooncakeEngines(Library):
    def __init__(self, make: Make, *, reaches_devices: bool = False) -> None:
        self._make = make
        self._reaches_devices = reaches_devices
        self._server = make()
        self._lock = threading.Condition()
        self._registered: dict[int, int] = {}
        self._mover: MooncakeMover | None = None
        self._queued: dict[bytes, int] = {}

    def card(self) -> bytes:
        return self._server.segment

    def register_on(self, place: str, address: int, length: int) -> None:
        if not self._reaches_devices:
            raise TransferError(
                f"mooncake reaches memory of {place} by rdma alone: take protocol rdma, or the "
                "transfer tcp, which stages it"
            )
        self.register(address, length)

    def register(self, address: int, length: int) -> None:
        with self._lock:
            self._server.register(address, length)
            self._registered[address] = length
            if self._mover is not None:
                self._mover.engine.register(address, length)

    def unregister(self, address: int, length: int) -> None:
        with self._lock:
            del self._registered[address]
            self._server.unregister(address)
            if self._mover is not None:
                self._mover.engine.unregister(address)

    def move(self, move: Move) -> None:
        for start in range(0, len(move.pieces), PIECES_PER_CALL):
            self._call(move, start)

    def landed(self, notice: bytes) -> bool:
        """The peer's call succeeded only when our side had acknowledged every piece."""
        return True

    def close(self) -> None:
        with self._lock:
            mover, self._mover = self._mover, None
        if mover is not None:
            mover.engine.destroy()
        self._server.destroy()

    def _call(self, move: Move, start: int) -> None:
        pieces = move.pieces[start : start + PIECES_PER_CALL]
        mover = self._enter(move, len(pieces))
        code = -1
        try:
            code = mover.engine.move(move.op, move.card, pieces)
        finally:
            self._leave(mover, move.card, len(pieces), failed=code != 0)
        if code:
            raise TransferError(f"mooncake's {move.op} failed: {code}")

    def _enter(self, move: Move, pieces: int) -> "MooncakeMover":
        """The mover, when the peer's queue has room for so many more."""
        with self._lock:
            while self._queued.get(move.card, 0) + pieces > MAX_PIECES_PER_PEER:
                self._lock.wait(LOOK_SECONDS)
                if move.stranded():
                    raise PeerLost("nobody is there any more, or we are closing")
            if self._mover is None:
                self._mover = self._another()
            self._mover.calls += 1
            self._queued[move.card] = self._queued.get(move.card, 0) + pieces
            return self._mover

    def _another(self) -> "MooncakeMover":
        try:
            mover = MooncakeMover(self._make())
        except OSError as error:
            raise TransferError(str(error)) from None
        for address, length in self._registered.items():
            mover.engine.register(address, length)
        return mover

    def _leave(self, mover: "MooncakeMover", card: bytes, pieces: int, *, failed: bool) -> None:
        """After a failure it returns when no byte moves any more."""
        with self._lock:
            self._queued[card] -= pieces
            if not self._queued[card]:
                del self._queued[card]
            if failed:
                mover.broken = True
                if self._mover is mover:
                    self._mover = None
            mover.calls -= 1
            last = mover.broken and not mover.calls
            self._lock.notify_all()
        if last:
            log.warning("mooncake failed; its engine is replaced")
            mover.engine.destroy()
            mover.gone.set()
        if failed:
            mover.gone.wait()


class MooncakeMover:
    """An engine that moves bytes for us, until a call of it failed."""

    def __init__(self, engine: MooncakeEngine) -> None:
        self.engine = engine
        self.calls = 0
        self.broken = False
        self.gone = threading.Event()
