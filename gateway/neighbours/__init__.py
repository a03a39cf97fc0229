"""What the workers of one gateway know of each other's calls: shared memory, and no lock.

place.py           the folder in memory where all of it is
table.py           rows of numbers that one process writes and others read
ring.py            messages that one process writes and others read, the latest of them
folder.py          the memory of all workers that live, one file each
neighbourhood.py   the others' rows under a key, and ours
load.py            engines' accounts in them: written at each change, read before each choice
policy.py          any policy, which reads them first
prefixes.py        which engines were sent which prompts, in rings
lines.py           the lines of calls that wait (gateway/admission/)
"""

from pdgate.gateway.neighbours.lines import SharedLines
from pdgate.gateway.neighbours.load import SharedLoad
from pdgate.gateway.neighbours.prefixes import SharedPrefixes

__all__ = ["SharedLines", "SharedLoad", "SharedPrefixes"]
