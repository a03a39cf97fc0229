"""Credentials of the gateway at engines: TLS, and a key of their own if they ask for one.

Calls use it through the upstream client; whatever else asks engines something (probes, their
metrics) takes its way there from here, so that no path forgets it.
"""

import ssl
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from pdgate.gateway.upstream.one_shot import AskFailed, OneShotClient
from pdgate.gateway.upstream.pool import UrlTarget

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """
    Attributes:
        tls: For https URLs; None for the system's certificates.
        server_name: In the engines' certificates, where it is not the host of their URL.
        authorization: The value of that header; empty for none.
    """

    tls: ssl.SSLContext | None = None
    server_name: str = ""
    authorization: str = field(default="", repr=False)

    def visit(self, url: str) -> OneShotClient:
        """Client for what the gateway asks in passing; `url` is the engine's. Raise AskFailed."""
        try:
            target = UrlTarget(url, self.authorization)
        except ValueError as error:
            raise AskFailed(f"{url!r}: {error}") from None
        tls = (self.tls or _usual_authorities()) if target.secure else None
        return OneShotClient(target, tls, self.server_name)

    def client(self, **options: Any) -> "httpx2.AsyncClient":
        """Client for commands; `options` are httpx2's own. No proxy stands between it and engines."""
        # A gateway that serves does without it, and is 4 MB smaller.
        import httpx2

        headers = {"authorization": self.authorization} if self.authorization else {}
        hooks = {"request": [self._name_server]} if self.server_name else {}
        return httpx2.AsyncClient(
            verify=self.tls or _usual_authorities(),
            headers=headers,
            event_hooks=hooks,
            trust_env=False,
            **options,
        )

    async def _name_server(self, request: "httpx2.Request") -> None:
        request.extensions = {**request.extensions, "sni_hostname": self.server_name}


@cache
def _usual_authorities() -> ssl.SSLContext:
    """Read once: reading them takes longer than all else of making a client."""
    return ssl.create_default_context()


OPEN = EngineAccess()
"""To engines that ask for nothing."""
