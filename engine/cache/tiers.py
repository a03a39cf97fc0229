"""Tiers of KV blocks beyond an engine's own pages: folders that engines of a host, or of a file system, share.

    pages    an engine's own                 a block is forgotten when its page is taken anew
    host     a folder in memory (tmpfs)      shared, and gone with the machine
    disk     a folder                        shared, and there after a restart
    peer     those of another host           peer_tier.py, tier_service.py

A full block is copied and written to every tier in the background; where the pages have lost it, it is read from the first tier
that has it, and written to those that have not. What cannot be read whole is a miss, and is removed. A block's name is
a hash of the model, the shape of its pages, the salt, and all tokens up to its end (prefix.py): equal names, equal KV.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Full, Queue
from threading import Lock, Thread
from typing import Final

from pdgate import __version__
from pdgate.engine.cache.peer_tier import PeerTier
from pdgate.engine.cache.tier_counts import Counts
from pdgate.engine.cache.tier_spec import TierSpec
from pdgate.engine.hand_over.blocks import NamedBlocks
from pdgate.engine.hand_over.shared_store import BlockStore, folder_of
from pdgate.engine.kv_events.journal import TierNews

log = logging.getLogger(__name__)

MOST_WAITING: Final = 256
"""Blocks that are still to be written; beyond these none is taken."""
LOOKS: Final = 64
"""After each such part of a tier's bytes that was written here, it is seen to that it has no more."""
MOST_TOLD: Final = 4096
"""After so many blocks that listeners were told of, it is seen which of all are still there: others make room, too."""
CLOSE_SECONDS: Final = 5
"""For what waits at the end; a disk that hangs keeps no engine longer."""


def weights_of(root: str) -> str:
    """What changes where a model's files do, or what is computed with them; the same on every host.

    Reads the files whole: other weights may have the same names, sizes and times. Raises OSError.
    """
    files = sorted(Path(root).glob("*.json")) + sorted(Path(root).glob("*.safetensors"))
    found = [(file.name, _digest(file)) for file in files]
    # A model without files is built in, and its name says which one.
    return f"{__version__}\0{found or root}"


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class Tier:
    def __init__(self, spec: TierSpec) -> None:
        """Raises OSError, ValueError for a folder that cannot be had."""
        self.medium = spec.medium
        self.counts = Counts()
        self._store = BlockStore(folder_of(spec.folder), spec.most_bytes)
        self._store.make_room()
        self._unlooked = 0
        self._look_after = spec.most_bytes // LOOKS
        self._looked = False
        self._fails = False
        self._told: dict[str, bytes] = {}
        self._untold = 0
        self._counting = Lock()

    def tells(self, name: str) -> bool:
        """Whether listeners were told that it has this block."""
        return name in self._told

    def news(self, name: str, block: TierNews | None) -> list[TierNews]:
        """What listeners are to be told: of this block, and of those that others have removed. On the writer's thread."""
        found = []
        if block is not None and name not in self._told and self.has(name):
            self._told[name] = block.block_hash
            self._untold += 1
            found.append(block)
        if self._looked or self._untold >= MOST_TOLD:
            self._looked, self._untold = False, 0
            there = self._store.names()
            found += [self._gone(one) for one in [*self._told] if one not in there]
        elif block is None and name in self._told and not self.has(name):
            found.append(self._gone(name))
        return found

    def _gone(self, name: str) -> TierNews:
        return TierNews(self.medium, None, self._told.pop(name), (), "", stored=False)

    def has(self, name: str) -> bool:
        return self._store.has(name)

    def get(self, name: str, size: int) -> memoryview | None:
        pages = self._read(name, size)
        self.counts.hits += pages is not None
        return pages

    def lend(self, name: str, size: int) -> memoryview | None:
        """For an engine of another host. On any thread."""
        pages = self._read(name, size)
        with self._counting:
            self.counts.served += pages is not None
        return pages

    def _read(self, name: str, size: int) -> memoryview | None:
        try:
            return self._store.get(name, size)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            with self._counting:
                self.counts.broken += 1
            log.warning("KV tier %s: %s", self.medium, error)
            with suppress(OSError):
                self._store.remove(name)
            return None

    def put(self, name: str, pages: bytes) -> None:
        try:
            written = self._store.put(name, pages)
            self._unlooked += written
            if self._unlooked >= self._look_after:
                self._unlooked = 0
                self._store.make_room()
                self._looked = True
        except OSError as error:
            self.counts.failed += 1
            if not self._fails:
                log.warning("KV tier %s cannot be written: %s", self.medium, error)
            self._fails = True
            return
        self.counts.written += written > 0
        self._fails = False


