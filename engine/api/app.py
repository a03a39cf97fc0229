"""The engine's routes, spelled as vLLM spells them."""

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdgate import __version__
from pdgate.engine import vision
from pdgate.engine.api import (
    answer,
    audio,
    chat,
    completions,
    embeddings,
    errors,
    fields,
    generate,
    messages,
    native,
    realtime,
    responses,
    tokenize,
)
from pdgate.engine.api.chat import ChatShape
from pdgate.engine.api.completions import CompletionShape
from pdgate.engine.api.messages import MessagesShape
from pdgate.engine.api.responses import ResponsesShape
from pdgate.engine.api.routes import GET_AND_POST, EngineRoutes
from pdgate.engine.api.service import ANY_NAME, EngineDead, EngineService, wire_id
from pdgate.engine.metrics import CONTENT_TYPE
from pdgate.protocols.errors import BadRequest


def build(service: EngineService, *more: EngineRoutes) -> Starlette:
    router = EngineRoutes()
    for given in (
        tokenize.routes(service),
        embeddings.routes(service),
        audio.routes(service),
        *more,
    ):
        router.routes += given.routes

    @router.post("/v1/completions")
    async def complete(http: Request) -> Response:
        ask = completions.read(service, fields.parse(await http.body()))
        return await answer.send(http, service, CompletionShape(service, ask, wire_id(http)))

    @router.post("/v1/chat/completions")
    async def converse(http: Request) -> Response:
        ask = chat.read(service, await vision.seen(fields.parse(await http.body())))
        return await answer.send(http, service, ChatShape(service, ask, wire_id(http)))

    @router.post(generate.PATH)
    async def generate_tokens(http: Request) -> Response:
        ask = generate.read(service, fields.parse(await http.body()))
        return await answer.send(http, service, generate.TokensShape(service, ask, wire_id(http)))

    @router.post(native.PATH)
    async def generate_natively(http: Request) -> Response:
        ask = native.read(service, fields.parse(await http.body()))
        return await answer.send(http, service, native.NativeShape(service, ask, wire_id(http)))

    @router.post("/v1/responses")
    async def respond(http: Request) -> Response:
        body = fields.parse(await http.body())
        ask = await responses.read(service, body)
        shape = ResponsesShape(service, ask, wire_id(http), body)
        return await answer.send(http, service, shape)

    @router.post(messages.PATH)
    async def message(http: Request) -> Response:
        ask = await messages.read(service, fields.parse(await http.body()))
        return await answer.send(http, service, MessagesShape(service, ask, wire_id(http)))

    @router.post(messages.COUNT_PATH)
    async def count_tokens(http: Request) -> Response:
        return JSONResponse(await messages.count(service, fields.parse(await http.body())))

    router.routes.append(realtime.route(service))

    @router.get("/v1/models")
    async def models() -> Response:
        names = [name for name in service.names if name != ANY_NAME]
        return JSONResponse({"object": "list", "data": [_card(service, name) for name in names]})

    @router.get("/health")
    async def health() -> Response:
        if trouble := service.core.trouble:
            raise EngineDead(trouble)
        return Response()

    connector = service.core.connector
    if connector is not None and connector.server_info():

        @router.get("/server_info")
        async def server_info() -> Response:
            return JSONResponse(connector.server_info())

    for path, answers in (connector.routes() if connector else {}).items():
        _add(router, path, answers)

    @router.get("/version")
    async def version() -> Response:
        return JSONResponse({"version": __version__})

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    built = Starlette(routes=router.routes)
    errors.install(built)
    return built


def _add(router: EngineRoutes, path: str, answers: Callable[[fields.Body], Any]) -> None:
    """A route of the connector's own."""

    async def asked(http: Request) -> Response:
        body = fields.parse(await http.body()) if http.method == "POST" else {}
        try:
            return JSONResponse(answers(body))
        except ValueError as error:
            raise BadRequest(str(error)) from None

    router.add(path, asked, GET_AND_POST)


def _card(service: EngineService, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "pdgate",
        "root": service.model.root,
        "parent": None,
        "max_model_len": service.model.positions,
    }
