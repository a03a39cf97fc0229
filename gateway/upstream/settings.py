"""Settings of the way to the engines."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from pdgate.gateway.deadlines import Timeouts

# Of what the client sent, engines get these and no others: cookies, proxies' additions
# and hop-by-hop headers are not for them.
FORWARDED = frozenset(
    {
        b"authorization",
        b"openai-organization",
        b"openai-project",
        b"traceparent",
        b"tracestate",
        b"x-data-parallel-rank",
        b"x-priority",
        b"x-session-id",
    }
)


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """
    Attributes:
        timeouts_of: For calls of a model; `timeouts` for all others.
        keep_idle_seconds: Unused connections are closed after this time. Less than the
            engine's own limit (uvicorn: 5 s), or it closes while we send.
        forwarded: Names, in lower case, of the client's headers that engines get.
        max_reply_bytes: Limit of an answer that is read as a whole.
        tls: For https URLs; None for the system's certificates.
        server_name: In the engines' certificates, where it is not the host of their URL.
        authorization: Value of that header, for every engine; empty for none of our own.
    """

    timeouts: Timeouts = field(default_factory=Timeouts)
    timeouts_of: Mapping[str | None, Timeouts] = field(default_factory=dict)
    keep_idle_seconds: float = 4.0
    forwarded: frozenset[bytes] = FORWARDED
    max_reply_bytes: int = 16 << 20
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    authorization: str = field(default="", repr=False)
