"""CORS: the web pages that may call from a browser; none, unless their origin is listed.

Starlette answers what is asked before a call (preflight), and all routes but the hot ones; those
two say the same by `headers_for`. No credentials of the browser are allowed: a page has its key.

Source: Fetch Standard, "CORS protocol".
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Message, Send

from pdgate.protocols.call import Headers

ANY = "*"
EXPOSED = (
    "retry-after", "x-request-id", "x-should-retry", "x-pd-path", "x-pd-model",
    *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
)  # fmt: skip
"""What the gateway itself says to clients; a page may read no other header, unless it is named here."""
METHODS = ("GET", "POST", "DELETE")
"""The last one is for files."""


class Cors:
    def __init__(self, origins: frozenset[str], more: Iterable[bytes] = ()) -> None:
        """`origins` as `origins_of` has them. `more`: names of engines' headers that clients get."""
        self._origins = origins
        self._names = (*EXPOSED, *sorted(name.decode() for name in more))
        self._allowed = {origin.encode() for origin in origins}
        self._exposed = (b"access-control-expose-headers", ", ".join(self._names).encode())

    def add_to(self, app: Starlette) -> None:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(self._origins),
            allow_methods=METHODS,
            allow_headers=["*"],
            expose_headers=self._names,
        )

    def allows(self, request: Headers) -> bool:
        """Whether all origins that a request names are among them."""
        named = {found for name, found in request if name == b"origin"}
        return b"*" in self._allowed or named <= self._allowed

    def headers_for(self, request: Headers) -> Headers:
        """What the answer to a request with these headers says besides."""
        if b"*" in self._allowed:
            return ((b"access-control-allow-origin", b"*"), self._exposed)
        # Caches must not give one page's answer to another.
        vary = (b"vary", b"origin")
        for name, found in request:
            if name == b"origin" and found in self._allowed:
                return ((b"access-control-allow-origin", found), self._exposed, vary)
        return (vary,)

    def sending(self, request: Headers, send: Send) -> Send:
        """`send`, with these headers in the head."""
        more = self.headers_for(request)

        async def with_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, found in more:
                    headers.append(name.decode(), found.decode("latin-1"))
            await send(message)

        return with_more


def origins_of(text: str) -> frozenset[str]:
    """Origins between commas, as browsers say them: scheme://host[:port], or *. Raise ValueError."""
    found = {part.strip() for part in text.split(",") if part.strip()}
    for origin in found - {ANY}:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
            raise ValueError(f"{origin!r} is not an origin like https://example.com")
    return frozenset(found)
