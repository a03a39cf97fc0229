"""Messages between two engines: length (u32, big-endian), msgpack, MAC [16].

They have proven themselves before (runtime/handshake.py).

    decode says   prefill answers
    Ask           Offered | Refused      after up to wait_seconds; the pages are being read
                  Elsewhere              at once: other workers hold some of them (workers.py)
    Release       Released               and the pages are free
    Abandon       Released               no reader will come; a prefill under way is aborted
    Prefill       Accepted | Refused     compute this prompt, then offer it under the key
    Push          Writing | Refused      once the key is known; then prefill writes
                  Elsewhere              at once, as above
                  Failed                 at any time later: nothing lands any more
    Cancel        Stopped                when nothing lands any more
    Ping          Pong                   at once, also while a Push waits for its key

A connection carries any number of Ask, Release, Abandon and Prefill, one after the other,
or one Push, which ends when either side hangs up. Prefill hangs up, and lets no process of
its keep the connection open, only when nothing lands any more: so the end of a connection
is as good as Stopped, and it comes also when prefill is killed.
"""

import struct
from typing import Any, Final

import msgspec

from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.messenger.workers import MessengerWorker
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.handshake import MAC_BYTES
from pdgate.transfer.runtime.sockets import receive as exactly
from pdgate.transfer.runtime.sockets import receive_first

PURPOSE: Final = "messenger"
MAX_BYTES: Final = 32 << 20
"""A prompt of a million tokens takes 5 MB."""

_LENGTH = struct.Struct(">I")
_PIECE_BYTES: Final = 1 << 18


class Ask(msgspec.Struct, frozen=True, tag=True):
    """
    Attributes:
        engine_id: Of the engine that is meant; empty for any at the address.
        read_seconds: How long the reader may take. Then, or when it hangs up, the pages go.
        ranks: Of decode, whose share is asked for; empty for all.
        only_here: Other workers of prefill are asked by other conversations.
    """

    key: str
    engine_id: str
    wait_seconds: float
    read_seconds: float
    shape: PageShape
    ranks: tuple[int, ...] = ()
    only_here: bool = False


class Release(msgspec.Struct, frozen=True, tag=True):
    """`bytes_read`: for prefill's counters."""

    key: str
    offer_id: str
    bytes_read: int = 0


class Abandon(msgspec.Struct, frozen=True, tag=True):
    key: str
    engine_id: str


class Lent(msgspec.Struct, frozen=True):
    """The first `tokens` of a prompt are in our pages; who computes the rest may read them.

    They are offered under `key` at the KV service of `host` and `port`, for as long as the
    prompt is being computed for us; a reading that ends later is void, as is any other's.
    """

    host: str
    port: int
    engine_id: str
    key: str
    tokens: int


class Prefill(msgspec.Struct, frozen=True, tag=True):
    """
    Attributes:
        lent: What of the prompt need not be computed.
        readers: Names of processes that may have it, besides the one that says this.
    """

    key: str
    prompt: list[int]
    lent: Lent | None = None
    readers: tuple[str, ...] = ()


class ContextRoom(msgspec.Struct, frozen=True):
    """Where a context may land (context.py), and how large one may be.

    Attributes:
        needed: Without one the push is refused; else a prefill that has none for this room goes without.
    """

    descriptor: dict[str, Any]
    offset: int
    max_bytes: int
    needed: bool = True


class Push(msgspec.Struct, frozen=True, tag=True):
    """
    Attributes:
        wait: Whether the key may still be unknown; D says when it has waited enough.
        seconds: From now on; nothing may be written later.
        descriptors: Of the regions that the pages are in, one for each of `ranks`.
        block_ids: Where the prompt goes, from its first token on.
        start: How many leading tokens D has already; in their blocks nothing is written.
        tokens: How many leading tokens of the prompt are needed.
        immediate: Counted once per tile (tiles.py) and pair of ranks that share some of it;
            once for the context too, where it lands.
        tile_tokens: Size of a tile, rounded up to the larger block; 0 for all in one.
        by_layer: Layers go as they are computed; else all of a tile's together.
        context: If one is wanted.
        ranks, only_here: As in Ask.
    """

    key: str
    engine_id: str
    wait: bool
    seconds: float
    shape: PageShape
    descriptors: list[dict[str, Any]]
    block_ids: list[int]
    start: int
    tokens: int
    immediate: int
    tile_tokens: int
    by_layer: bool
    context: ContextRoom | None = None
    ranks: tuple[int, ...] = ()
    only_here: bool = False


class Cancel(msgspec.Struct, frozen=True, tag=True):
    pass


