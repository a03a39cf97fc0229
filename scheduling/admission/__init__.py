"""Which calls may begin, and who begins next, while there are more than the engines can take.

    limits.py   how much an operator lets in
    room.py     whether one more call would find engines with room now
    others.py   whose turn it is, of several processes
    line.py     who waits, and in which order: by urgency, then fairly among tenants
    pace.py     how long somebody who joins will wait
    outlook.py  how soon a prompt would be read if its call began now

Pure: gateway/admission/ has the waiting itself.
"""

from pdgate.scheduling.admission.limits import Limits
from pdgate.scheduling.admission.line import LEAST_URGENT, MOST_URGENT, ORDINARY, Line, Place
from pdgate.scheduling.admission.outlook import seconds_to_read
from pdgate.scheduling.admission.pace import Pace
from pdgate.scheduling.admission.room import NEVER, Ample, Room

__all__ = [
    "LEAST_URGENT", "MOST_URGENT", "NEVER", "ORDINARY", "Ample", "Limits", "Line", "Pace", "Place",
    "Room", "seconds_to_read",
]  # fmt: skip
