"""/admin/usage: what each API key, and each tenant of a token, has taken, and what is left of its limits.

    GET   {"usage": [{"key": "team-a", "today": {"prompt": 9, ...}, "total": {...}, "limits": [...]}], "more": false}

    ?key=NAME      that one alone
    ?after=NAME    those behind it, by name; LIMIT at a time at most (?limit=)

Only for who sends "Authorization: Bearer <token>": the routes are on the port that clients use.
"""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query

from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.tenants.tenants import Tenants
from pdgate.protocols.errors import NotFound

PATH: Final = "/admin/usage"
LIMIT: Final = 1000


def routes(tenants: Tenants, token: str) -> APIRouter:
    """`token` is not empty."""
    router = APIRouter(dependencies=[Depends(knows(token))])

    @router.get(PATH)
    async def usage(
        key: str = "", after: str = "", limit: Annotated[int, Query(ge=1, le=LIMIT)] = 100
    ) -> dict[str, Any]:
        """Tokens and calls of API keys: today (UTC), in all, and what is left of their limits."""
        # A tenant may have several, one for each rule of its tokens; the last one is of its last token.
        states: dict[str, list[KeyState]] = {}
        for state in tenants.authenticator.states():
            states.setdefault(state.name, []).append(state)
        if key:
            if key not in states:
                raise NotFound(f"no API key has the name {key!r}")
            names = [key]
        else:
            names = sorted(name for name in states if name > after)
        # What has been counted a moment ago is to be seen.
        tenants.tell()
        shown = names[:limit]
        return {
            "usage": [
                {
                    "key": name,
                    **await tenants.usage(states[name][-1]),
                    "running": sum(state.running for state in states[name]),
                }
                for name in shown
            ],
            "more": len(names) > len(shown),
            "shared": tenants.shared is not None and not tenants.shared.away,
        }

    return router
