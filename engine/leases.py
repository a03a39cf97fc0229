"""Pages that wait for a reader after their request finished, and until when. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """
    Attributes:
        until: On the clock of the core, in seconds.
    """

    request_id: str
    blocks: list[int]
    until: float


class Leases:
    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    @property
    def blocks(self) -> int:
        return sum(len(lease.blocks) for lease in self._leases.values())

    @property
    def next_end(self) -> float | None:
        return min((lease.until for lease in self._leases.values()), default=None)

    def __len__(self) -> int:
        return len(self._leases)

    def hold(self, lease: Lease) -> None:
        self._leases[lease.request_id] = lease

    def release(self, request_id: str) -> Lease | None:
        return self._leases.pop(request_id, None)

    def take_ended(self, now: float) -> list[Lease]:
        ended = [lease for lease in self._leases.values() if lease.until <= now]
        for lease in ended:
            del self._leases[lease.request_id]
        return ended

    def take_all(self) -> list[Lease]:
        held = list(self._leases.values())
        self._leases.clear()
        return held
