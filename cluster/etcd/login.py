"""Login at an etcd that asks for one.

    request                       --> "user name is empty", or "invalid auth token"
    POST /v3/auth/authenticate    --> a token
    the request again, with it

So an etcd that asks for no login needs nothing, and one that begins to ask, or has forgotten its
tokens (they end with it, and after some minutes), is satisfied without a failure.

Source: etcd 3.4.23, etcdserver/api/v3rpc/rpctypes/error.go, and "gRPC gateway: authentication"
in its documentation; tokens live for --auth-token-ttl, 300 s.
"""

from dataclasses import dataclass, field
from typing import Any

from pdgate.cluster import secret
from pdgate.cluster.etcd.wire import Body, EtcdError, message

_ASKS = ("user name is empty", "invalid auth token", "revision of auth store is old")


@dataclass(frozen=True, slots=True)
class Login:
    """
    Attributes:
        password: In no `repr`, so that no log or traceback has it.
    """

    name: str
    password: str = field(repr=False)

    def body(self) -> Body:
        return {"name": self.name, "password": self.password}


def read(path: str) -> Login | None:
    """Read a file with name:password, as etcdctl takes it; None for no file. Raise ValueError."""
    if not path:
        return None
    name, colon, password = secret.read(path).partition(":")
    if not (name and colon and password):
        raise ValueError(f"{path} must hold name:password")
    return Login(name, password)


def asks(answer: Any) -> bool:
    """Whether an answer that is not 200 wants to know who we are."""
    if not isinstance(answer, dict):
        return False
    said = message(answer.get("error", answer))
    return any(one in said for one in _ASKS)


def token(answer: Body) -> str:
    """Raises EtcdError."""
    found = answer.get("token")
    if not isinstance(found, str) or not found.isascii() or not found.isprintable():
        raise EtcdError("etcd answered a login without a token")
    return found
