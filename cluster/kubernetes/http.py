"""Requests to Kubernetes' API server. Every failure is a KubernetesError with a sentence.

Made anew for each watch, so that certificates that were replaced are read, and watches spread
over the servers behind one address. The token is read at each request.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

import httpx2

from pdgate.cluster import bounded
from pdgate.cluster.kubernetes import wire
from pdgate.cluster.kubernetes.access import KubernetesAccess
from pdgate.cluster.kubernetes.wire import KubernetesError, WatchInterrupted

REQUEST_SECONDS: Final = 5.0
LONGEST_LINE: Final = 4 << 20
"""Bytes of one event. A slice has 1,000 endpoints at most, and etcd takes no object above 1.5 MB."""
LONGEST_LIST: Final = 8 << 20
"""Bytes of all slices: 20,000 endpoints, which are read in 30 ms."""
LONGEST_REFUSAL: Final = 64 << 10

KEEP_ALIVE: Final = (
    # A watch says nothing for minutes, so the kernel asks whether the server's is still there.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class KubernetesHttp:
    """`async with` it."""

    def __init__(self, access: KubernetesAccess, request_seconds: float = REQUEST_SECONDS) -> None:
        """Raises KubernetesError for certificates that cannot be read."""
        self._access = access
        self._path = f"{access.url}{wire.path(access.namespace)}"
        self._request_seconds = request_seconds
        try:
            trust = access.trust()
        except OSError as error:
            raise KubernetesError(f"{access.ca_file}: {error}") from None
        # A proxy from the environment has no place between a cluster and its API.
        transport = httpx2.AsyncHTTPTransport(
            verify=trust, trust_env=False, socket_options=KEEP_ALIVE
        )
        self._client = httpx2.AsyncClient(
            timeout=request_seconds, trust_env=False, transport=transport
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def contents(self) -> wire.KubernetesContents:
        """All slices as they are now. Raises KubernetesError."""
        return wire.contents(await self._get(wire.listing(self._access.selector)))

    async def is_well(self) -> None:
        """Raises KubernetesError unless the server answers, and has its store."""
        await self._get(wire.one())

    @asynccontextmanager
    async def watch(self, version: str, seconds: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of a watch from there on. Raises WatchInterrupted, KubernetesError."""
        query = wire.watching(self._access.selector, version, seconds)
        # Nothing happens for minutes, so that silence is no failure: others look after it.
        timeout = httpx2.Timeout(self._request_seconds, read=None)
        stands = False
        try:
            async with self._client.stream(
                "GET", f"{self._path}?{query}", headers=self._headers(), timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    raise await self._refusal(answer)
                stands = True
                yield bounded.lines(answer.aiter_bytes(), LONGEST_LINE)
        except bounded.TooLong as error:
            raise WatchInterrupted(f"{self._access.url}: {error}") from None
        except httpx2.HTTPError as error:
            failed = self._failed(error)
            raise WatchInterrupted(str(failed)) if stands else failed from None

    async def read(self, path: str, query: str, most_bytes: int) -> bytes:
        """Any object or list of the API. Raises KubernetesError."""
        url = f"{self._access.url}{path}"
        return await self._whole(f"{url}?{query}" if query else url, most_bytes)

    async def _get(self, query: str) -> bytes:
        return await self._whole(f"{self._path}?{query}", LONGEST_LIST)

    async def _whole(self, url: str, most_bytes: int) -> bytes:
        try:
            async with self._client.stream("GET", url, headers=self._headers()) as answer:
                if answer.status_code != 200:
                    raise await self._refusal(answer)
                return await bounded.whole(answer.aiter_bytes(), most_bytes)
        except bounded.TooLong as error:
            raise KubernetesError(f"{self._access.url}: {error}") from None
        except httpx2.HTTPError as error:
            raise self._failed(error) from None

    async def _refusal(self, answer: httpx2.Response) -> KubernetesError:
        body = bytearray()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > LONGEST_REFUSAL:
                break
        try:
            said = bounded.parsed(bytes(body))
        except ValueError:
            # Not from the API server, but from something before it.
            said = None
        retry_after = answer.headers.get("retry-after", "")
        wait_seconds = float(retry_after) if retry_after.isdecimal() else 0.0
        refusal = wire.refusal(answer.status_code, said, wait_seconds)
        refusal.args = (f"{self._access.url}: {refusal}",)
        return refusal

    def _headers(self) -> dict[str, str]:
        try:
            return {"accept": "application/json", **self._access.headers()}
        except ValueError as error:
            raise KubernetesError(str(error)) from None

    def _failed(self, error: httpx2.HTTPError) -> KubernetesError:
        return KubernetesError(f"{self._access.url}: {type(error).__name__} {error}".rstrip())