class Ping(msgspec.Struct, frozen=True, tag=True):
    pass


class Offered(msgspec.Struct, frozen=True, tag=True):
    """
    Attributes:
        offer_id: Random, new for every offer: the same key may be offered again.
        descriptors: Of the regions that hold the pages, one for each of `ranks`
            (transfer/descriptors.py).
        first_token: What prefill sampled, if it did.
        context: What else decode may need (context.py).
        ranks: Of prefill, which the descriptors are of; empty for all.
    """

    offer_id: str
    descriptors: list[dict[str, Any]]
    shape: PageShape
    block_ids: list[int]
    tokens: int
    first_token: int | None
    context: bytes = b""
    ranks: tuple[int, ...] = ()


class Elsewhere(msgspec.Struct, frozen=True, tag=True):
    """Each of these has to be asked for what it holds, in words that say `only_here`."""

    engine_id: str
    shape: PageShape
    workers: tuple[MessengerWorker, ...]


class Released(msgspec.Struct, frozen=True, tag=True):
    """`held`: the pages were still this offer's until now, so what was read is good."""

    held: bool


class Accepted(msgspec.Struct, frozen=True, tag=True):
    pass


class Writing(msgspec.Struct, frozen=True, tag=True):
    """`shape`: prefill's, from which follows how many writes the push takes.

    `context`: one comes, if it was wanted.
    """

    shape: PageShape
    context: bool = True


class Failed(msgspec.Struct, frozen=True, tag=True):
    why: str
    message: str


class Stopped(msgspec.Struct, frozen=True, tag=True):
    pass


class Pong(msgspec.Struct, frozen=True, tag=True):
    pass


class RefusedMessage(msgspec.Struct, frozen=True, tag="Refused"):
    why: str
    message: str


Message = (
    Ask
    | Release
    | Abandon
    | Prefill
    | Push
    | Cancel
    | Ping
    | Offered
    | Elsewhere
    | Released
    | Accepted
    | Writing
    | Failed
    | Stopped
    | Pong
    | RefusedMessage
)

_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(Message)


class BadMessage(Exception):
    """The peer sent something else."""


def frame(channel: Channel, message: Message) -> bytes:
    """To be sent next."""
    return channel.sealed(plain(message))


def plain(message: Message) -> bytes:
    """Without a MAC, as engines spoke before they proved themselves."""
    data = _encode(message)
    return _LENGTH.pack(len(data)) + data


def send(channel: Channel, message: Message) -> None:
    channel.sock.sendall(frame(channel, message))


def receive(channel: Channel, until: float | None = None) -> Message | None:
    """None when the peer hung up between messages. `until`, of time.monotonic(), is for all of it, however it
    is spread. Raises BadMessage, OSError.
    """
    sock = channel.sock
    head = receive_first(sock, _LENGTH.size, until)
    if not head:
        return None
    data = exactly(sock, _length(head), until)
    return _opened(channel, head + data, exactly(sock, MAC_BYTES, until))


class MessagePieces:
    """Messages from a socket that is not waited for, each of which may come in pieces."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._come = bytearray()

    @property
    def begun(self) -> bool:
        """Some of a message has come, and not all."""
        return bool(self._come)

    def take(self) -> Message | None:
        """None if the next is not whole yet. Raises EOFError when the peer hung up between messages, BadMessage, OSError."""
        sock = self._channel.sock
        sock.setblocking(False)
        while missing := self._missing():
            try:
                piece = sock.recv(min(missing, _PIECE_BYTES))
            except BlockingIOError:
                return None
            if not piece and not self._come:
                raise EOFError
            if not piece:
                raise ConnectionResetError("the peer hung up in the middle")
            self._come += piece
        whole, self._come = bytes(self._come), bytearray()
        return _opened(self._channel, whole[:-MAC_BYTES], whole[-MAC_BYTES:])

    def _missing(self) -> int:
        come = len(self._come)
        if come < _LENGTH.size:
            return _LENGTH.size - come
        return _LENGTH.size + _length(self._come) + MAC_BYTES - come


def _length(head: bytes | bytearray) -> int:
    """Of what follows it. Raises BadMessage."""
    (length,) = _LENGTH.unpack_from(head)
    if length > MAX_BYTES:
        raise BadMessage(f"a message of {length} bytes")
    return int(length)


def _opened(channel: Channel, framed: bytes, mac: bytes) -> Message:
    """Raises BadMessage, Unproven."""
    channel.check(framed, mac)
    try:
        # The Union keeps mypy from seeing what the decoder returns.
        message: Message = _decoder.decode(memoryview(framed)[_LENGTH.size :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from None
    return message
