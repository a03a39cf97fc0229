"""/admin/disaggregation: which calls are split, read and changed while the gateway runs.

    GET   {"rule": "always", "uncached_tokens": 1000, "max_prefill_calls": 2}
    PUT   some of these keys; those left out stay as they are. Answers as GET does.

Only for who sends "Authorization: Bearer <token>": the routes are on the port that clients use.
"""

import json
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import ValidationError

from pdgate.cluster.bounded import TooLong, whole
from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.config.complaints import complaints
from pdgate.gateway.config.sections import DisaggregationSection
from pdgate.gateway.sync.shared_setting import SharedSetting
from pdgate.protocols.errors import BadRequest

PATH = "/admin/disaggregation"
MAX_BODY_BYTES = 64 << 10


def routes(rule: SharedSetting[DisaggregationSection], token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))])

    @router.get(PATH)
    async def disaggregation() -> dict[str, Any]:
        """Which calls are split."""
        return rule.section.model_dump()

    @router.put(PATH)
    async def put_disaggregation(request: Request) -> dict[str, Any]:
        """Changes which calls are split, from the next call on."""
        await rule.put(_changed(rule.section, await _body(request)))
        return rule.section.model_dump()

    return router


async def _body(request: Request) -> bytes:
    try:
        return await whole(request.stream(), MAX_BODY_BYTES)
    except TooLong:
        raise BadRequest("thresholds are shorter than that") from None


def _changed(section: DisaggregationSection, body: bytes) -> DisaggregationSection:
    """Raises BadRequest, which names the key."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("the request body is not valid JSON") from None
    if not isinstance(said, dict):
        raise BadRequest("the request body must be a JSON object")
    try:
        return DisaggregationSection.model_validate_json(
            json.dumps({**section.model_dump(), **said}), strict=True
        )
    except ValidationError as error:
        raise BadRequest(complaints(error, DisaggregationSection)) from None
