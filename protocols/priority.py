"""Priority scale on which callers say how urgent a call is: HTTP's own (RFC 9218, section
4.1). Fewer is sooner."""

from typing import Final

MOST_URGENT: Final = 0
ORDINARY: Final = 3
LEAST_URGENT: Final = 7
