"""Counts of a KV tier, which /metrics shows by medium."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Blocks since the start; each field is written on one thread, or under a lock.

    Attributes:
        dropped: Not written, as too many waited.
        failed: Not written, as the folder could not be.
        broken: That were none: files, or what came from a peer.
        served: Given to engines of other hosts.
        lost: Times that a peer did not answer in time, or well.
    """

    hits: int = 0
    written: int = 0
    dropped: int = 0
    failed: int = 0
    broken: int = 0
    served: int = 0
    lost: int = 0
