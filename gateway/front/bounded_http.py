"""uvicorn's HTTP/1.1 protocol with bounds that it lacks, for both front ends.

    a head        MAX_HEAD_BYTES, MAX_HEADERS, and HEAD_SECONDS to arrive
    trailers      never headers (RFC 9110, section 6.5.1), and bounded as a head is
    chunks        extensions bounded as a head is
    framing       Content-Length, or Transfer-Encoding: chunked said once, and nothing else

llhttp, the parser beneath, refuses what it can know to be wrong: two lengths, a length and a
coding, spaces before colons, folded lines, bare CR and LF, control characters. It takes a coding
that it does not apply ("gzip, chunked"), where somebody in front of us may see another end of
the message, and it sets no bound to anything.

Source: uvicorn 0.54, protocols/http/httptools_impl.py; llhttp 9 by httptools 0.9.
"""

import asyncio
from typing import Any, NoReturn

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pdgate.gateway import errors
from pdgate.gateway.front.head_lines import CLOSE, head_lines
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest, GatewayError, HeadTooLarge

MAX_HEAD_BYTES = 64 << 10
"""Of one read more than that may be on its way when the bound is noticed."""

MAX_HEADERS = 128
HEAD_SECONDS = 30.0

FAREWELL_SECONDS = 0.25
"""For the first request of a connection that had just come when the server began to end."""


class BoundedHttp(HttpToolsProtocol):
    """One client connection. It is closed after every refusal.

    Attributes:
        refusal: What `send_400_response` says, where it is not just that this is no HTTP.
    """

    # With ours in slots, uvicorn's are few enough (30) to share one table of names, which costs a
    # connection a kilobyte less.
    __slots__ = (
        "_farewell",
        "_head_since",
        "_head_timer",
        "_loose_bytes",
        "_read",
        "_read_bytes",
        "refusal",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.refusal: GatewayError | None = None
        # Read since the last piece of a body: of a head, of trailers or of chunk extensions.
        self._loose_bytes = 0
        self._read_bytes = 0
        # What the parser is reading, until the first request in it is over.
        self._read = b""
        self._head_since: float | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._farewell: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_since = self.loop.time()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._look_at_head)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        if self._farewell is not None:
            self._farewell.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server ends: no request is begun after this, but one may be on its way.

        Whoever has only just been accepted has seen nothing of an end, and would be cut off; those
        who have had an answer know that a connection that was kept can be gone.
        """
        if self.cycle is None and self._farewell is None:
            self._farewell = self.loop.call_later(FAREWELL_SECONDS, super().shutdown)
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self.refusal is not None:
            # There is nothing more to say; an answer under way may still be.
            return
        self._read = data
        self._read_bytes = len(data)
        self._loose_bytes += self._read_bytes
        super().data_received(data)
        self._read = b""
        if self._loose_bytes > MAX_HEAD_BYTES:
            self.refuse(HeadTooLarge(f"the head is larger than {MAX_HEAD_BYTES} bytes"))

    def head_begins(self) -> None:
        self._loose_bytes = 0
        self._head_since = self.loop.time()

    def head_ends(self) -> None:
        """Raises HeadTooLarge."""
        self._head_since = None
        headers = self.headers
        if len(headers) > MAX_HEADERS:
            self.stop(HeadTooLarge(f"there are more than {MAX_HEADERS} headers"))
        # Most heads come in one small read, which also says that they are small.
        if self._loose_bytes + self._read_bytes > MAX_HEAD_BYTES:
            length = sum(len(name) + len(found) + 4 for name, found in headers) + len(self.url)
            if length > MAX_HEAD_BYTES:
                self.stop(HeadTooLarge(f"the head is larger than {MAX_HEAD_BYTES} bytes"))
        self._loose_bytes = 0

    def check_framing(self, headers: Headers) -> None:
        """Raises BadRequest for a coding that we do not apply; needless with a Content-Length."""
        codings = [found.strip().lower() for name, found in headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            self.stop(BadRequest("the transfer encoding must be chunked, and that alone"))

    def leave_trailers(self) -> None:
        """The headers are whole: what the parser still finds goes to a list that nobody reads."""
        self.headers = []

    def body_goes_on(self) -> None:
        self._loose_bytes = 0

    def stop(self, error: GatewayError) -> NoReturn:
        """From within the parser, which tells `data_received`, which tells `send_400_response`."""
        self.refusal = error
        raise error

    def refuse(self, error: GatewayError) -> None:
        self.refusal = error
        if not self.transport.is_closing():
            self.send_400_response(str(error))

    # uvicorn's parser and server call these.

    def on_message_begin(self) -> None:
        self.head_begins()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self.head_ends()
        self.check_framing(self.headers)
        if self.parser.get_http_version() == "0.9":
            self.stop(BadRequest("HTTP/0.9 is not spoken here"))
        super().on_headers_complete()
        self.leave_trailers()

    def on_body(self, body: bytes) -> None:
        self.body_goes_on()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._read = b""
        self.body_goes_on()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        status, headers, body = errors.as_response(self.refusal or BadRequest(msg))
        self.transport.write(head_lines(status, headers, CLOSE) + body)
        self.transport.close()

    def _look_at_head(self) -> None:
        """One timer for the life of a connection, so that heads that come in time cost none."""
        since = self._head_since
        # Who begins the next request early is not to lose the answer to this one.
        answering = self.cycle is not None and not self.cycle.response_complete
        waited = 0.0 if since is None or answering else self.loop.time() - since
        left = HEAD_SECONDS - waited
        if left > 0:
            self._head_timer = self.loop.call_later(left, self._look_at_head)
        else:
            self.transport.close()
