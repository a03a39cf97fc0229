"""Rules of a worker: which requests may start, by the page on Neuron's scheduler. Pure.

A request is Waiting, Transferring or Running. P runs a request and then transfers it; D
transfers it and then runs it. `batch` is how many requests an engine serves at once. The engine's
scheduler keeps these rules for every protocol, and P's signal plane for what leaves it.

Source: AWS Neuron documentation, "Disaggregated Inference", "Request Scheduling Rules".
"""

from dataclasses import dataclass
from enum import StrEnum


class RequestState(StrEnum):
    WAITING = "waiting"
    TRANSFERRING = "transferring"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests an engine has in each state; those that wait do not count."""

    transferring: int = 0
    running: int = 0


def places(counts: RequestCounts, batch: int) -> int:
    """How many more requests may transfer: together with those that run, no more than a batch."""
    return max(0, batch - counts.running - counts.transferring)


def prefill_may_run(counts: RequestCounts, batch: int) -> bool:
    """Whether P may begin with another request."""
    return counts.running == 0 and counts.transferring < batch


def decode_may_run(
    state: RequestState, *, kv_complete: bool, counts: RequestCounts, batch: int
) -> bool:
    """Whether D may run this request, which goes from the transferring to the running."""
    return state is RequestState.TRANSFERRING and kv_complete and counts.running < batch
