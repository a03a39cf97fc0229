"""Turns of the three ways, and what was hidden in each round."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.overlap.prefill import Model, Prefill, Run, layer_ranges
from benchmarks.transfer import cases, ends
from benchmarks.transfer.pair import Process
from pdgate.transfer import descriptors, registry
from pdgate.transfer.messenger.mover import Destination
from pdgate.transfer.messenger.process_mover import ProcessMover
from pdgate.transfer.plan.segments import Ranges

TRIES: Final = 3
"""Of each way in a round, in turns; the fastest counts, as a transfer is a short part of a run."""
IMMEDIATE: Final = 1

Spread = tuple[float, float, float]
"""Median, least, most."""


@dataclass(frozen=True, slots=True)
class Round:
    alone: Run
    at_the_end: Run
    by_layers: Run

    @property
    def transfer_seconds(self) -> float:
        return self.at_the_end.seconds - self.at_the_end.computed

    @property
    def hidden(self) -> float:
        """Share of the transfer; below 0 if pushing by layers is slower than at the end."""
        return 1 - (self.by_layers.seconds - self.alone.seconds) / self.transfer_seconds

    @property
    def before_the_end(self) -> float:
        """Share of the transfer that needed no time after compute; says nothing of its pace."""
        left = self.by_layers.seconds - self.by_layers.computed
        return 1 - left / self.transfer_seconds


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over the rounds; of shares also the least and the most.

    Attributes:
        shown: The round whose share is the median.
    """

    backend: str
    model: str
    compute_ms: float
    transfer_ms: float
    at_the_end_ms: float
    by_layers_ms: float
    hidden: Spread
    before_the_end: Spread
    shown: Round


def run(backend: str, model: Model, rounds: int, say: Callable[[str], None]) -> Figures:
    """Raises TransferError, RuntimeError if other bytes arrive than were sent."""
    with ExitStack() as stack:
        far = Process([backend, str(model.bytes)])
        stack.callback(far.close)
        ours = stack.enter_context(closing(registry.load(backend)))
        region = ours.allocate(model.bytes)
        ends.fill(region.memory)
        mover = stack.enter_context(closing(ProcessMover(ours, region)))
        # A messenger has the connection here on which D asked; D sees its end.
        line, theirs = socket.socketpair()
        stack.enter_context(line)
        stack.enter_context(theirs)
        remote = descriptors.from_data(far.hello)
        to = stack.enter_context(closing(mover.open(remote, line.fileno())))
        stack.enter_context(apart([far.pid, mover.pid]))
        prefill = Prefill(model)
        found = []
        for number in range(rounds + 1):
            # The first one is for connections, page faults and clocks of the processor.
            say(f"{backend}, {model.name}: round {number} of {rounds}")
            found.append(_round(prefill, far, to, layer_ranges(model, number)))
    return figures(backend, model, found[1:])


def _round(prefill: Prefill, far: Process, to: Destination, layers: list[Ranges]) -> Round:
    data = cases.as_data([[page for layer in layers for page in layer]])

    def pushed(push: Callable[[Destination, list[Ranges], int], Run]) -> Run:
        far.ask({"prepare": data})
        run = push(to, layers, IMMEDIATE)
        far.ask({"verify": data})
        return run

    alone, at_the_end, by_layers = [], [], []
    for _ in range(TRIES):
        alone.append(prefill.alone())
        at_the_end.append(pushed(prefill.at_the_end))
        by_layers.append(pushed(prefill.by_layers))
    return Round(_least_disturbed(alone), _least_disturbed(at_the_end), _least_disturbed(by_layers))


def _least_disturbed(runs: Sequence[Run]) -> Run:
    return min(runs, key=lambda one: one.seconds)


def figures(backend: str, model: Model, found: list[Round]) -> Figures:
    by_share = sorted(found, key=lambda one: one.hidden)
    shown = by_share[len(by_share) // 2]
    return Figures(
        backend,
        model.name,
        1e3 * median(one.alone.seconds for one in found),
        1e3 * median(one.transfer_seconds for one in found),
        1e3 * median(one.at_the_end.seconds for one in found),
        1e3 * median(one.by_layers.seconds for one in found),
        _spread([one.hidden for one in found]),
        _spread([one.before_the_end for one in found]),
        shown,
    )


def _spread(shares: Sequence[float]) -> Spread:
    return median(shares), min(shares), max(shares)


@contextmanager
def apart(pids: list[int]) -> Iterator[None]:
    """This process on the first core that it may use, those on the others; all again afterwards: compute has a core of
    its own, as it has where there are more than two.

    With a single core nobody is moved.
    """
    first, *others = cores = sorted(os.sched_getaffinity(0))
    if not others:
        yield
        return
    _confine(os.getpid(), {first})
    for pid in pids:
        _confine(pid, set(others))
    try:
        yield
    finally:
        _confine(os.getpid(), set(cores))


def _confine(pid: int, cores: set[int]) -> None:
    """All threads that it has; those to come do as the one that starts them."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)
