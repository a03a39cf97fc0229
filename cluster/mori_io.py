"""A directory made of MoRI-IO's heartbeats: each engine says every three seconds that it is there, and where.

    MoriIoDirectory(listen="10.0.0.9:36367", allow="10.0.0.0/24")

    ROUTER   msgpack {type: "P"|"D", http_address, zmq_address: "host:IP,handshake:PORT,notify:PORT", dp_size, tp_size,
             transfer_mode: "READ"|"WRITE"}

One that is silent for FORGET_SECONDS is gone. Connections are let in by network, messages have MOST_BYTES (zmtp/ has the other bounds),
and what is no heartbeat is refused with its reason. Engines of the two modes do not understand each other, so the mode is
their generation. One socket: a gateway with this directory has one worker.

Source: vLLM 0.32.0, .../kv_connector/v1/moriio/moriio_heartbeat.py, moriio_connector.py (_start_heartbeat), moriio_common.py
(PING_INTERVAL, parse_moriio_zmq_address); examples/disaggregated/disaggregated_serving/moriio_toy_proxy_server.py.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import ClassVar, Final, Literal

import msgspec

from pdgate.cluster import address
from pdgate.cluster.directory import MOST_ENTRIES, Tell
from pdgate.cluster.member import FOLDER
from pdgate.cluster.networks import Allowed
from pdgate.cluster.polled import Polled, Seen, Unseen
from pdgate.cluster.zmtp.listener import ZmtpListener, ZmtpPeer
from pdgate.cluster.zmtp.wire import RefusalReason
from pdgate.protocols.instance import Role

DEFAULT_PORT: Final = 36367
EVERY_SECONDS: Final = 1.0
FORGET_SECONDS: Final = 10.0
"""Three heartbeats, and some more."""
MOST_BYTES: Final = 4 << 10
PROTOCOL: Final = "mori-io"
STRANGERS: Final = "heartbeats of strangers"


class _Heartbeat(msgspec.Struct):
    type: Literal["P", "D"]
    http_address: str
    zmq_address: str
    transfer_mode: Literal["READ", "WRITE"]
    dp_size: int = 1
    tp_size: int = 1


_read = msgspec.msgpack.Decoder(_Heartbeat).decode


class MoriIoDirectory(Polled):
    one_process: ClassVar = True

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        listen: str = f"127.0.0.1:{DEFAULT_PORT}",
        allow: str = "",
        model: str = "",
    ) -> None:
        """Raises ValueError."""
        super().__init__(EVERY_SECONDS)
        self._clock = clock
        self._allowed = Allowed.of(allow)
        self._model = model
        self._heard: dict[str, tuple[float, bytes]] = {}
        self._strangers = 0
        self._bad = ""
        self._at = address.split(listen)
        self._listening: tuple[ZmtpListener, asyncio.Task[None]] | None = None

    async def follow(self, tell: Tell) -> None:
        try:
            await super().follow(tell)
        finally:
            self.close()

    def close(self) -> None:
        """Hears no more; the next look listens again."""
        if self._listening is not None:
            listener, running = self._listening
            self._listening = None
            running.cancel()
            listener.close()

    async def look(self) -> Seen:
        if self._listening is None:
            self._listen()
        elif (running := self._listening[1]).done():
            self.close()
            raise Unseen(f"heartbeats were heard no more: {running.exception()!r}")
        now = self._clock()
        self._heard = {
            key: found for key, found in self._heard.items() if now - found[0] < FORGET_SECONDS
        }
        refused = {}
        if self._strangers:
            refused[STRANGERS] = f"{self._strangers} connections of addresses that are not allowed"
        if self._bad:
            refused["a heartbeat"] = self._bad
        return Seen({key: value for key, (_, value) in self._heard.items()}, refused)

    def _listen(self) -> None:
        """Raises Unseen."""
        host, port = self._at
        try:
            listener = ZmtpListener(
                host, port, "ROUTER", self._allowed, MOST_BYTES, self._beat, self._refused
            )
        except OSError as error:
            raise Unseen(f"no heartbeats can be heard at {host}:{port}: {error}") from None
        running = asyncio.get_running_loop().create_task(listener.run(), name="heartbeats")
        self._listening = listener, running

    def _refused(self, why: RefusalReason) -> None:
        if why is RefusalReason.STRANGER:
            self._strangers += 1
        else:
            self._bad = f"a connection was ended: {why}"

    def _beat(self, _: ZmtpPeer, parts: list[bytes]) -> None:
        try:
            key, value = self._entry(parts[-1])
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self._bad = f"{error}"[:200]
            return
        if key in self._heard or len(self._heard) < MOST_ENTRIES:
            self._heard[key] = self._clock(), value

    def _entry(self, message: bytes) -> tuple[str, bytes]:
        """Raises DecodeError, ValueError."""
        if not message or b"HELLO" in message[:32]:
            raise ValueError("it says that it is there, and not where")
        said = _read(message)
        host, port = address.split(said.http_address)
        parts = dict(part.partition(":")[::2] for part in said.zmq_address.split(","))
        if not {"host", "handshake", "notify"} <= parts.keys():
            raise ValueError("zmq_address is host:IP,handshake:PORT,notify:PORT")
        kv = address.joined(address.host(parts["host"]), address.port(parts["handshake"]))
        entry = {
            "protocol": PROTOCOL,
            "generation": said.transfer_mode.lower(),
            "model": self._model,
            "kv": kv,
            "kv_notify": address.port(parts["notify"]),
            "dp_size": said.dp_size,
            "tp": said.tp_size,
        }
        role = Role.PREFILL if said.type == "P" else Role.DECODE
        return f"{FOLDER}{role}/{host}/{port}", json.dumps(entry).encode()
