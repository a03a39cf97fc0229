"""State of batches: SQLite in their folder, which one host has."""

from pathlib import Path
from typing import NamedTuple

from pdgate.gateway.batch.leading import HostLock, Lead
from pdgate.gateway.batch.sqlite import SqliteState
from pdgate.gateway.batch.state import BatchState


class OpenState(NamedTuple):
    """
    Attributes:
        routed: As the routes of any process write it.
        led: As the process that leads writes it.
    """

    routed: BatchState
    led: BatchState
    lead: Lead


def opened(folder: Path) -> OpenState:
    """Nothing is connected yet."""
    state = SqliteState(folder)
    return OpenState(state, state, HostLock(folder))
