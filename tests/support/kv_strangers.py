"""Strangers at a KV port, and peers of a fleet that want more than is theirs."""

import contextlib
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import msgspec

from pdgate.transfer import descriptors
from pdgate.transfer.base import (
    Descriptor,
    Range,
)
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.runtime.channel import dial
from pdgate.transfer.runtime.fleet import Identity, Keyring
from pdgate.transfer.runtime.listener import Listener, shut
from pdgate.transfer.tcp.backend import TcpBackend
from tests.support.engine_pair import D_BLOCKS, P_BLOCKS, PROMPT, Pair
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore

SECRET = secrets.token_hex(32)
SHAPE = PageShape.of(LAYOUT, "tiny", order=LAYOUT.order)
ASK = messages.Ask("k", "", 0.0, SECONDS, SHAPE)
U32 = struct.Struct(">I")


def member(*held: str) -> Identity:
    """A process of its own in the fleet with this secret."""
    return Identity(Keyring(held or (SECRET,)), secrets.token_bytes(16))


def open_identity() -> Identity:
    return Identity(Keyring(), secrets.token_bytes(16))


def no_secret() -> Identity:
    return Identity(Keyring((secrets.token_hex(32),)), secrets.token_bytes(16))


def raw(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=SECONDS)


def rest(sock: socket.socket) -> bytes:
    """All that comes until the end; a reset is one, too."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 16):
            said += piece
    return said


def pages(core: FakeCore) -> bytes:
    return bytes(core.region.memory)


def as_before(sock: socket.socket, message: messages.Message) -> object:
    """What engines said to one another before they proved themselves: a length, and msgpack."""
    sock.sendall(messages.plain(message))
    head = sock.recv(U32.size, socket.MSG_WAITALL)
    if len(head) < U32.size:
        return None
    (length,) = U32.unpack(head)
    return msgspec.msgpack.decode(sock.recv(length, socket.MSG_WAITALL))


@contextlib.contextmanager
def stranger(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    sock = socket.create_server(("127.0.0.1", 0))
    with closing(Listener("stranger", sock, serve)):
        yield sock.getsockname()[1]


class Recorder:
    """A line in the middle, between peers that mean well."""

    def __init__(self, to: tuple[str, int]) -> None:
        self.there = b""
        self.back = b""
        self._to = to

    def __call__(self, sock: socket.socket) -> None:
        with socket.create_connection(self._to) as owner:

            def answers() -> None:
                with contextlib.suppress(OSError):
                    while data := owner.recv(1 << 16):
                        self.back += data
                        sock.sendall(data)
                shut(sock)

            thread = threading.Thread(target=answers)
            thread.start()
            with contextlib.suppress(OSError):
                while data := sock.recv(1 << 16):
                    self.there += data
                    owner.sendall(data)
            shut(owner)
            thread.join()


class Reader:
    """A decode engine that has asked for "k"."""

    def __init__(self, prefill: FakeCore, stack: ExitStack, identity: Identity) -> None:
        self.backend = stack.enter_context(closing(TcpBackend(identity=identity)))
        self.local = self.backend.allocate(LAYOUT.total_bytes)
        self.line = stack.enter_context(
            dial(prefill.connector.kv_address, identity, messages.PURPOSE, SECONDS)
        )
        self.line.sock.settimeout(SECONDS)

    def ask(self, key: str = "k") -> Descriptor:
        messages.send(self.line, messages.Ask(key, "", 0.0, SECONDS, SHAPE))
        offered = messages.receive(self.line)
        assert isinstance(offered, messages.Offered), offered
        self.offer_id = offered.offer_id
        return descriptors.from_data(offered.descriptors[0])

    def asks_well(self) -> bool:
        messages.send(self.line, ASK)
        return isinstance(messages.receive(self.line), messages.Offered)

    def read(self, there: Descriptor, *ranges: Range) -> None:
        self.backend.read(self.local, there, ranges, SECONDS).wait(SECONDS)

    def write(self, there: Descriptor, one: Range, immediate: int | None = None) -> None:
        self.backend.write(self.local, there, [one], SECONDS, immediate).wait(SECONDS)


def page(layer: int, block: int, bytes_before: int = 0, length: int = LAYOUT.page_bytes) -> Range:
    at = LAYOUT.page_offset(layer, block)
    return Range(at, at + bytes_before, length)


def ask_for(key: str) -> messages.Ask:
    return messages.Ask(key, "", SECONDS, SECONDS, SHAPE)


def push_into(key: str, address: dict[str, object] | None = None) -> messages.Push:
    where = address or {"host": "127.0.0.1", "port": 9}
    there = Descriptor("tcp", secrets.token_hex(16), LAYOUT.total_bytes, where)
    return messages.Push(
        key=key,
        engine_id="",
        wait=True,
        seconds=SECONDS,
        shape=SHAPE,
        descriptors=[descriptors.as_data(there)],
        block_ids=list(D_BLOCKS),
        start=0,
        tokens=len(PROMPT) - 1,
        immediate=7,
        tile_tokens=0,
        by_layer=False,
    )


class Canary:
    """A place that nobody has any business with.

    Attributes:
        heard: What came on each connection.
    """

    def __init__(self) -> None:
        self.heard: queue.Queue[bytes] = queue.Queue()

    def __call__(self, sock: socket.socket) -> None:
        # Whoever dials may be slow to say its first word, on a busy machine.
        sock.settimeout(SECONDS)
        said = b""
        with contextlib.suppress(TimeoutError):
            while piece := sock.recv(1 << 16):
                said += piece
                sock.settimeout(0.5)
        self.heard.put(said)


def handed_over(pair: Pair) -> str | None:
    """How the load of a whole prefill ends."""
    answer = None
    if pair.dialect != "vllm-kvt batch":
        answer = pair.p.prefill(pair.to_prefill(), P_BLOCKS)
    pair.d.load(pair.to_decode(answer), D_BLOCKS)
    return pair.d.result()


def select_readable(sock: socket.socket, seconds: float) -> bool:
    sock.settimeout(seconds)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except TimeoutError:
        return False
    finally:
        sock.settimeout(SECONDS)
