"""Tells a read that is one whole chunk of a chunked body (RFC 9112, section 7.1), and nothing else.

    b"fa\\r\\n" + 250 bytes + b"\\r\\n"

A chunk of n bytes takes n, the digits of n, and two line ends. That grows with n, so how long a
read is says which chunk it would be, and how that one begins. A read as long that begins so and
ends with a line end is that chunk: its end is where it said.

Only the usual spelling is known, lower case without zeros or extensions; others are left to the
parser, and so is the last chunk, of no bytes.
"""

from typing import Final

LONGEST: Final = 2048
"""Read that is looked at, in bytes; events are much shorter."""


def _starts() -> tuple[bytes, ...]:
    starts = [b""] * (LONGEST + 1)
    for size in range(1, LONGEST):
        start = b"%x\r\n" % size
        length = len(start) + size + 2
        if length <= LONGEST:
            starts[length] = start
    return tuple(starts)


START_OF: Final = _starts()
"""Length of a read -> how it begins if it is one chunk; empty where none is so long."""
