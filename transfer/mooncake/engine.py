"""One engine of Mooncake, with its return codes and its settings.

Asked for RDMA where there is no device it takes TCP without a word, and the other way round
(mooncake-transfer-engine 0.3.13.post1: mooncake-transfer-engine/src/transfer_engine_impl.cpp,
TransferEngineImpl::init). So devices are looked for here, and TCP is forced where it is meant.
"""

import importlib
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdgate.protocols.extras import install
from pdgate.transfer.base import Op, TransferError
from pdgate.transfer.external_mover.library import Piece, missing

HANDSHAKE: Final = "P2PHANDSHAKE"
RDMA_DEVICES: Final = Path("/sys/class/infiniband")

Make = Callable[[], "MooncakeEngine"]


@dataclass(frozen=True, slots=True)
class MooncakeSettings:
    """
    Attributes:
        protocol: "tcp" or "rdma".
        metadata_server: Where engines find each other: HANDSHAKE, each other's ports; or a URL
            as Mooncake takes it (http://..., etcd://..., redis://...).
        device_name: RDMA devices with commas between them; empty: all.
    """

    protocol: str = "tcp"
    metadata_server: str = HANDSHAKE
    device_name: str = ""

    def check(self) -> None:
        """Raises ValueError, OSError."""
        if self.protocol not in ("tcp", "rdma"):
            raise ValueError(f"mooncake moves KV by tcp or rdma, not by {self.protocol!r}")
        if self.protocol == "tcp":
            return
        there = sorted(device.name for device in RDMA_DEVICES.glob("*"))
        if not there:
            raise OSError("mooncake by rdma needs an RDMA device, and this machine has none")
        wanted = [name.strip() for name in self.device_name.split(",") if name.strip()]
        if unknown := [name for name in wanted if name not in there]:
            raise OSError(f"no RDMA device {', '.join(unknown)}; there is {', '.join(there)}")


class MooncakeEngine:
    """Attributes:
    segment: Its name for peers.
    """

    def __init__(self, library: Any, advertise: str, settings: MooncakeSettings) -> None:
        """Raises OSError."""
        direct = settings.metadata_server == HANDSHAKE
        # On a metadata server the name is a key, and every engine needs one of its own.
        name = advertise if direct else f"pdgate-{secrets.token_hex(8)}"
        protocol, metadata = settings.protocol, settings.metadata_server
        if protocol == "tcp":
            os.environ.setdefault("MC_FORCE_TCP", "1")
        if not direct:
            # What peers learn from the server; otherwise the first address of the machine.
            os.environ.setdefault("MC_TCP_BIND_ADDRESS", advertise)
        self._engine = library.TransferEngine()
        if code := self._engine.initialize(name, metadata, protocol, settings.device_name):
            raise OSError(
                f"mooncake did not start on {advertise} by {protocol}, {metadata}: {code}"
            )
        if direct:
            host = f"[{advertise}]" if ":" in advertise else advertise
            name = f"{host}:{self._engine.get_rpc_port()}"
        self.segment = name.encode()

    def register(self, address: int, length: int) -> None:
        """Raises TransferError."""
        if code := self._engine.register_memory(address, length):
            raise TransferError(f"mooncake did not register {length} bytes: {code}")

    def unregister(self, address: int) -> None:
        """Raises TransferError."""
        if code := self._engine.unregister_memory(address):
            raise TransferError(f"mooncake did not unregister memory: {code}")

    def move(self, op: Op, segment: bytes, pieces: Sequence[Piece]) -> int:
        """Blocks, without the GIL. 0, or Mooncake's code.

        Not by handle and polling, which starves the transfer (64 MiB: 1.18 s against 0.03 s).
        """
        engine = self._engine
        read, write = engine.batch_transfer_sync_read, engine.batch_transfer_sync_write
        local, remote, lengths = (list(column) for column in zip(*pieces, strict=True))
        return int((read if op is Op.READ else write)(segment.decode(), local, remote, lengths))

    def destroy(self) -> None:
        """Closes its connections and joins its threads; takes a second, and keeps the GIL."""
        del self._engine


def maker(advertise: str, settings: MooncakeSettings) -> Make:
    """Raises LookupError if Mooncake cannot be loaded, ValueError, OSError."""
    settings.check()
    library = load()
    return lambda: MooncakeEngine(library, advertise, settings)


def load() -> Any:
    """Raises LookupError, one line that says what to install."""
    # A dozen lines for each start otherwise; it reads this when it is loaded.
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    try:
        return importlib.import_module("mooncake.engine")
    except ModuleNotFoundError as error:
        raise missing(
            "mooncake",
            f"the package {error.name}",
            f"{install('mooncake')}, or '.[mooncake-cpu]' on a machine without CUDA",
        ) from None
    except ImportError as error:
        # Its wheel leaves the RDMA library to the system, also for TCP.
        cure = "apt-get install libibverbs1"
        raise missing("mooncake", f"a shared library ({error})", cure) from None
