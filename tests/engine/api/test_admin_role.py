"""Who may change an engine's role by HTTP, and how it is refused."""

import httpx2
import pytest
from starlette.applications import Starlette

from pdgate.cluster.memory import MemoryDirectory
from pdgate.engine.api import errors
from pdgate.engine.api.roles import PATH, routes
from pdgate.engine.roles import EngineRoles
from pdgate.protocols.instance import Role
from tests.cluster.watching import P

TOKEN = "a-token-of-the-tests"
KNOWS = {"authorization": f"Bearer {TOKEN}"}


def client(roles: EngineRoles) -> httpx2.AsyncClient:
    app = Starlette(routes=routes(roles, TOKEN).routes)
    errors.install(app)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://engine")


async def test_the_role_is_read_and_changed() -> None:
    roles = EngineRoles(Role.PREFILL)
    async with client(roles) as http, MemoryDirectory().announce(P) as listing:
        roles.announced(listing, P)
        assert (await http.get(PATH, headers=KNOWS)).json() == {"role": "prefill"}

        changed = await http.post(PATH, headers=KNOWS, json={"role": "decode"})

        assert (changed.status_code, changed.json()) == (200, {"role": "decode"})
        assert (await http.get(PATH, headers=KNOWS)).json() == {"role": "decode"}


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer another"}])
async def test_callers_cannot_change_it(headers: dict[str, str]) -> None:
    roles = EngineRoles(Role.PREFILL)
    async with client(roles) as http:
        refused = await http.post(PATH, headers=headers, json={"role": "decode"})

    assert (refused.status_code, roles.role) == (401, Role.PREFILL)


async def test_what_cannot_change_is_a_conflict_with_a_name() -> None:
    async with client(EngineRoles(Role.PREFILL, "it is fixed")) as http:
        refused = await http.post(PATH, headers=KNOWS, json={"role": "decode"})

    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "role_fixed"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"role": 1}', b'{"role": "plain"}', b"[" * 9999])
async def test_anything_else_is_a_bad_request(body: bytes) -> None:
    async with client(EngineRoles(Role.PREFILL)) as http:
        refused = await http.post(PATH, headers=KNOWS, content=body)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "role")
