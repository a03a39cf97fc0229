"""The fast front end: uvicorn's own protocol class takes the hot POSTs.

    socket -- HotProtocol --hot POST--> HotCycle --> service
                  '--everything else--> uvicorn --> ASGI (asgi.Front --> FastAPI)

No scope, no receive and send, one task a call; pieces of an answer go from the engine's
socket to the client's by callback, and head and first event leave in one write, which
ASGI cannot do. It leans on names inside uvicorn (`NEEDED`), so a uvicorn that lacks
them, or is outside the tested range, gets the ASGI front end alone, and the log says so.
"""

import asyncio
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pdgate.gateway import errors
from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.bounded_http import BoundedHttp
from pdgate.gateway.front.head_lines import CLOSE, head_lines
from pdgate.gateway.front.hot_cycle import HotCycle
from pdgate.gateway.front.light import LightFlow, LightPipeline
from pdgate.gateway.intake import TAKEN
from pdgate.protocols.errors import BadRequest

TESTED = ((0, 40), (0, 55))
"""uvicorn from the first version on, below the second."""

NEEDED = (
    "connection_lost",
    "on_body",
    "on_header",
    "on_headers_complete",
    "on_message_begin",
    "on_message_complete",
    "on_response_complete",
    "on_url",
    "pause_writing",
    "resume_writing",
    "send_400_response",
)

_FIRST_LINES: Final = {path.encode(): f"POST {path} HTTP/1.1\r\n".encode() for path in TAKEN}
"""Of the requests that are hot, by their targets."""


def why_not() -> str | None:
    """Why this uvicorn cannot carry the fast front end; None if it can."""
    version = tuple(int(part) for part in uvicorn.__version__.split(".")[:2])
    if not TESTED[0] <= version < TESTED[1]:
        return f"uvicorn {uvicorn.__version__} is not among the tested versions"
    missing = [name for name in NEEDED if not hasattr(HttpToolsProtocol, name)]
    return f"uvicorn's protocol has no {', '.join(missing)}" if missing else None


class HotProtocol(BoundedHttp):
    """One client connection."""

    __slots__ = ("_first_lines", "_hot", "_idle_since", "_idle_timer", "front")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        front = self.config.loaded_app
        if not isinstance(front, Front):
            raise TypeError("HotProtocol serves pdgate's Front only, with no middleware around it")
        self.front = front
        # Not always uvicorn's `cycle`, which is the last of those that were pipelined.
        self._hot: HotCycle | None = None
        # None while a request is on its way in or is served.
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._first_lines = _FIRST_LINES
        self.pipeline = LightPipeline()  # type: ignore[assignment]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flow = LightFlow(transport)
        assert self.server is not None
        if self.server[1] == self.front.admin_port:
            self._first_lines = {}

    def on_message_begin(self) -> None:
        # uvicorn makes an ASGI scope here; a hot call needs none.
        self.head_begins()
        self._idle_since = None
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        if self._is_hot():
            self.head_ends()
            self._hot = HotCycle(self)
            # The names that uvicorn reads of a cycle are there.
            self.cycle = self._hot  # type: ignore[assignment]
            self._hot.begin()
            self.leave_trailers()
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            self.body_goes_on()
            cycle.more_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if isinstance(cycle, HotCycle):
            self._read = b""
            self.body_goes_on()
            cycle.whole_body()
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hot is not None:
            self._hot.client_left()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def on_hot_complete(self) -> None:
        """As on_response_complete, but a timer outlives the calls instead of one for each."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        # uvicorn has a timer of its own after a request that was its own.
        if self._idle_since is None or self.timeout_keep_alive_task is not None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._close_if_idle)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._hot is not None:
            self._hot.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._hot is not None:
            self._hot.resume()

    def send_400_response(self, msg: str) -> None:
        for cycle in (self._hot, self.cycle):
            if cycle is not None and _is_whole(cycle) and not cycle.response_complete:
                # That request was good: it is answered, and nothing after it is.
                cycle.keep_alive = False
                return
        if isinstance(self.cycle, HotCycle) and self.cycle.turned_away:
            # It has its answer.
            self.transport.close()
            return
        status, headers, body = errors.as_response(self.refusal or BadRequest(msg))
        self.transport.write(head_lines(status, headers, CLOSE) + body)
        self.transport.close()

    def _is_hot(self) -> bool:
        """Pipelined and HTTP/1.0 requests are rare, so uvicorn may have them."""
        line = self._first_lines.get(self.url)
        if line is None or not (self.cycle is None or self.cycle.response_complete):
            return False
        if not self._read.startswith(line):
            # To ask the parser costs more.
            parser = self.parser
            if parser.get_method() != b"POST" or parser.get_http_version() != "1.1":
                return False
        return not self.parser.should_upgrade()


def _is_whole(cycle: HotCycle | RequestResponseCycle) -> bool:
    """The request has been read to its end."""
    return cycle.asked if isinstance(cycle, HotCycle) else not cycle.more_body
