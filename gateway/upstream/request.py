"""Requests to engines: one leg on its way, and the head that it is sent with.

    POST <base path><leg path> HTTP/1.1                   another method where the leg passes one
    host, content-type, x-request-id, content-length      always
    authorization                                         if engines have a key of their own
    x-data-parallel-rank                                  if the instance is one rank
    the leg's own headers
    the client's headers on the allow-list                unless one above has the name

Everything up to the request id is the same for all calls to a URL and path, and is
built once.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from pdgate.forwarders.base import Leg
from pdgate.protocols.call import Call, Passed, encode

RANK: Final = b"x-data-parallel-rank"
# These say where a message ends or goes: a leg that could set them could split it.
FRAMING: Final = frozenset(
    {b"connection", b"content-length", b"content-type", b"host", b"transfer-encoding", b"upgrade"}
)
MAX_KNOWN_PATHS: Final = 64

_OF_QUESTIONS: Final = ("accept-encoding: identity", "user-agent: pdgate")
"""Compressing an answer would cost the engine more than the network costs us."""

_POST: Final = Passed("POST", content_type=b"application/json")

_breaks_line = re.compile(rb"[\r\n\0]").search
_is_path = re.compile(r"/[!-~]*").fullmatch
_is_name = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch


class Asking:
    """One leg on its way: what is asked, of which engine, for which call, and how long it may take.

    Attributes:
        body: As it is sent.
        seconds: Until the first byte of the body.
        idle_seconds: Between two of its pieces.
        behind: The id of the engine that reads its prompt; empty for none but the leg's own.
        loads: That engine has read it.
        for_client: Its answer is the client's, as it comes, and not one that is read here.
    """

    __slots__ = (
        "behind", "body", "call", "for_client", "idle_seconds", "leg", "loads", "seconds",
    )  # fmt: skip

    def __init__(
        self,
        leg: Leg,
        call: Call,
        seconds: float | None,
        idle_seconds: float | None,
        behind: str = "",
        loads: bool = False,
        for_client: bool = False,
    ) -> None:
        self.leg = leg
        self.call = call
        self.body = encode(leg.body) if leg.passed is None else leg.passed.body
        self.seconds = seconds
        self.idle_seconds = idle_seconds
        self.behind = behind
        self.loads = loads
        self.for_client = for_client

    @property
    def streams(self) -> bool:
        return self.call.streams

    @property
    def prompt_tokens(self) -> int:
        return self.call.prompt_tokens


class Target:
    """Where the requests for one URL go. Raises ValueError for a URL that is none.

    Attributes:
        host: Without the brackets of an IPv6 address.
        secure: TLS is spoken.
    """

    __slots__ = ("_authority", "_base", "_known", "_line_ends", "_own", "host", "port", "secure")

    def __init__(self, url: str, authorization: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an http or https URL")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname
        default_port = 443 if self.secure else 80
        self.port = parts.port or default_port
        host = f"[{self.host}]" if ":" in self.host else self.host
        authority = host if self.port == default_port else f"{host}:{self.port}"
        self._authority = authority.encode("ascii")
        self._base = parts.path.rstrip("/")
        if _breaks_line(authorization.encode("ascii")):
            raise ValueError("a line break in the authorization")
        # Built once with the constant part; no leg and no client can say it as well.
        self._own = f"authorization: {authorization}\r\n".encode("ascii") if authorization else b""
        # Of the constant part: the request line, host, content-type and perhaps the line above.
        self._line_ends = 4 if authorization else 3
        self._known: dict[str, str] = {}

    def head(self, leg: Leg, call: Call, body_bytes: int, forwarded: frozenset[bytes]) -> bytes:
        """Raises ValueError if the leg holds what no header line can."""
        usual = leg.passed is None
        if usual and not (
            leg.request_id or leg.headers or call.headers or leg.to.dp_rank is not None
        ):
            # Most legs. Of the call's own id it is known that it breaks no line. Text is formatted in half the time.
            begin = self._known.get(leg.path) or self._start(leg.path)
            return f"{begin}{call.attempt_id}\r\ncontent-length: {body_bytes}\r\n\r\n".encode(
                "ascii"
            )
        start = self._start_of(leg.path, leg.passed or _POST)
        request_id = (leg.request_id or call.attempt_id).encode("latin-1")
        lines = [start + request_id, b"content-length: %d" % body_bytes]
        taken = {b"authorization"} if self._own else set()
        for text, value in leg.headers.items():
            name = text.lower().encode("latin-1")
            if name in FRAMING or not _is_name(name):
                raise ValueError(f"a leg cannot set the header {text!r}")
            if self._own and name == b"authorization":
                continue
            taken.add(name)
            lines.append(b"%b: %b" % (name, value.encode("latin-1")))
        if leg.to.dp_rank is not None and RANK not in taken:
            taken.add(RANK)
            lines.append(b"%b: %d" % (RANK, leg.to.dp_rank))
        for header, content in call.headers:
            if header in forwarded and header not in taken and not _breaks_line(content):
                lines.append(header + b": " + content)
        head = b"\r\n".join(lines)
        # The first element has the constant part. More line ends than lines mean that a value brought its own.
        ends = len(lines) - 1 + self._line_ends
        # A number, as bytes are taken for one first, and an exception raised to find that they are none.
        if head.count(b"\n") != ends or head.count(b"\r") != ends or 0 in head:
            raise ValueError("a header of the leg holds a line break")
        return head + b"\r\n\r\n"

    def question(self, method: str, path: str, lines: Sequence[str]) -> bytes:
        """The head of a request that is no call, with these lines of ours."""
        whole = self._base + path
        if not _is_path(whole):
            raise ValueError(f"{whole!r} is not a path")
        start = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (
            method.encode(),
            whole.encode(),
            self._authority,
        )
        more = "\r\n".join((*_OF_QUESTIONS, *lines)).encode("ascii")
        return start + self._own + more + b"\r\n\r\n"

    def _start(self, path: str) -> str:
        """The constant part, up to the value of x-request-id."""
        filled = self._start_of(path, _POST).decode("ascii")
        if len(self._known) < MAX_KNOWN_PATHS:
            self._known[path] = filled
        return filled

    def _start_of(self, path: str, passed: Passed) -> bytes:
        """Up to the value of x-request-id, for a request that need not be a call."""
        whole = self._base + path
        method, content_type = passed.method.encode("ascii"), passed.content_type
        if not _is_path(whole) or not _is_name(method):
            raise ValueError("not a path, or not a method")
        if _breaks_line(content_type):
            raise ValueError("a line break in the content type")
        start = b"%b %b HTTP/1.1\r\nhost: %b\r\ncontent-type: %b\r\n%bx-request-id: "
        return start % (method, whole.encode("ascii"), self._authority, content_type, self._own)
