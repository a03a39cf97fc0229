"""The ground of communicators: a backend, and how its transfers fail."""

from collections.abc import Callable
from dataclasses import dataclass

from pdgate.transfer.base import Backend, State, Transfer, TransferError


@dataclass(frozen=True, slots=True)
class Ground:
    """What a communicator stands on.

    Attributes:
        wake: Called when `pump` may have something to do, on any thread.
        seconds: That the other end may take for a batch; then it is held for dead.
    """

    backend: Backend
    wake: Callable[[], None]
    seconds: float


def failure_of(transfer: Transfer | None) -> TransferError | None:
    if transfer is None or transfer.state in (State.RUNNING, State.DONE):
        return None
    return transfer.error or TransferError(f"it was {transfer.state}")
