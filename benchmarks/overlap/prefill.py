"""A prefill that takes measurable time, and its pages on their way to a decode engine.

compute     matrix products, a layer after the other, on one core of BLAS
pages       256 x 32 KiB a layer, scattered on both sides
push        through the mover process of the messenger, 64 pages a write, as P does it
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.transfer.ends import SECONDS
from pdgate.transfer.base import TransferError
from pdgate.transfer.messenger.mover import Destination
from pdgate.transfer.plan.segments import Ranges

PAGE_BYTES: Final = 32 << 10
PAGES_PER_WRITE: Final = 64


@dataclass(frozen=True, slots=True)
class Model:
    """
    Attributes:
        name: What its products are like.
        products: Of a layer.
        width: Of the matrices; small ones keep the interpreter busy.
    """

    name: str
    layers: int
    pages_per_layer: int
    products: int
    width: int

    @property
    def bytes(self) -> int:
        return self.layers * self.pages_per_layer * PAGE_BYTES


LARGE: Final = Model("large products", 16, 256, 12, 384)
SMALL: Final = Model("small products", 16, 256, 600, 64)
SMOKE: Final = Model("smoke", 3, 16, 2, 64)

Span = tuple[float, float]
"""From when to when, in seconds after the prefill began."""


@dataclass(frozen=True, slots=True)
class Run:
    """
    Attributes:
        compute: Of each layer.
        writes: Of each write, from its posting to its end, in the order of posting.
    """

    compute: list[Span]
    writes: list[Span]

    @property
    def computed(self) -> float:
        return self.compute[-1][1]

    @property
    def seconds(self) -> float:
        return max(end for _, end in [*self.compute, *self.writes])


def layer_ranges(model: Model, seed: int) -> list[Ranges]:
    """Where the pages of each layer are, here and there, as the planner says it."""
    chance = np.random.default_rng(seed)
    count = model.layers * model.pages_per_layer
    ours, theirs = (chance.permutation(count) * PAGE_BYTES for _ in range(2))
    size = model.pages_per_layer
    lengths = np.full(size, PAGE_BYTES)
    return [
        Ranges(ours[start : start + size], theirs[start : start + size], lengths)
        for start in range(0, count, size)
    ]


class Prefill:
    def __init__(self, model: Model) -> None:
        self._model = model
        chance = np.random.default_rng(0)
        shape = (model.width, model.width)
        self._weights = chance.standard_normal(shape, np.float32) / np.float32(model.width**0.5)
        self._state: npt.NDArray[np.float32] = chance.standard_normal(shape, np.float32)

    def alone(self) -> Run:
        clock = Clock()
        return Run([self._layer(clock) for _ in range(self._model.layers)], [])

    def by_layers(self, to: Destination, layers: list[Ranges], immediate: int) -> Run:
        """Each layer's pages leave as soon as it is computed."""
        clock = Clock()
        pushes = Pushes(to, immediate, clock)
        compute = []
        for pages in layers:
            compute.append(self._layer(clock))
            pushes.post(pages)
        return Run(compute, pushes.ended())

    def at_the_end(self, to: Destination, layers: list[Ranges], immediate: int) -> Run:
        clock = Clock()
        pushes = Pushes(to, immediate, clock)
        compute = [self._layer(clock) for _ in layers]
        for pages in layers:
            pushes.post(pages)
        return Run(compute, pushes.ended())

    def _layer(self, clock: "Clock") -> Span:
        start = clock.now()
        for _ in range(self._model.products):
            self._state = np.tanh(self._state @ self._weights)
        return start, clock.now()


class Clock:
    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start


class Pushes:
    """The writes of one prefill."""

    def __init__(self, to: Destination, immediate: int, clock: Clock) -> None:
        self._to = to
        self._immediate = immediate
        self._clock = clock
        self._until = time.monotonic() + SECONDS
        self._changed = threading.Condition()
        self._posted: list[float] = []
        self._ends: dict[int, float] = {}
        self._error: TransferError | None = None

    def post(self, pages: Ranges) -> None:
        for start in range(0, len(pages), PAGES_PER_WRITE):
            done = self._done(len(self._posted))
            self._posted.append(self._clock.now())
            few = pages[start : start + PAGES_PER_WRITE]
            self._to.write(few, self._until, self._immediate, done)

    def ended(self) -> list[Span]:
        """Waits for all of them. Raises TransferError."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ends) == len(self._posted))
            if self._error is not None:
                raise self._error
            return [(at, self._ends[number]) for number, at in enumerate(self._posted)]

    def _done(self, number: int) -> Callable[[TransferError | None], None]:
        def done(error: TransferError | None) -> None:
            with self._changed:
                self._ends[number] = self._clock.now()
                self._error = self._error or error
                self._changed.notify_all()

        return done
