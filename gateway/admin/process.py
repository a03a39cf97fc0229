"""Routes on the gateway's process itself.

POST /admin/drain    ends it as SIGTERM does, all of its processes: new calls get 503 from now on,
                     those that run go on for a while (gateway/lifecycle/drain.py)
POST /admin/reload   reads the configuration again, as SIGHUP does
    200   {"changed": ["timeouts.prefill_seconds"]}
    400   what is wrong with it, or what needs a restart; nothing has changed
GET /admin/jobs      background jobs of the worker that is asked, and what of them fails; /metrics
                     adds up those of all (pdgate_job_restarts_total)
    [{"name": "health", "running": true, "restarts": 1, "why": "OSError: ...", "failed_at": 1790000000.1}]
"""

from typing import Any

from fastapi import APIRouter, Depends

from pdgate.cluster.jobs import Jobs
from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.protocols.errors import BadRequest


def routes(drain: Drain, reload: Reload, jobs: Jobs, token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))])

    @router.post("/admin/drain", status_code=202)
    async def begin() -> dict[str, Any]:
        """Takes no more calls, and ends when those that run are over."""
        drain.begin()
        drain.pass_on()
        return {"draining": True}

    @router.post("/admin/reload")
    async def again() -> dict[str, Any]:
        """Reads the file and the flags again, and puts in force what can be."""
        try:
            changed = await reload.request()
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        return {"changed": changed}

    @router.get("/admin/jobs")
    async def all_of_them() -> list[dict[str, Any]]:
        """Background jobs, and how the last failure of each was."""
        return [
            {
                "name": job.name,
                "running": job.running,
                "restarts": job.restarts,
                "why": job.why,
                "failed_at": job.failed_at,
            }
            for job in jobs
        ]

    return router
