"""Admission control: which calls may begin, and which next, while engines can take no more.

    limits.py   how much an operator lets in
    room.py     whether one more call would find engines with room now, and when its prompt would be read
    others.py   whose turn it is, of several processes
    line.py     calls that wait, for how long, and in which order: by urgency, then fairly among
    tenants

Pure: gateway/admission/ has the waiting itself.
"""

from pdgate.protocols.priority import LEAST_URGENT, MOST_URGENT, ORDINARY
from pdgate.scheduling.admission.limits import Limits
from pdgate.scheduling.admission.line import Line, LinePlace, Pace
from pdgate.scheduling.admission.room import NEVER, Ample, Room, seconds_to_read

__all__ = [
    "LEAST_URGENT",
    "MOST_URGENT",
    "NEVER",
    "ORDINARY",
    "Ample",
    "Limits",
    "Line",
    "LinePlace",
    "Pace",
    "Room",
    "seconds_to_read",
]  # fmt: skip
