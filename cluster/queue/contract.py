"""The contract of a prefill queue. Blocking, thread-safe; one test suite holds for every backend.

    put ----> waiting --take--> taken --done--> gone
                 ^                |
                 |                |  free, or no `hold` for `redeliver_seconds`
                 '----------------'
                                  '--after `tries` deliveries--> buried

Every item that was put is delivered at least once, and again when its worker falls
silent; so two may work on one item at a time, and `tries` tells one delivery from another.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from pdgate.cluster.address import HIGHEST_PORT, LONGEST_HOST

LONGEST_ID: Final = 3000
"""So that it can be claimed in a line (engine/prefill_worker/wire.py)."""


class QueueError(Exception):
    """The queue did not do what it was asked to."""


class QueueAway(QueueError):
    """The queue cannot be reached. It may have done it, or not."""


class QueueFull(QueueError):
    """Too many items are not done yet."""


class Buried(QueueError):
    """The item was given up: it was delivered too often."""


class Item(msgspec.Struct, frozen=True):
    """A prompt that a decode engine wants computed, as it travels (JSON).

    Bounds hold for what is read: any client of the store may have written it.

    Attributes:
        id: Of this request in this life of the decode engine; never used again.
        host, port: Where the decode engine is asked whether it still wants this.
        tokens: How many leading tokens of the prompt are to be computed.
        deadline: Unix time in seconds after which it is not wanted any more.
    """

    id: Annotated[str, msgspec.Meta(max_length=LONGEST_ID)]
    host: Annotated[str, msgspec.Meta(max_length=LONGEST_HOST)]
    port: Annotated[int, msgspec.Meta(ge=1, le=HIGHEST_PORT)]
    tokens: Annotated[int, msgspec.Meta(ge=1)]
    deadline: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    Attributes:
        tries: How often the item was delivered, this time included.
        receipt: The queue's own name for it.
    """

    item: Item
    tries: int
    worker: str
    receipt: str


@dataclass(frozen=True, slots=True)
class Depth:
    """
    Attributes:
        waiting: Items that no worker has taken.
        taken: Items that a worker is at, or has died over.
        buried: Items given up since the queue was made, as far as they are remembered.
        oldest_seconds: Since the oldest item that is not done was put, or put back.
        idle_seconds: Since any worker took, asked for an item, or held one; None where none ever did.
    """

    waiting: int
    taken: int
    buried: int
    oldest_seconds: float
    idle_seconds: float | None = None


class Queue(ABC):
    """All methods raise QueueAway."""

    @abstractmethod
    def put(self, item: Item) -> None:
        """Changes nothing if the item is there already, waiting or taken.

        Raises QueueFull, Buried.
        """

    @abstractmethod
    def take(self, worker: str, wait_seconds: float) -> Delivery | None:
        """The next item is this worker's, until it is done, freed or not held in time.

        None if there was none; it may come back sooner than `wait_seconds`.
        """

    @abstractmethod
    def hold(self, delivery: Delivery) -> bool:
        """Still at it. False if the item is another worker's by now, or gone."""

    @abstractmethod
    def free(self, item_id: str) -> None:
        """Its worker is not at it any more: the next may have it at once."""

    @abstractmethod
    def done(self, item_id: str) -> None:
        """Mark an item as not to be delivered again. Unknown ids are ignored."""

    @abstractmethod
    def depth(self) -> Depth: ...

    @abstractmethod
    def close(self) -> None:
        """Close this end; items and other ends stay."""
