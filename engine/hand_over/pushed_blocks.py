"""Blocks that prefill engines push to a decode engine before any request there asks for them.

    prefill                                            decode
      | length u32 | name, pages | MAC    each block --> |
      | length 0                                     --> |  all of them are there
      | <-- "ok"; what is of another shape ends it       |

Over a connection whose ends have proven themselves (runtime/channel.py). Decode keeps MOST_BYTES, the newest: what is pushed
again, or loaded, is new. A block is known by its name when all of it has come.
"""

import logging
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import Channel, Door, dial
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.handshake import MAC_BYTES
from pdgate.transfer.runtime.listener import Listener

PURPOSE: Final = "pushed"
MOST_BYTES: Final = 256 << 20
NAME_BYTES: Final = 64
SILENT_SECONDS: Final = 10.0
_LENGTH: Final = struct.Struct("<I")
_OK: Final = b"ok"

log = logging.getLogger(__name__)


class PushedBlocks:
    """What came, on decode."""

    def __init__(
        self,
        host: str,
        port: int,
        identity: Identity,
        block_bytes: int,
    ) -> None:
        """Listens from now on. Raises OSError for a taken port, ValueError if listening there takes a secret."""
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._pages: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        sock = fleet.listening("the PD backend", host, port, identity)
        self.port: int = sock.getsockname()[1]
        door = Door("pushed", identity, {PURPOSE: self._serve})
        self._listener = Listener("pdgate-pushed", sock, door)

    def find(self, name: str) -> bytes | None:
        with self._lock:
            found = self._pages.get(name)
            if found is not None:
                self._pages.move_to_end(name)
            return found

    def close(self) -> None:
        self._listener.close()

    def _serve(self, channel: Channel) -> None:
        """Raises OSError."""
        channel.sock.settimeout(SILENT_SECONDS)
        most = NAME_BYTES + self._block_bytes
        while True:
            (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
            if length not in (0, most):
                log.warning("a block of %d bytes is pushed, and ours have %d", length, most)
                return
            data = _exactly(channel, length)
            channel.check(data, _exactly(channel, MAC_BYTES))
            if not length:
                channel.sock.sendall(_OK)
                return
            self._put(data[:NAME_BYTES].decode("ascii", "replace"), data[NAME_BYTES:])

    def _put(self, name: str, pages: bytes) -> None:
        with self._lock:
            self._bytes += len(pages) - len(self._pages.pop(name, b""))
            self._pages[name] = pages
            while self._bytes > MOST_BYTES:
                self._bytes -= len(self._pages.popitem(last=False)[1])


def push(at: tuple[str, int], identity: Identity, blocks: Iterable[tuple[str, bytes]]) -> int:
    """Returns the bytes of pages, when decode has them all. Raises OSError."""
    moved = 0
    with dial(at, identity, PURPOSE, SILENT_SECONDS) as channel:
        channel.sock.settimeout(SILENT_SECONDS)
        for name, pages in blocks:
            data = name.encode() + pages
            channel.sock.sendall(_LENGTH.pack(len(data)) + channel.sealed(data))
            moved += len(pages)
        channel.sock.sendall(_LENGTH.pack(0) + channel.sealed(b""))
        if channel.sock.recv(len(_OK)) != _OK:
            raise ConnectionResetError("decode hung up before it had all blocks")
    return moved


def _exactly(channel: Channel, length: int) -> bytes:
    """Raises OSError."""
    data = bytearray()
    while len(data) < length:
        piece = channel.sock.recv(min(length - len(data), 1 << 20))
        if not piece:
            raise ConnectionResetError("the peer hung up while it pushed")
        data += piece
    return bytes(data)
