"""FastAPI application: everything but the calls, which the front end takes before it.

Their routes are declared here all the same, so that the OpenAPI schema names them and a wrong
method is answered 405.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException

from pdgate import __version__
from pdgate.gateway import errors, openapi
from pdgate.gateway.debug import RecentCalls
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.probe import Prober
from pdgate.gateway.readiness import Note, of_model, readiness
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import Authenticator, KeyState
from pdgate.protocols.apis import APIS, RESPONSES, shape_of
from pdgate.protocols.call import CHAT, COMPLETIONS
from pdgate.protocols.errors import (
    BadRequest,
    GatewayError,
    NotFound,
    Unauthorized,
    UnknownModel,
)
from pdgate.scheduling.endpoints import Endpoints

Running = Callable[[], AbstractAsyncContextManager[None]]


def create_app(
    endpoints: Endpoints,
    prober: Prober,
    registry: CollectorRegistry,
    running: Running,
    recent: RecentCalls | None,
    call_id: Callable[[RequestHeaders], str],
    notes: Mapping[str, Note],
    authenticator: Authenticator | None = None,
    drain: Drain | None = None,
    aliases: Callable[[], Mapping[str, str]] = dict,
    is_operator: Callable[[Request], bool] = lambda _: False,
) -> FastAPI:
    """
    `running` is the block in which the gateway has its connections and probes; `call_id`
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
    _declare_calls(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Alive: this process answers."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: {"description": "A role lacks an instance"}})
    async def ready(request: Request, model: str = "") -> JSONResponse:
        """200 only when every role that is needed has an instance; with `model`, of that model.

        Where API keys are asked for, only keys and operators are answered more than that.
        """
        said = readiness(endpoints)
        if model:
            said["ready"] = of_model(endpoints, model)["ready"]
        if drain is not None and drain.began is not None:
            said["ready"], said["draining"] = False, True
        found = {name: note.as_json() for name, note in notes.items()}
        said |= {name: told for name, told in found.items() if told is not None}
        status = 200 if said["ready"] else 503
        if authenticator is not None and not is_operator(request):
            key_state = key_state_of(request)
            if key_state is None:
                return JSONResponse({"ready": said["ready"]}, status)
            models = said["models"].items()
            said["models"] = {name: of for name, of in models if key_state.may_ask(name)}
        return JSONResponse(said, status)

    def key_state_of(request: Request) -> KeyState | None:
        """None for a stranger."""
        assert authenticator is not None
        try:
            return authenticator.key_state(RequestHeaders(request.scope["headers"]))
        except (Unauthorized, BadRequest):
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
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    if recent is not None:

        @app.get("/debug/calls/{call_id:path}")
        async def call(call_id: str) -> dict[str, Any]:
            """What happened to one of the last calls."""
            found = recent.find(call_id)
            if found is None:
                raise NotFound(f"no recent call has the id {call_id!r}")
            return found

    return app


def _declare_calls(app: FastAPI) -> None:
    async def served_before_this() -> None:
        raise AssertionError("the front end takes this route")

    hot = {CHAT: "Chat completion", COMPLETIONS: "Text completion"}
    for path, summary in (*hot.items(), *((api.path, api.summary) for api in APIS.values())):
        app.post(
            path,
            summary=summary,
            responses=openapi.responses(path),
            openapi_extra=openapi.operation(path),
        )(served_before_this)

    async def kept_by_an_engine(response_id: str) -> None:
        # The front end takes ids that engines give; no response has any other.
        raise NotFound(f"no engine here keeps a response {response_id!r}", param="response_id")

    stored = f"{RESPONSES}/{{response_id}}"
    for declare, path, summary in (
        (app.get, stored, "A response that was stored"),
        (app.post, f"{stored}/cancel", "End a response that runs in the background"),
    ):
        declare(path, summary=summary, responses=openapi.responses(RESPONSES))(kept_by_an_engine)


def _answer_errors_as_openai_does(app: FastAPI, call_id: Callable[[RequestHeaders], str]) -> None:
    def respond(request: Request, error: GatewayError) -> Response:
        name = call_id(RequestHeaders(request.scope["headers"]))
        status, headers, body = errors.as_response(error, name, shape_of(request.scope["path"]))
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