class Tiers:
    """
    Attributes:
        stir: Called on the writer's thread when there is news for `take_news`; None without a publisher.

    Args:
        tiers: From the fastest on.
        of: What else makes KV what it is: weights_of.
        peers: Tiers of other hosts, which are asked before a request begins (`fetch`).
    """

    def __init__(
        self, tiers: Sequence[Tier], blocks: NamedBlocks, of: str, peers: PeerTier | None = None
    ) -> None:
        self.tiers = tiers
        self.peers = peers
        self._blocks = blocks
        self.weights_are(of)
        self._writing: Queue[Callable[[], None] | None] = Queue(MOST_WAITING)
        self._news: deque[TierNews] = deque()
        self.stir: Callable[[], object] | None = None

    def weights_are(self, of: str) -> None:
        """KV of other weights has other names."""
        at = self._blocks.layout
        shape = (at.layers, at.kv_heads, at.block_tokens, at.head_dim, at.planes, at.tp, at.dtype)
        self._of = f"{of}\0{shape}\0".encode()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Blocks that are put are written until the end of this."""
        thread = Thread(target=self._write, name="pdgate-kv-tiers", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with suppress(Full):
                self._writing.put(None, timeout=CLOSE_SECONDS)
            thread.join(CLOSE_SECONDS)

    def has(self, full: bytes) -> bool:
        name = self._name(full)
        came = self.peers is not None and self.peers.has(name)
        return came or any(tier.has(name) for tier in self.tiers)

    def fetch(self, fulls: Sequence[bytes], then: Callable[[], object]) -> bool:
        """Have other hosts asked for these blocks; `then` is called when `get` has what of them came, on any thread.

        False if there is nothing to wait for.
        """
        return self.peers is not None and self.peers.fetch([*map(self._name, fulls)], then)

    def get(self, full: bytes, block_id: int) -> bool:
        """Fill a block, if a tier has what belongs there."""
        name = self._name(full)
        for tier in self.tiers:
            pages = tier.get(name, self._blocks.layout.block_bytes)
            if pages is not None:
                self._blocks.write(block_id, pages)
                return True
            if self.stir is not None and tier.tells(name):
                self._later(tier, name, None, None)
        came = None if self.peers is None else self.peers.take(name)
        if came is None:
            return False
        self._blocks.write(block_id, memoryview(came))
        return True

    def put(
        self,
        full: bytes,
        block_id: int,
        before: bytes | None = None,
        tokens: Sequence[int] = (),
        salt: str = "",
    ) -> None:
        """A copy of a block that is full goes to every tier. The rest is for listeners, as of `EventJournal.stored`."""
        name = self._name(full)
        pages: bytes | None = None
        for tier in self.tiers:
            missing = not tier.has(name)
            if missing and pages is None:
                pages = self._blocks.read(block_id)
            if missing or (self.stir is not None and not tier.tells(name)):
                block = TierNews(tier.medium, before, full, tuple(tokens), salt)
                self._later(tier, name, pages if missing else None, block)

    def take_news(self) -> Iterator[TierNews]:
        """What became of blocks in the tiers since the last call, for listeners."""
        while self._news:
            yield self._news.popleft()

    def _later(self, tier: Tier, name: str, pages: bytes | None, block: TierNews | None) -> None:
        def work() -> None:
            if pages is not None:
                tier.put(name, pages)
            if self.stir is not None and (news := tier.news(name, block)):
                self._news.extend(news)
                self.stir()

        try:
            self._writing.put_nowait(work)
        except Full:
            tier.counts.dropped += pages is not None

    def _write(self) -> None:
        while (write := self._writing.get()) is not None:
            try:
                write()
            except (
                Exception
            ):  # the last stop of a thread: blocks that come later are still to be written
                log.exception("a KV tier could not be written")

    def _name(self, full: bytes) -> str:
        return hashlib.sha256(self._of + full).hexdigest()
