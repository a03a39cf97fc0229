"""FastAPI application: every route of the gateway, calls included.

`pdgate serve` has a front end before it that takes calls sooner (gateway/front/); on any other ASGI
server, or mounted in another application, they come to the routes here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from pdgate import __version__
from pdgate.gateway import errors, openapi
from pdgate.gateway.apis.passing import METHODS, PassedRequest
from pdgate.gateway.debug import RecentCalls
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.metrics.page import page_of
from pdgate.gateway.probe import Prober
from pdgate.gateway.readiness import Note, of_model, readiness
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import Authenticator, KeyState
from pdgate.protocols.apis import APIS, REALTIME, RESPONSES, SOUNDS, shape_of
from pdgate.protocols.call import CHAT, COMPLETIONS
from pdgate.protocols.errors import (
    BadRequest,
    GatewayError,
    NotFound,
    Unauthorized,
    UnknownModel,
    UpgradeRequired,
)
from pdgate.scheduling.endpoints import Endpoints

Running = Callable[[], AbstractAsyncContextManager[None]]


class Calls(Protocol):
    """What serves calls that come to a route; paths are those of the route, without any prefix."""

    def passes(self, scope: Scope, path: str) -> PassedRequest | None:
        """Return a request that an engine gets as it came; None for any other."""

    async def serve(
        self, path: str, passed: PassedRequest | None, request: Request, send: Send
    ) -> None:
        """Answers the request, whatever becomes of it."""

    async def converse(self, websocket: WebSocket) -> None:
        """Serves a realtime session, or refuses it."""


class Served(Response):
    """Answer of a call: written as it comes, by what serves calls."""

    def __init__(self, serve: Callable[[Send], Awaitable[None]]) -> None:
        super().__init__()
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(send)


def create_app(
    endpoints: Endpoints,
    prober: Prober,
    families: Callable[[], Awaitable[Iterable[Samples]]],
    running: Running,
    calls: Callable[[], Calls],
    recent: RecentCalls | None,
    call_id: Callable[[RequestHeaders], str],
    notes: Mapping[str, Note],
    authenticator: Authenticator | None = None,
    drain: Drain | None = None,
    aliases: Callable[[], Mapping[str, str]] = dict,
    is_operator: Callable[[Request], bool] = lambda _: False,
) -> FastAPI:
    """
    `running` is the block in which the gateway has its connections and probes; `calls` is what
    serves calls, once it is complete; `call_id`
    names what is refused, as intake names calls; `notes` are shown on /ready by their names;
    `drain` ends the process; `aliases` are other names of models, as they are now;
    `is_operator` says whose requests see all of /ready without an API key.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with running():
            yield

    app = FastAPI(
        title="pdgate",
        version=__version__,
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url="/openapi.json",
    )
    _answer_errors_as_openai_does(app, call_id)
    _declare_schema(app)
    _declare_calls(app, calls)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Alive: this process answers."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: {"description": "A role lacks an instance"}})
    async def ready(request: Request, model: str = "") -> JSONResponse:
        """200 only when every role that is needed has an instance; with `model`, of that model.

        Where API keys are asked for, only keys and operators are answered more than that; and of a
        model those alone that may ask it.
        """
        key_state, is_stranger = None, False
        if authenticator is not None and not is_operator(request):
            key_state = key_state_of(request)
            is_stranger = key_state is None
            if model and key_state is None:
                raise Unauthorized("whether a model is ready is not for everybody: send an API key")
        # Of a thousand models and eight engines it takes 0.2 s to say which are.
        said = readiness(endpoints, of_models=not is_stranger)
        if model:
            # One that a key is not for is as one that no engine serves.
            may_know = key_state is None or key_state.may_ask(aliases().get(model, model))
            said["ready"] = may_know and of_model(endpoints, model)["ready"]
        if drain is not None and drain.began is not None:
            said["ready"], said["draining"] = False, True
        found = {name: note.as_json() for name, note in notes.items()}
        said |= {name: told for name, told in found.items() if told is not None}
        status = 200 if said["ready"] else 503
        if authenticator is not None and not is_operator(request):
            if key_state is None:
                return JSONResponse({"ready": said["ready"]}, status)
            models = said["models"].items()
            said["models"] = {name: of for name, of in models if key_state.may_ask(name)}
        return JSONResponse(said, status)

    def key_state_of(request: Request) -> KeyState | None:
        """Return the state of the request's key; None for a stranger."""
        assert authenticator is not None
        try:
            return authenticator.key_state(RequestHeaders(request.scope["headers"]))
        except GatewayError:
            # A key that is none, or a token that cannot be checked now.
            return None

    @app.get("/v1/models", responses={status: openapi.refusal(status) for status in (400, 401)})
    async def models(request: Request) -> dict[str, Any]:
        """What the instances that are up serve; each card as its engine wrote it."""
        return {"object": "list", "data": list(shown(request).values())}

    @app.get(
        "/v1/models/{model:path}",
        responses={status: openapi.refusal(status) for status in (400, 401, 404)},
    )
    async def model_(request: Request, model: str) -> dict[str, Any]:
        """One of them."""
        card = shown(request).get(model)
        if card is None:
            raise UnknownModel(f"the model {model!r} does not exist", param="model")
        return card

    def shown(request: Request) -> dict[str, dict[str, Any]]:
        """Model -> its card, for a request that asks."""
        key_state = (
            None
            if authenticator is None
            else authenticator.key_state(RequestHeaders(request.scope["headers"]))
        )
        found = prober.known_cards()
        for alias, name in aliases().items():
            # A call for the alias is answered by that model, whatever else has the name.
            found.pop(alias, None)
            if name in found:
                found[alias] = {**found[name], "id": alias}
        if key_state is None:
            return found
        real = aliases()
        return {
            name: card for name, card in found.items() if key_state.may_ask(real.get(name, name))
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(await page_of(await families()), media_type=CONTENT_TYPE_LATEST)

    if recent is not None:

        @app.get("/debug/calls/{call_id:path}")
        async def call(call_id: str) -> dict[str, Any]:
            """What happened to one of the last calls."""
            found = recent.find(call_id)
            if found is None:
                raise NotFound(f"no recent call has the id {call_id!r}")
            return found

    # Behind all others: what it takes depends on the settings of the moment.
    app.router.routes.append(PassedRoute(calls))
    return app


class PassedRoute(Route):
    """Requests that pass to an engine as they came; all others are of other routes, or of none."""

    def __init__(self, calls: Callable[[], Calls]) -> None:
        self._calls = calls

        async def passed(request: Request) -> Response:
            path = f"/v1/{request.path_params['path']}"
            found = calls().passes(request.scope, path)
            if found is None:
                raise HTTPException(404)
            return Served(partial(calls().serve, path, found, request))

        super().__init__("/v1/{path:path}", passed, methods=[*METHODS], include_in_schema=False)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            if self._calls().passes(scope, path) is not None:
                found = {"path": path.removeprefix("/v1/")}
                return Match.FULL, {"endpoint": self.endpoint, "path_params": found}
        return Match.NONE, {}


def _declare_schema(app: FastAPI) -> None:
    """FastAPI's own route builds it in the event loop when it is asked for first, which takes 60 ms of CPU time."""

    async def schema(_: Request) -> JSONResponse:
        return JSONResponse(await asyncio.to_thread(app.openapi))

    for at, route in enumerate(app.router.routes):
        if isinstance(route, Route) and route.path == app.openapi_url:
            app.router.routes[at] = Route(route.path, schema, include_in_schema=False)


def _declare_calls(app: FastAPI, calls: Callable[[], Calls]) -> None:
    def serving(path: str) -> Callable[[Request], Awaitable[Response]]:
        async def call(request: Request) -> Response:
            return Served(partial(calls().serve, path, None, request))

        return call

    hot = {CHAT: "Chat completion", COMPLETIONS: "Text completion"}
    for path, summary in (*hot.items(), *((api.path, api.summary) for api in APIS.values())):
        app.post(
            path,
            summary=summary,
            responses=openapi.responses(path),
            openapi_extra=openapi.operation(path),
        )(serving(path))

    for path in SOUNDS:

        def sounding(path: str = path) -> Callable[[Request], Awaitable[Response]]:
            async def sound(request: Request) -> Response:
                found = calls().passes(request.scope, path)
                if found is None:
                    raise BadRequest("the target of the request cannot be read")
                return Served(partial(calls().serve, path, found, request))

            return sound

        app.post(path, **openapi.of_sounds(path))(sounding())

    @app.websocket(REALTIME)
    async def realtime(websocket: WebSocket) -> None:
        await calls().converse(websocket)

    # A schema knows no WebSockets: this is the request that begins one.
    @app.get(REALTIME, **openapi.of_sessions())
    async def upgrade() -> None:
        """A WebSocket between the client and a plain engine of `model`; without an upgrade, 426."""
        raise UpgradeRequired("this route is a WebSocket: ask for an upgrade to one")

    stored = f"{RESPONSES}/{{response_id}}"
    for declare, end, summary in (
        (app.get, "", "A response that was stored"),
        (app.post, "/cancel", "End a response that runs in the background"),
    ):

        def keeping(end: str = end) -> Callable[[Request, str], Awaitable[Response]]:
            async def kept_by_an_engine(request: Request, response_id: str) -> Response:
                path = f"{RESPONSES}/{response_id}{end}"
                found = calls().passes(request.scope, path)
                if found is None:
                    # No id that an engine gives: no response has any other.
                    raise NotFound(
                        f"no engine here keeps a response {response_id!r}", param="response_id"
                    )
                return Served(partial(calls().serve, path, found, request))

            return kept_by_an_engine

        declare(f"{stored}{end}", summary=summary, responses=openapi.responses(RESPONSES))(
            keeping()
        )


def _answer_errors_as_openai_does(app: FastAPI, call_id: Callable[[RequestHeaders], str]) -> None:
    def respond(request: Request, error: GatewayError) -> Response:
        name = call_id(RequestHeaders(request.scope["headers"]))
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        status, headers, body = errors.as_response(error, name, shape_of(path))
        response = Response(body, status)
        response.raw_headers = list(headers)
        return response

    async def gateway_error(request: Request, error: Exception) -> Response:
        return respond(request, errors.known(error))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        # Not request.url, which is made of the Host header and may be none at all.
        detail = f"{request.method} {request.scope['path']}: {error.detail}"
        response = respond(request, errors.of_status(error.status_code, detail))
        for name, found in (error.headers or {}).items():
            response.headers[name] = found
        return response

    async def invalid(request: Request, error: Exception) -> Response:
        return respond(request, errors.of_status(422, str(error)))

    app.add_exception_handler(GatewayError, gateway_error)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, gateway_error)
