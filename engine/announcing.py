"""An engine's entry in a directory, and when it changes.

listening, ready  --> listed: gateways send calls
role changed      --> the entry says so, in one step (roles.py)
asked to end, or  --> not listed, and still serving for `SETTLE_SECONDS`: calls that were
                      chosen for us before the news got around arrive as any other
taken out by      --> no new calls; those under way are finished
another hand
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from pdgate.cluster import address
from pdgate.cluster.directory import Listing
from pdgate.cluster.member import Member
from pdgate.cluster.opening import opened
from pdgate.engine.connector import Connector
from pdgate.engine.roles import EngineRoles
from pdgate.engine.settings import WILDCARDS, EngineSettings
from pdgate.protocols.instance import Role

SETTLE_SECONDS = 0.5
ANY_NAME = "*"


def announcement(
    settings: EngineSettings,
    api_port: int,
    connector: Connector | None,
    names: tuple[str, ...],
    roles: EngineRoles,
) -> AbstractAsyncContextManager[Listing | None]:
    """The block in which the engine is listed; without a listing where there is no directory.

    Raises ValueError for a directory that there is not, or in which no engine can announce itself.
    """
    if not settings.listed_in:
        return nullcontext()
    implied = {
        "urls": settings.etcd,
        "user_file": settings.etcd_user_file,
        "ca_file": settings.etcd_ca_file,
    }
    directory = opened(settings.listed_in, settings.directory_options, implied)
    said = member(settings, api_port, connector, names)
    # Before anything is served, if no engine can announce itself there.
    return _settling(directory.announce(said), said, roles)


def member(
    settings: EngineSettings, api_port: int, connector: Connector | None, names: tuple[str, ...]
) -> Member:
    """The entry of this very process."""
    kv = ""
    if connector is not None:
        host, port = connector.kv_address
        kv = address.joined(dialled(settings, host), port)
    return Member(
        role=Role(settings.role),
        host=address.host(dialled(settings, settings.host)),
        port=api_port,
        protocol=settings.protocol,
        # Several names, or any, are for the gateway to ask about: an entry has room for one.
        model=names[0] if len(names) == 1 and names[0] != ANY_NAME else "",
        kv=kv,
        epoch=secrets.token_hex(8),
        tp=settings.tp,
        block_tokens=settings.block_tokens,
        dp_size=settings.dp,
        pair=settings.pair,
        place=settings.place,
    )


def dialled(settings: EngineSettings, host: str) -> str:
    """What others reach this machine by; a wildcard is nothing to dial."""
    if settings.advertise_host and host in (*WILDCARDS, settings.host):
        return settings.advertise_host
    return settings.host if host in WILDCARDS else host


@asynccontextmanager
async def _settling(
    announced: AbstractAsyncContextManager[Listing], member: Member, roles: EngineRoles
) -> AsyncIterator[Listing]:
    async with announced as listing:
        roles.announced(listing, member)
        yield listing
    await asyncio.sleep(SETTLE_SECONDS)
