"""One engine of Mooncake, with its return codes."""

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from pdgate.transfer.base import TransferError
from pdgate.transfer.library import Op, Piece, missing

METADATA: Final = "P2PHANDSHAKE"

Make = Callable[[], "Engine"]


class Engine:
    """Attributes:
    segment: Its name for peers.
    """

    def __init__(self, library: Any, advertise: str, protocol: str, device: str) -> None:
        """Raises OSError."""
        self._engine = library.TransferEngine()
        if code := self._engine.initialize(advertise, METADATA, protocol, device):
            raise OSError(f"mooncake did not start on {advertise} with {protocol}: {code}")
        host = f"[{advertise}]" if ":" in advertise else advertise
        self.segment = f"{host}:{self._engine.get_rpc_port()}".encode()

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


def maker(advertise: str, protocol: str, device: str) -> Make:
    """Raises LookupError if Mooncake cannot be loaded."""
    library = load()
    return lambda: Engine(library, advertise, protocol, device)


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
            "pip install 'pdgate[mooncake]', or 'pdgate[mooncake-cpu]' on a machine without CUDA",
        ) from None
    except ImportError as error:
        # Its wheel leaves the RDMA library to the system, also for TCP.
        cure = "apt-get install libibverbs1"
        raise missing("mooncake", f"a shared library ({error})", cure) from None
