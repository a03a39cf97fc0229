"""A directory made of what names resolve to: all addresses of a name are engines of one role.

    Dns(prefill="prefill.svc:8100", decode="decode.svc:8200,more.example:8200")
    Dns(prefill="_api._tcp.prefill.svc", decode="_api._tcp.decode.svc")

As a headless Service of Kubernetes, Consul or docker compose give it: A and AAAA records, asked
again and again, by the system's own resolver. Role and port are said here, as the records
have room for neither. A name that begins with "_" and has no port is one of SRV records, which
have ports and host names; these take a DNS library, and its own idea of resolv.conf (srv.py).

    an address      --> an engine
    no such name    --> no engine: a Service without a ready pod looks so
    no answer       --> Lost: what was known stays
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from pdgate.cluster import address
from pdgate.cluster.member import FOLDER
from pdgate.cluster.polled import Polled, Seen, Unseen
from pdgate.protocols.instance import Role

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Name and port -> IP addresses; raises Unseen."""

Servers = Callable[[str], Awaitable[Sequence[tuple[str, int]]]]
"""Name of SRV records -> host names and ports; raises Unseen."""

EVERY_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0

# What the resolver says of a name that has no address. Some systems lack the second.
NO_ADDRESS: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


class Dns(Polled):
    def __init__(
        self,
        resolve: Resolve | None = None,
        servers: Servers | None = None,
        *,
        prefill: str = "",
        decode: str = "",
        both: str = "",
        plain: str = "",
        protocol: str = "",
        model: str = "",
        kv_port: int = 0,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """Names as name:port, or of SRV records, several between commas.

        `resolve`: the system's resolver unless another is given. `servers`: dnspython's. `kv_port`: of
        the KV side of each, where the protocol has one. Raises ValueError, ModuleNotFoundError.
        """
        super().__init__(every_seconds)
        self._resolve = resolve or addresses
        if kv_port and not 0 < kv_port <= address.HIGHEST_PORT:
            raise ValueError(f"the KV port {kv_port} is not a port")
        said = {
            Role.PREFILL: prefill, Role.DECODE: decode, Role.BOTH: both, Role.PLAIN: plain,
        }  # fmt: skip
        parts = [(role, text) for role, texts in said.items() for text in _parts(texts)]
        self._services = [(role, text) for role, text in parts if _is_service(text)]
        self._names = [
            (role, *address.split(text)) for role, text in parts if not _is_service(text)
        ]
        if not parts:
            raise ValueError("no name is given: prefill=name:port, decode=name:port, ...")
        self._servers = servers
        if self._services and servers is None:
            # Only who has such names needs the package.
            from pdgate.cluster.srv import servers as asked

            self._servers = asked
        self._value = {"protocol": protocol, "model": model}
        self._kv_port = kv_port

    async def look(self) -> Seen:
        entries: dict[str, bytes] = {}
        names = list(self._names)
        for role, service in self._services:
            assert self._servers is not None
            names += [(role, *server) for server in await self._servers(service)]
        for role, name, port in names:
            # What no host can be called is refused with its key, and counted.
            hosts = await self._resolve(name, port) if _is_host(name) else [name]
            for host in hosts:
                entries[f"{FOLDER}{role}/{host}/{port}"] = self._entry(host)
        return Seen(entries)

    def _entry(self, host: str) -> bytes:
        kv = address.joined(host, self._kv_port) if self._kv_port else ""
        return json.dumps({**self._value, "kv": kv}).encode()


def _is_service(text: str) -> bool:
    return text.startswith("_") and ":" not in text


def _is_host(text: str) -> bool:
    try:
        address.host(text)
    except ValueError:
        return False
    return True


def _parts(texts: str) -> Iterator[str]:
    return (text.strip() for text in texts.split(",") if text.strip())


async def addresses(name: str, port: int) -> list[str]:
    """Addresses of a name, in an order that stays, as resolvers shuffle. Raise Unseen."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise Unseen(f"{name}: no answer in {ANSWER_SECONDS:g} s") from None
    except socket.gaierror as error:
        if error.errno in NO_ADDRESS:
            return []
        raise Unseen(f"{name}: {error.strerror}") from None
    except OSError as error:
        raise Unseen(f"{name}: {error}") from None
    # The addresses of a link mean something on one machine only.
    return sorted({str(at[0]) for *_, at in found if "%" not in str(at[0])})
