"""A directory made of MoRI-IO's heartbeats: each engine says every three seconds that it is there, and where.

    MoriIoDirectory(listen="10.0.0.9:36367", allow="10.0.0.0/24")

    ROUTER   msgpack {type: "P"|"D", http_address, zmq_address: "host:IP,handshake:PORT,notify:PORT", dp_size, tp_size,
             transfer_mode: "READ"|"WRITE"}

Engines of the two modes do not understand each other, so the mode is their generation.

Source: vLLM 0.32.0, .../kv_connector/v1/moriio/moriio_heartbeat.py, moriio_connector.py (_start_heartbeat), moriio_common.py
(PING_INTERVAL, parse_moriio_zmq_address); examples/disaggregated/disaggregated_serving/moriio_toy_proxy_server.py.
"""

import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from pdgate.cluster import address
from pdgate.cluster.heartbeats import Heartbeat, HeartbeatDirectory
from pdgate.protocols.instance import Role

DEFAULT_PORT: Final = 36367


class _Said(msgspec.Struct):
    type: Literal["P", "D"]
    http_address: str
    zmq_address: str
    transfer_mode: Literal["READ", "WRITE"]
    dp_size: int = 1
    tp_size: int = 1


_said = msgspec.msgpack.Decoder(_Said).decode


class MoriIoDirectory(HeartbeatDirectory):
    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        listen: str = f"127.0.0.1:{DEFAULT_PORT}",
        allow: str = "",
        model: str = "",
    ) -> None:
        """Raises ValueError."""
        super().__init__(listen, allow, clock)
        self._model = model

    def read(self, message: bytes) -> Heartbeat:
        """Raises DecodeError, ValueError."""
        if not message or b"HELLO" in message[:32]:
            raise ValueError("it says that it is there, and not where")
        said = _said(message)
        at = dict(part.partition(":")[::2] for part in said.zmq_address.split(","))
        if not {"host", "handshake", "notify"} <= at.keys():
            raise ValueError("zmq_address is host:IP,handshake:PORT,notify:PORT")
        entry = {
            "protocol": "mori-io",
            "generation": said.transfer_mode.lower(),
            "model": self._model,
            "kv": address.joined(address.host(at["host"]), address.port(at["handshake"])),
            "kv_notify": address.port(at["notify"]),
            "dp_size": said.dp_size,
            "tp": said.tp_size,
        }
        return Heartbeat(
            Role.PREFILL if said.type == "P" else Role.DECODE, said.http_address, entry
        )
