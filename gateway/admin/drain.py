"""POST /admin/drain: ends this gateway as SIGTERM does, all of its processes.

New calls get 503 from now on, those that run go on for a while (gateway/lifecycle/drain.py).
"""

from typing import Any

from fastapi import APIRouter, Depends

from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.lifecycle.drain import Drain

PATH = "/admin/drain"


def routes(drain: Drain, token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))])

    @router.post(PATH, status_code=202)
    async def begin() -> dict[str, Any]:
        """Takes no more calls, and ends when those that run are over."""
        drain.begin()
        drain.pass_on()
        return {"draining": True}

    return router
