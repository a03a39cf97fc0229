"""The admin listener: which routes are where, when the admin routes have a port of their own.

    admin listener    /admin/*, /debug/*     for who knows the token, as are /workers and what controls engines
                      /console, /health, /ready, /metrics
    main listener     all but /admin/*, /debug/* and /console, and /metrics only if it is wanted there

Every worker serves both sockets, which the parent opened; any of them takes a change, and tells
the others of it as it does without this (gateway/sync/). The two have different ports, and the port
at which a connection arrived is the operating system's word, not the client's.
"""

from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from pdgate.gateway import errors
from pdgate.gateway.control.wire import PATHS
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols.errors import GatewayError, NotFound

FOR_ADMINS = ("/admin/", "/debug/", "/workers/")
CONTROL = PATHS | {"/workers"}
ON_BOTH = frozenset({"/health", "/ready"})
METRICS = "/metrics"
CONSOLE = "/console"
"""Its files are no secret; what it shows is at /admin/."""


class Listeners:
    """Stands before the application that has all of these routes."""

    def __init__(
        self,
        app: ASGIApp,
        admin_port: int,
        check: Callable[[Request], None],
        call_id: Callable[[RequestHeaders], str],
        *,
        metrics_on_main: bool = True,
    ) -> None:
        """`check` raises Unauthorized; `call_id` names what is refused."""
        self._app = app
        self._admin_port = admin_port
        self._check = check
        self._call_id = call_id
        self._metrics_on_main = metrics_on_main

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._judge(scope)
            except GatewayError as error:
                status, headers, body = errors.as_response(
                    error, self._call_id(RequestHeaders(scope["headers"]))
                )
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope) -> None:
        """Raises NotFound, Unauthorized."""
        path = scope["path"]
        if path in ON_BOTH:
            return
        if scope["server"][1] != self._admin_port:
            hidden = _is_for_admins(path) or (path == METRICS and not self._metrics_on_main)
            hidden = hidden or _is_console(path)
        else:
            hidden = path != METRICS and not _is_for_admins(path) and not _is_console(path)
        if hidden:
            raise NotFound(f"{scope['method']} {path}: Not Found")
        if _is_for_admins(path):
            self._check(Request(scope))


def _is_for_admins(path: str) -> bool:
    return path.startswith(FOR_ADMINS) or path in CONTROL


def _is_console(path: str) -> bool:
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")
