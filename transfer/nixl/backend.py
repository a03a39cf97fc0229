"""KV transfer by NIXL over UCX: RDMA, shared memory or TCP; visiting/ keeps its rules.

It is what vLLM's NixlConnector uses. UCX chooses the transport for each pair; set its own
variables (UCX_TLS, UCX_NET_DEVICES) to choose for it. On a loopback host it has to
listen there only.

What we do not leave to it (observed with nixl-cu12 1.5.1): a peer that deregistered its
memory is read and written all the same, releasing a transfer under way is no cancel, and
what a peer knows of us is a snapshot. A counted write carries a notice, which NIXL
delivers after the data, so the owner counts what it has seen and not what it was told.

Memory of a GPU is described as VRAM. What the plugin cannot move is refused when it is registered.
Not run on a GPU yet.
"""

import contextlib
import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

from pdgate.transfer.base import Op, PeerLost, TransferError
from pdgate.transfer.descriptors import new_epoch
from pdgate.transfer.external_mover.backend import Visiting
from pdgate.transfer.external_mover.library import Library, Move
from pdgate.transfer.memory import CUDA, HOST
from pdgate.transfer.nixl import library as nixl_library
from pdgate.transfer.runtime.fleet import Identity

FIRST_LOOK_SECONDS = 50e-6
LONGEST_LOOK_SECONDS = 1e-3
NOTICE_SECONDS = 5.0
MAX_UNCLAIMED_NOTICES = 4096
UCX = "UCX"


class NixlBackend(Visiting):
    name: ClassVar = "nixl"
    moves: ClassVar = frozenset({HOST, CUDA})

    def __init__(
        self,
        host: str = "127.0.0.1",
        advertise: str = "",
        *,
        port: int = 0,
        plugin: str = UCX,
        devices: str = "",
        progress_microseconds: int = nixl_library.PROGRESS_MICROSECONDS,
        identity: Identity | None = None,
    ) -> None:
        """`plugin`: NIXL's, it moves the bytes: UCX, LIBFABRIC (for EFA). `devices`: network cards
        that UCX may use, as in UCX_NET_DEVICES; empty: what suits each pair. `progress_microseconds`: between two looks of its
        progress thread; 0 takes a core for it.

        Raises LookupError (not installed), ValueError, OSError.
        """
        if progress_microseconds < 0:
            raise ValueError(f"nixl cannot look every {progress_microseconds} µs")
        if devices and plugin != UCX:
            raise ValueError(f"nixl tells {plugin} no devices: they are for UCX")
        self._plugin, self._devices = plugin, devices
        self._progress_microseconds = progress_microseconds
        super().__init__(host, advertise, port=port, identity=identity)

    def adopter_options(self) -> Mapping[str, Any]:
        return {
            **super().adopter_options(),
            "plugin": self._plugin,
            "devices": self._devices,
            "progress_microseconds": self._progress_microseconds,
        }

    def open_library(self, host: str, advertise: str) -> Library:
        devices = self._devices
        if not devices and self._plugin == UCX and _is_loopback(host):
            devices = "lo"
        ucx = f"NET_DEVICES={devices}" if devices else ""
        return Agent(ucx, self._plugin, self._progress_microseconds)


def memory_type(place: str) -> tuple[str, int]:
    """NIXL's name for memory there, and the device's number."""
    number = place.partition(":")[2]
    return ("DRAM", 0) if place == HOST else ("VRAM", int(number))


