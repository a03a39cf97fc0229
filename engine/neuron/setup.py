"""Setup of both buffers: what they need of the engine whose pages they move."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pdgate.engine.connector import Core
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.messenger.counters import MessengerCounters
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.runtime.fleet import Identity


@dataclass(frozen=True, slots=True)
class Setup:
    """
    Attributes:
        batch: Requests that may transfer at once.
        silence_seconds: Without a word or byte from a peer until it is held for dead.
        ping_seconds: Between two signs of life that we ask for while a peer writes.
        arrivals: Where whole pages may arrive (decode), if there is such a place.
        wait_seconds: That pages wait for a reader, and a reader for pages.
        identity: What is proven to peers.
    """

    core: Core
    backend: Backend
    regions: Sequence[Region]
    shape: PageShape
    counters: MessengerCounters
    batch: int
    silence_seconds: float
    ping_seconds: float
    wait_seconds: float
    arrivals: Region | None = None
    identity: Identity = field(default_factory=Identity)
