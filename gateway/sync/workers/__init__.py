"""Workers of one gateway share what they know of their calls: shared memory, and no lock.

place.py           the folder in memory where all of it is
table.py           rows of numbers that one process writes and others read
ring.py            messages that one process writes and others read, the latest of them
membership.py      whose files are in it, and which of these workers live
folder.py          the memory of all workers that live, one file each
neighbourhood.py   the others' rows under a key, and ours
load.py            engines' accounts in them: written at each change, read before each choice
policy.py          any policy, which reads them first
prefixes.py        which engines were sent which prompts, in rings
metrics.py         their metrics on one page (gateway/metrics/)
turns.py           turns of conversations, for reading back
lines.py           the lines of calls that wait (gateway/admission/)
"""

from pdgate.gateway.sync.workers.lines import SharedLines
from pdgate.gateway.sync.workers.load import SharedLoad
from pdgate.gateway.sync.workers.prefixes import SharedPrefixes
from pdgate.gateway.sync.workers.turns import SharedTurns

__all__ = ["SharedLines", "SharedLoad", "SharedPrefixes", "SharedTurns"]
