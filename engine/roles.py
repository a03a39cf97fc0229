"""The role in which this engine is announced, which may change while it serves.

    asked to change --> the directory has the new role --> gateways send calls of the new one

A role says what others send here, and nothing of what is done with it: an engine whose role
may change is built for both, and serves calls of its old role for as long as they come. So
there is no moment at which a call that was chosen by the old role is refused.

What stands against a change is said by name:

    role_fixed          the protocol gives prefill and decode different insides
    role_not_announced  no directory is configured, so that no gateway would learn of it
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pdgate.cluster.directory import Listing
from pdgate.cluster.member import Member
from pdgate.engine.hand_over import registry
from pdgate.engine.settings import NO_PROTOCOL, EngineSettings
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.instance import Role

TOLD_SECONDS = 2.0
"""How long a change waits for the directory, which may be away."""
CHANGES: Final = (Role.PREFILL, Role.DECODE, Role.BOTH)

log = logging.getLogger(__name__)


class RoleFixed(BadRequest):
    status, code = 409, "role_fixed"


class RoleNotAnnounced(BadRequest):
    status, code = 409, "role_not_announced"


def why_fixed(protocol: str) -> str:
    """Why an engine of the protocol keeps its role; empty if it may change. Raises LookupError, TypeError."""
    if protocol == NO_PROTOCOL:
        return "an engine that hands nothing over is neither prefill nor decode"
    if registry.load(protocol).fixed_role:
        return f"with {protocol} an engine is prefill or decode from its start to its end"
    return ""


def may_change(settings: EngineSettings) -> bool:
    """Then it has to be built for both roles."""
    return bool(settings.admin_token_file and settings.listed_in) and not why_fixed(
        settings.protocol
    )


class EngineRoles:
    """
    Attributes:
        role: The one of now, also while the directory is yet to be told.
    """

    def __init__(
        self, role: Role, why_fixed: str = "", tell: Callable[[Role], None] = lambda _: None
    ) -> None:
        """`why_fixed`: what stands against any other role. `tell`: who else must know ours."""
        self.role = role
        self._why_fixed = why_fixed
        self._tell = tell
        tell(role)
        self._listing: Listing | None = None
        self._member: Member | None = None
        self._one_at_a_time = asyncio.Lock()

    def announced(self, listing: Listing, member: Member) -> None:
        """The entry that is to change with the role."""
        self._listing, self._member = listing, member

    async def change(self, role: Role) -> bool:
        """Whether the directory has it; if it does not answer in time, it learns it later.

        Raises RoleFixed, RoleNotAnnounced; then nothing has changed.
        """
        async with self._one_at_a_time:
            if self._why_fixed and role is not self.role:
                raise RoleFixed(self._why_fixed)
            if self._listing is None or self._member is None:
                raise RoleNotAnnounced(
                    "no directory lists this engine: no gateway would learn of it"
                )
            log.info("the role was %s and is %s", self.role, role)
            self.role = role
            self._tell(role)
            self._member = replace(self._member, role=role)
            try:
                async with asyncio.timeout(TOLD_SECONDS):
                    await self._listing.change(self._member)
            except TimeoutError:
                log.warning("the directory does not answer: it is told of the role later")
                return False
            return True
