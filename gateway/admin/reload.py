"""POST /admin/reload: reads the configuration again, as SIGHUP does.

200   {"changed": ["timeouts.prefill_seconds"]}
400   what is wrong with it, or what needs a restart; nothing has changed
"""

from typing import Any

from fastapi import APIRouter, Depends

from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.protocols.errors import BadRequest

PATH = "/admin/reload"


def routes(reload: Reload, token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))])

    @router.post(PATH)
    async def again() -> dict[str, Any]:
        """Reads the file and the flags again, and puts in force what can be."""
        try:
            changed = reload.again()
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        reload.pass_on()
        return {"changed": changed}

    return router
