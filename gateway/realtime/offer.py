"""Offer of a client: what its handshake says, in whatever way it may say it.

    key            Authorization: Bearer <key>, x-api-key, or, as browsers can set no header, a subprotocol
                   openai-insecure-api-key.<key> beside `realtime`
    subprotocols   go to the engine without the key; where the engine chooses none, `realtime` is chosen: a browser ends
                   a connection on which none was
    origin         a page of a browser, which has to be one that may call (cors_origins): WebSockets know no CORS, so any
                   page could open one to a gateway that asks for no key

Source: openai-node, realtime/websocket.ts ("openai-insecure-api-key."); RFC 6455, sections 4.2.1 and 10.2; WebSockets
Standard, "establish a WebSocket connection".
"""

import re
from dataclasses import dataclass
from typing import Final

from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import AUTHORIZATION, BEARER, KEY_HEADER
from pdgate.gateway.security.cors import Cors
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest, PermissionDenied

PROTOCOL: Final = b"sec-websocket-protocol"
KEY_PREFIX: Final = "openai-insecure-api-key."
USUAL: Final = "realtime"
MOST_SUBPROTOCOLS: Final = 16
_is_token: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_is_query: Final = re.compile(r"[!-~]*").fullmatch


@dataclass(frozen=True, slots=True)
class SocketOffer:
    """
    Attributes:
        headers: As if the key had come in its own header.
        subprotocols: Without the key.
    """

    headers: RequestHeaders
    subprotocols: tuple[str, ...]

    def chosen(self, by_engine: str) -> str:
        """Return the subprotocol for the client; empty for none."""
        if by_engine in self.subprotocols:
            return by_engine
        return USUAL if USUAL in self.subprotocols else ""


def offer_of(headers: Headers) -> SocketOffer:
    """Raises BadRequest."""
    said = [
        part.strip()
        for name, value in headers
        if name == PROTOCOL
        for part in value.decode("latin-1").split(",")
    ]
    found = tuple(part for part in said if part)
    if len(found) > MOST_SUBPROTOCOLS:
        raise BadRequest(f"more than {MOST_SUBPROTOCOLS} subprotocols", param=PROTOCOL.decode())
    if not all(_is_token(part) for part in found):
        raise BadRequest("a subprotocol is no token", param=PROTOCOL.decode())
    keys = [part.removeprefix(KEY_PREFIX) for part in found if part.startswith(KEY_PREFIX)]
    if len(keys) > 1:
        raise BadRequest("several subprotocols are API keys", param=PROTOCOL.decode())
    named = RequestHeaders(headers).named
    if keys and AUTHORIZATION not in named and KEY_HEADER not in named:
        headers = [*headers, (AUTHORIZATION, BEARER.title() + keys[0].encode("latin-1"))]
    open_ = tuple(part for part in found if not part.startswith(KEY_PREFIX))
    return SocketOffer(RequestHeaders(headers), open_)


def check_origin(headers: RequestHeaders, cors: Cors | None) -> None:
    """Raises PermissionDenied."""
    if b"origin" in headers.named and (cors is None or not cors.allows(headers.all)):
        raise PermissionDenied(
            "pages of this origin may not open sessions here: list it in cors_origins"
        )


def check_query(query: str) -> None:
    """Raises BadRequest for what no request could be made of."""
    if not _is_query(query):
        raise BadRequest("the query of the request cannot be read")
