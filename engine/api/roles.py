"""/admin/role: what this engine is announced as, read and changed while it serves.

    GET   {"role": "prefill"}
    POST  the same, answered so: 200 when the directory has it, 202 when it does not answer, and
          gets it as soon as it does

Only for who sends "Authorization: Bearer <token>", as callers reach the same port.
"""

import hmac
import json

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdgate.engine.api.routes import EngineRoutes
from pdgate.engine.roles import CHANGES, EngineRoles
from pdgate.protocols.errors import BadRequest, Unauthorized
from pdgate.protocols.instance import Role

PATH = "/admin/role"


def routes(roles: EngineRoles, token: str) -> EngineRoutes:
    """`token` is not empty."""
    expected = f"Bearer {token}".encode()

    def check(http: Request) -> None:
        said = http.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(said, expected):
            raise Unauthorized("the admin token is missing or wrong")

    router = EngineRoutes()

    @router.get(PATH)
    async def role(http: Request) -> Response:
        check(http)
        return JSONResponse({"role": roles.role})

    @router.post(PATH)
    async def change(http: Request) -> Response:
        check(http)
        role = _role(await http.body())
        listed = await roles.change(role)
        return JSONResponse({"role": role}, status_code=200 if listed else 202)

    return router


def _role(body: bytes) -> Role:
    """Raises BadRequest."""
    try:
        role = Role(json.loads(body)["role"])
    except (ValueError, KeyError, TypeError, RecursionError):
        role = Role.PLAIN
    if role not in CHANGES:
        raise BadRequest(
            f'the body must be {{"role": ...}}, one of {", ".join(CHANGES)}', param="role"
        )
    return role