class Agent(Library):
    def __init__(
        self,
        ucx: str = "",
        plugin: str = UCX,
        progress_microseconds: int = nixl_library.PROGRESS_MICROSECONDS,
    ) -> None:
        """`ucx`: settings for UCX, as NIXL's `engine_config` takes them.

        Raises LookupError, OSError.
        """
        api = nixl_library.load()
        self._errors = nixl_library.errors(api)
        # A new name for each life, so that peers never take us for the one before.
        settings = {"engine_config": ucx} if ucx else {}
        self._agent = nixl_library.agent(api, new_epoch(), plugin, settings, progress_microseconds)
        self._lock = threading.Lock()
        self._registered: dict[int, Any] = {}
        self._card: bytes = self._agent.get_agent_metadata()
        self._met: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._notices: OrderedDict[bytes, None] = OrderedDict()

    def card(self) -> bytes:
        """Metadata of all that is registered now."""
        return self._card

    def register(self, address: int, length: int) -> None:
        self.register_on(HOST, address, length)

    def register_on(self, place: str, address: int, length: int) -> None:
        kind, number = memory_type(place)
        with self._lock, self._translated(f"registering memory of {place}"):
            memory = [(address, length, number, "")]
            self._registered[address] = self._agent.register_memory(memory, kind)
            self._card = self._agent.get_agent_metadata()

    def unregister(self, address: int, length: int) -> None:
        with self._lock, self._translated("deregistering memory"):
            self._agent.deregister_memory(self._registered.pop(address))
            self._card = self._agent.get_agent_metadata()

    def move(self, move: Move) -> None:
        peer = self._meet(move.card)
        try:
            with self._translated(str(move.op)):
                self._transfer(move, peer)
        except TransferError:
            # Disconnected, so that nothing of it moves any more; met anew the next time.
            self._forget(move.card)
            raise

    def landed(self, notice: bytes) -> bool:
        until = time.monotonic() + NOTICE_SECONDS
        look_seconds = FIRST_LOOK_SECONDS
        while not self._claim(notice):
            if time.monotonic() > until:
                return False
            time.sleep(look_seconds)
            look_seconds = min(2 * look_seconds, LONGEST_LOOK_SECONDS)
        return True

    def left(self, card: bytes) -> None:
        self._forget(card)

    def close(self) -> None:
        """Its destructor disconnects, and joins the progress thread."""
        with self._lock:
            nixl_library.destroy(self._agent)

    def _transfer(self, move: Move, peer: str) -> None:
        agent, notice = self._agent, move.notice or b""
        if not move.pieces:
            if move.notice:
                agent.send_notif(peer, notice)
            return
        ours, theirs = memory_type(move.ours), memory_type(move.theirs)
        local = agent.get_xfer_descs(
            [(one.local, one.length, ours[1]) for one in move.pieces], ours[0]
        )
        remote = agent.get_xfer_descs(
            [(one.remote, one.length, theirs[1]) for one in move.pieces], theirs[0]
        )
        op = "READ" if move.op is Op.READ else "WRITE"
        handle = agent.initialize_xfer(op, local, remote, peer, notice)
        try:
            state = agent.transfer(handle)
            look_seconds = FIRST_LOOK_SECONDS
            while state == "PROC":
                if move.stranded():
                    raise PeerLost("nobody is there any more, or we are closing")
                time.sleep(look_seconds)
                look_seconds = min(2 * look_seconds, LONGEST_LOOK_SECONDS)
                state = agent.check_xfer_state(handle)
        finally:
            # One that cannot be cancelled now goes when the peer is forgotten. A handle in the
            # frames of an error would keep the agent alive beyond its end.
            with contextlib.suppress(*self._errors):
                agent.release_xfer_handle(handle)
            del handle
        if state != "DONE":
            raise TransferError(f"nixl's {move.op} failed: {state}")

    def _meet(self, card: bytes) -> str:
        """NIXL's name of the peer; what we know of it is brought up to date."""
        with self._lock:
            name: str | None = self._names.get(card)
            if name is None:
                with self._translated("meeting the peer"):
                    name = self._agent.add_remote_agent(card).decode()
                self._names.pop(self._met.get(name, b""), None)
                self._met[name], self._names[card] = card, name
            return name

    def _forget(self, card: bytes) -> None:
        with self._lock:
            name = self._names.pop(card, None)
            if name is not None:
                del self._met[name]
                # It may have gone by itself, and that is what is wanted.
                with contextlib.suppress(*self._errors):
                    self._agent.remove_remote_agent(name)

    def _claim(self, notice: bytes) -> bool:
        with self._lock, self._translated("looking for notices"):
            for notices in self._agent.get_new_notifs().values():
                self._notices.update(dict.fromkeys(notices))
            found = notice in self._notices
            self._notices.pop(notice, None)
            # Those of writers that left before they asked us to count.
            while len(self._notices) > MAX_UNCLAIMED_NOTICES:
                self._notices.popitem(last=False)
            return found

    def _translated(self, what: str) -> nixl_library.Translated:
        return nixl_library.Translated(what, self._errors)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
