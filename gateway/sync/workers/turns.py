"""Turns of conversations that decode engines have the KV of, for whichever worker the next turn reaches (read back).

    <folder>/turns/<key>    one turn, by the worker that kept it; of the workers that remove it, one has it

A file each and no ring, as a turn must be used once: decode lets go of blocks that were read, and what removes a file is
one process alone. They are in memory (place.py), and touched by calls that may read back only. Each worker bounds those that it keeps, and
removes them; what one leaves behind that was killed goes when another begins, once no engine keeps the blocks.
"""

import logging
import os
from pathlib import Path
from time import time
from typing import Final

import msgspec

from pdgate.forwarders.read_back import KEPT_SECONDS, KeptTurn
from pdgate.protocols.fields import UNREADABLE

log = logging.getLogger(__name__)

FOLDER: Final = "turns"

_read: Final = msgspec.msgpack.Decoder(KeptTurn).decode


class SharedTurns:
    def __init__(self, folder: Path) -> None:
        """`folder`: of all workers. Raises OSError."""
        self._folder = folder / FOLDER
        self._beginning = f"{self._folder}/"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._sweep()

    def put(self, key: bytes, kept: KeptTurn) -> None:
        path = self._path(key)
        # It must not be seen before it is whole.
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            unfinished.write_bytes(msgspec.msgpack.encode(kept))
            unfinished.replace(path)
        except OSError as error:
            log.warning("a turn of a conversation cannot be kept for the next one: %s", error)
            unfinished.unlink(missing_ok=True)

    def get(self, key: bytes) -> KeptTurn | None:
        # Asked for each message of a conversation, of which most are not there: 3 us, and several times that by opening.
        if not os.access(self._beginning + key.hex(), os.F_OK):
            return None
        try:
            return _read(self._path(key).read_bytes())
        except FileNotFoundError:
            return None
        except UNREADABLE:
            # Of a worker of another version.
            return None

    def take(self, key: bytes) -> bool:
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, key: bytes) -> Path:
        return self._folder / key.hex()

    def _sweep(self) -> None:
        oldest = time() - KEPT_SECONDS
        with os.scandir(self._folder) as found:
            old = [one.path for one in found if one.stat(follow_symlinks=False).st_mtime < oldest]
        for path in old:
            Path(path).unlink(missing_ok=True)
