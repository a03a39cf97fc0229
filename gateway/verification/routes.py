"""GET /admin/engines: what each engine tells of its load, and whether KV arrives there.

    [{"id": "decode-0", "role": "decode", "protocol": "vllm-nixl", "up": true, "age_seconds": 1.2,
      "load": {"kv_free": 0.8, "running": 3, "waiting": 0, "step_seconds": 0.02},
      "kv": {"result": "recomputed", "tokens": {"verified": 0, "recomputed": 123, ...},
             "expired_prompts": 0, "late_reads": 0, "cause": "no_connector", "hint": "..."}}]

Only for who knows the admin token: ids of engines are nobody else's business.
"""

from typing import Any

from fastapi import APIRouter, Depends

from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.verification.report import Report

PATH = "/admin/engines"


def routes(report: Report, token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))])

    @router.get(PATH)
    async def engines() -> list[dict[str, Any]]:
        """What each engine tells of itself."""
        return report.as_json()

    return router
