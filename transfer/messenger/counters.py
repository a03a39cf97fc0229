"""What an engine's /metrics shows of its hand-overs."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """A torn read is harmless.

    Attributes:
        transfers: Loads that ended well, on the decode side.
        bytes_moved: By these loads.
        failed: Loads that ended with an error, cancelled ones included.
        expired: Kept requests whose lease ended before a reader released them.
        stranded: Pages of failed loads, now, in which a silent peer may still write.
    """

    transfers: int = 0
    bytes_moved: int = 0
    failed: int = 0
    expired: int = 0
    stranded: int = 0
