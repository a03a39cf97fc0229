"""Requests to etcd's HTTP gateway: a member that does not answer gives way to the next.

Every failure is an EtcdError with a sentence for operators. httpx2 is right here: there are few
requests, and a watch is one long answer.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx2

from pdgate.cluster import bounded
from pdgate.cluster.directory import MOST_ENTRIES
from pdgate.cluster.etcd import wire
from pdgate.cluster.etcd.access import EtcdAccess
from pdgate.cluster.etcd.login import Login, asks, token
from pdgate.cluster.etcd.wire import Body, EtcdError

REQUEST_SECONDS = 2.0
TOKEN_HEADER = "authorization"
LONGEST_ANSWER = 8 << 20
"""Bytes of all entries, or of one event; it is read in 20 ms."""
GATEWAY_OFF = "is etcd's HTTP gateway off (enable-grpc-gateway)?"


class EtcdHttp:
    """A client for one task at a time; `async with` it.

    Attributes:
        endpoint: The member that is asked now.
    """

    def __init__(self, access: EtcdAccess, request_seconds: float = REQUEST_SECONDS) -> None:
        """Raises OSError for certificates that cannot be read."""
        self._endpoints = list(access.endpoints)
        self._login = access.login
        self._at = 0
        self._request_seconds = request_seconds
        # A proxy from the environment has no place between a cluster and its store.
        self._client = httpx2.AsyncClient(
            timeout=request_seconds, trust_env=False, verify=access.trust()
        )

    @property
    def endpoint(self) -> str:
        return self._endpoints[self._at]

    def try_next(self) -> None:
        """The member that was asked has failed."""
        self._at = (self._at + 1) % len(self._endpoints)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def entries(self, prefix: str, revision: int = 0) -> wire.EtcdContents:
        """Entries as they are now, or were at that revision. Raise NotThere, EtcdError."""
        # One more than is read, so that there are more can be said.
        body = wire.listing(prefix, revision, MOST_ENTRIES + 1)
        return wire.contents(await self._ask("/v3/kv/range", body))

    async def is_well(self, prefix: str) -> None:
        """Raises EtcdError unless a majority of the cluster answers through this member."""
        # A read that is linearizable, as reads are unless one asks for less, needs a majority.
        await self._ask("/v3/kv/range", {**wire.folder(prefix), "count_only": True})

    async def put(self, key: str, value: bytes, lease: str, instead_of: Sequence[str] = ()) -> int:
        """The revision of it. Those keys go in the same step. Raises LeaseGone, EtcdError."""
        if instead_of:
            said = await self._ask("/v3/kv/txn", wire.put_instead(key, value, lease, instead_of))
        else:
            said = await self._ask("/v3/kv/put", wire.put(key, value, lease))
        return wire.revision(said)

    async def grant(self, seconds: int) -> str:
        """A new lease."""
        return wire.lease_granted(await self._ask("/v3/lease/grant", {"TTL": str(seconds)}))

    async def keep_alive(self, lease: str) -> int:
        """The revision that the store was at. Raises LeaseGone, EtcdError."""
        return wire.lease_kept(await self._ask("/v3/lease/keepalive", {"ID": lease}))

    async def revoke(self, lease: str) -> None:
        """Ends the lease and its entries. Raises LeaseGone if they had ended, EtcdError."""
        await self._ask("/v3/lease/revoke", {"ID": lease})

    @asynccontextmanager
    async def watch(self, prefix: str, revision: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch; they end only with the connection. They raise TooLong, EtcdError."""
        # Nothing happens for hours, so that silence is no failure: others must look after it.
        timeout = httpx2.Timeout(self._request_seconds, read=None)
        body = wire.watch(prefix, revision)
        try:
            async with self._client.stream(
                "POST", f"{self.endpoint}/v3/watch", json=body, timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    raise EtcdError(f"{self.endpoint} answered {answer.status_code} to a watch")
                yield bounded.lines(answer.aiter_bytes(), LONGEST_ANSWER)
        except httpx2.HTTPError as error:
            raise self._failed(error) from None

    async def _ask(self, path: str, body: Body) -> Body:
        status, said = await self._post(path, body)
        if status != 200 and self._login is not None and asks(said):
            await self._log_in(self._login)
            status, said = await self._post(path, body)
        if status != 200:
            raise wire.refusal(said)
        return said

    async def _log_in(self, login: Login) -> None:
        # A token that is no longer good would be refused here, too.
        self._client.headers.pop(TOKEN_HEADER, None)
        status, said = await self._post("/v3/auth/authenticate", login.body())
        if status != 200:
            raise wire.refusal(said)
        self._client.headers[TOKEN_HEADER] = token(said)

    async def _post(self, path: str, body: Body) -> tuple[int, Body]:
        """Status and what was said. Raises EtcdError."""
        try:
            async with self._client.stream("POST", f"{self.endpoint}{path}", json=body) as answer:
                text = await bounded.whole(answer.aiter_bytes(), LONGEST_ANSWER)
        except httpx2.HTTPError as error:
            raise self._failed(error) from None
        except bounded.TooLong as error:
            raise EtcdError(f"{self.endpoint}: {error}") from None
        try:
            said: Any = bounded.parsed(text)
        except ValueError:
            said = None
        if answer.status_code == 404 and not isinstance(said, dict):
            raise EtcdError(f"{self.endpoint} has no {path}: {GATEWAY_OFF}")
        if not isinstance(said, dict):
            raise EtcdError(f"{self.endpoint} answered {answer.status_code} and no JSON object")
        return answer.status_code, said

    def _failed(self, error: httpx2.HTTPError) -> EtcdError:
        return EtcdError(f"{self.endpoint}: {type(error).__name__} {error}".rstrip())
