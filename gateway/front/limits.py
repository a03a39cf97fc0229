"""Limits of one client's connection: how much may be on its way, and how long it may take.

    a handshake   HANDSHAKE_SECONDS, and bytes (gateway/security/tls.py)
    a head        MAX_HEAD_BYTES, MAX_HEADERS, and HEAD_SECONDS to arrive
    trailers      never headers (RFC 9110, section 6.5.1), and bounded as a head is
    chunks        extensions bounded as a head is
    a body        BODY_SECONDS, and BODY_BYTES_PER_SECOND after BODY_GRACE_SECONDS
    an answer     UNREAD_SECONDS in which the client takes none of it
    what follows  MAX_EARLY_BYTES while an answer is under way; then the socket is not read

How much all connections together may hold is `crowd.py`'s.
"""

from typing import Final

from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest

HANDSHAKE_SECONDS = 10.0
"""Of TLS, from when the connection is accepted."""

MAX_HEAD_BYTES = 64 << 10
"""Of one slice (SLICE_BYTES) more than that may be on its way when the bound is noticed."""

MAX_HEADERS = 128
HEAD_SECONDS = 30.0

BODY_SECONDS = 300.0
BODY_GRACE_SECONDS = 10.0
BODY_BYTES_PER_SECOND = 4096
"""On average, from the grace on: a telephone's modem has more, and 256 MB come in time at 7 Mbit/s."""

UNREAD_SECONDS = 60.0
LINGER_SECONDS = 5.0
"""How long a client may go on sending what has been refused."""

FAREWELL_SECONDS = 0.25
"""For the first request of a connection that had just come when the server began to end."""

MAX_EARLY_BYTES: Final = 64 << 10
"""Of requests that come before the answer to the one before them is out."""

MAX_EARLY_REQUESTS: Final = 100
"""Of those that one slice holds: behind so many the connection is closed, and a client asks again."""

SLICE_BYTES: Final = 16 << 10
"""Given to the parser in one turn of the event loop, but for bodies of a known length: 290 refusals, or
2,300 chunks, which take 10 ms."""

TLS_BUFFER_BYTES: Final = 64 << 10
"""At which TLS pauses the writer, as without it, and its own reading; of themselves loops take 512 and 256 KiB."""

FIRST_BYTES: Final = 2 << 10
"""Of a large read, in place of SLICE_BYTES, where others wait for a turn: most heads are in it."""

SMALL_BYTES: Final = 1 << 10
"""Smaller pieces of a body are joined as they come: a bytes object takes 33 bytes besides its own."""


def is_framed_well(headers: Headers) -> bool:
    """Whether a coding that we do not apply is absent; needless to ask with a Content-Length.

    llhttp, the parser beneath, refuses two lengths, and a length beside a coding. It takes
    "gzip, chunked", where a proxy before us may see another end of the message.
    """
    codings = [found.strip().lower() for name, found in headers if name == b"transfer-encoding"]
    return codings in ([], [b"chunked"])


def framing(headers: Headers) -> bytes:
    """The lines of a head that say where its body ends; none where it has no body."""
    names = (b"content-length", b"transfer-encoding")
    return b"".join(b"%b: %b\r\n" % header for header in headers if header[0] in names)


def check_host(headers: Headers) -> None:
    """Raises BadRequest where there are two: a proxy before us may have obeyed the other (RFC 9112, section 3.2)."""
    if sum(name == b"host" for name, _ in headers) > 1:
        raise BadRequest("a request has one Host header")
