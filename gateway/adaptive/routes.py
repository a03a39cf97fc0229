"""GET /admin/roles: which side each engine with role both serves, and why.

    {"decides": "this process", "pressures": [...], "instances": [...], "decisions": [...]}

Decisions are the latest 50 of whichever process decides, the newest first.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import APIRouter, Depends

from pdgate.gateway.adaptive.adapting import Adapting
from pdgate.gateway.adaptive.sides import group_name
from pdgate.gateway.admin.bearer import knows
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.roles import SIDES

PATH = "/admin/roles"


def routes(adapting: Adapting, endpoints: Iterable[Endpoint], token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))])

    @router.get(PATH)
    async def roles() -> dict[str, Any]:
        """Which side each engine serves."""
        leader = adapting.leader
        return {
            "decides": "this process" if leader.known in ("", leader.own) else "another process",
            "pressures": [
                {
                    "model": group_name(group),
                    **{
                        one.value: round(adapting.roles.pressure(group, one).now, 3)
                        for one in SIDES
                    },
                }
                for group in adapting.roles.groups()
            ],
            "instances": [
                {"id": one.instance.id, "side": adapting.sides.of(one), "calls": one.calls}
                for one in endpoints
                if one.instance.role is Role.BOTH
            ],
            "decisions": [msgspec.to_builtins(change) for change in reversed(adapting.changes)],
        }

    return router
