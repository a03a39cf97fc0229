"""Place of an engine, as far as it was given: which pairs are near each other.

    host   a machine, whatever it is called: engines on one share its memory
    rack   machines behind one switch
    zone   racks that one failure can take away together

Names are compared and nothing else; one that is unsaid (empty) is near no other.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Distance(IntEnum):
    """Distance between two engines, the nearer the smaller."""

    SAME_HOST = 0
    SAME_RACK = 1
    SAME_ZONE = 2
    FAR = 3


# For what is done with every call (members.py).
FAR: Final = Distance.FAR
_SAME_HOST: Final = Distance.SAME_HOST


@dataclass(frozen=True, slots=True)
class Place:
    host: str = ""
    rack: str = ""
    zone: str = ""

    def distance(self, other: "Place") -> Distance:
        """Distance by the smallest place that both are in; racks of two zones may have the same name."""
        if self.host and self.host == other.host:
            return _SAME_HOST
        zones_differ = self.zone and other.zone and self.zone != other.zone
        if self.rack and self.rack == other.rack and not zones_differ:
            return Distance.SAME_RACK
        if self.zone and self.zone == other.zone:
            return Distance.SAME_ZONE
        return FAR


NOWHERE = Place()
