"""Routes by which engines are paused, get other weights, and sleep: in vLLM's words and in SGLang's.

    POST /update_weights_from_disk?model=m    to all engines of m, while its calls wait
    200   {"model": "m", "ok": true, "engines": [{"id", "url", "role", "ok", "status", "body"}, ...], "held": [], ...}
    207   some engines did it; the others say why not        502   none did

Beside what engines take:

    model     whose engines; also as "model" in a JSON body that is short; none where one model is served
    mode      of an update: wait for the calls that run (the default), or abort them
    engine    id of the only one that is asked, where no call is held for it (rank_offset differs)

What was begun goes on to its end, though its client has left.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from pdgate.cluster.bounded import TooLong, whole
from pdgate.gateway.admin.bearer import knows
from pdgate.gateway.control.control import Control, ControlOrder, ControlResult
from pdgate.gateway.control.wire import ROUTES, ControlRoute
from pdgate.protocols.errors import BadRequest, RateLimited, TooLarge
from pdgate.protocols.fields import UNREADABLE

MOST_AT_ONCE: Final = 64
SHORT_BYTES: Final = 256 << 10
"""Of a body that is read; a longer one names its model in the query."""
OWN: Final = frozenset({"model", "engine"})
JSON: Final = "application/json"


class ControlRoutes:
    """The requests under way."""

    def __init__(
        self, control: Control, most_bytes: int, aliases: Callable[[], Mapping[str, str]]
    ) -> None:
        self._control = control
        self._most_bytes = most_bytes
        self._aliases = aliases
        self._under_way = 0
        self._tasks: set[asyncio.Task[ControlResult]] = set()

    def of(self, token: str) -> APIRouter:
        """`token` is not empty."""
        router = APIRouter(dependencies=[Depends(knows(token))], tags=["control"])
        for route in ROUTES:
            for method in route.methods:
                router.add_api_route(
                    route.path,
                    self._handler(route),
                    methods=[method],
                    name=f"{method.lower()}{route.path.replace('/', '_')}",
                    summary=f"{route.path} of all engines of a model",
                    response_class=Response,
                )
        return router

    def _handler(self, route: ControlRoute) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            if self._under_way >= MOST_AT_ONCE:
                raise RateLimited(
                    f"{MOST_AT_ONCE} such requests are under way already", retry_after_seconds=5
                )
            self._under_way += 1
            try:
                order = self._order(route, request, await self._body(request))
                task = asyncio.create_task(self._control.carry_out(order), name=route.path)
            except BaseException:
                self._under_way -= 1
                raise
            self._tasks.add(task)
            task.add_done_callback(self._over)
            result = await asyncio.shield(task)
            content = msgspec.json.encode(result.as_json())
            return Response(content, result.status, media_type=JSON)

        return handle

    def _over(self, task: "asyncio.Task[ControlResult]") -> None:
        self._under_way -= 1
        self._tasks.discard(task)
        if not task.cancelled():
            # Its client, who may have left, is the one who hears of it.
            task.exception()

    async def _body(self, request: Request) -> bytes:
        try:
            return await whole(request.stream(), self._most_bytes)
        except TooLong:
            most = f"such a request has no more than {self._most_bytes} bytes"
            raise TooLarge(most) from None

    def _order(self, route: ControlRoute, request: Request, body: bytes) -> ControlOrder:
        """Raises BadRequest."""
        said = _said(body)
        query: defaultdict[str, list[str]] = defaultdict(list)
        for name, value in request.query_params.multi_items():
            query[name].append(value)
        model = _single(query, "model")
        if isinstance(said, dict) and isinstance(said.get("model"), str):
            # Engines know one model, and some refuse fields that they do not know.
            named = str(said.pop("model"))
            model = named if model is None else model
            body = msgspec.json.encode(said)
        engine = _single(query, "engine") or ""
        ours = OWN if route.modes and route.in_query else OWN | {"mode"}
        passed = [pair for pair in request.query_params.multi_items() if pair[0] not in ours]
        target = f"{route.path}?{urlencode(passed)}" if passed else route.path
        meant = None if model is None else self._aliases().get(model, model)
        return ControlOrder(
            route, request.method, query, target, body or b"{}", said, meant, engine
        )


def _said(body: bytes) -> Any:
    """Raises BadRequest; None for a body that is too long to be read."""
    if not body:
        return {}
    if len(body) > SHORT_BYTES:
        return None
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        raise BadRequest("the request body is not valid JSON") from None


def _single(query: Mapping[str, list[str]], name: str) -> str | None:
    found = query.get(name, ())
    if len(found) > 1:
        raise BadRequest(f"{name} is given {len(found)} times", param=name)
    return found[0] if found else None
