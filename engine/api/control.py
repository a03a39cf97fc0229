"""Routes by which an engine is paused, gets other weights, and sleeps: as vLLM spells them, and as SGLang does.

    POST /update_weights_from_disk       {"model_path": "pdgate-tiny?seed=7"}, or a folder
    POST /update_weights                 {"update_info": {"seed": 7}}, or "model_path" in it
    POST /collective_rpc                 {"method": "reload_weights", "kwargs": {"weights_path": ...}}

Served with --control alone, as vLLM has them in its development mode. There are no tensors to be sent here: what needs
them (update_weights_from_tensor, _distributed) is not there.

Source: vLLM 0.32.0, entrypoints/rl/online/api_router.py, entrypoints/serve/dev/; SGLang 0.5.23, srt/entrypoints/http_server.py.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from pdgate.engine.api import fields
from pdgate.engine.api.routes import Answering, EngineRoutes
from pdgate.engine.control import ControlRefused, EngineControl
from pdgate.engine.model import builtin
from pdgate.engine.model.load import SEEDED


def routes(control: EngineControl) -> EngineRoutes:
    router = EngineRoutes()
    _add_vllm(router, control)
    _add_sglang(router, control)
    return router


def _add_vllm(router: EngineRoutes, control: EngineControl) -> None:
    @router.post("/pause")
    async def pause(http: Request) -> Response:
        try:
            await control.pause(http.query_params.get("mode", "abort"))
        except ControlRefused as error:
            return JSONResponse({"error": str(error)}, 400)
        if http.query_params.get("clear_cache", "true") != "false":
            await control.flush()
        return JSONResponse({"status": "paused"})

    @router.post("/resume")
    async def resume() -> Response:
        await control.resume()
        return JSONResponse({"status": "resumed"})

    @router.get("/is_paused")
    async def is_paused() -> Response:
        return JSONResponse({"is_paused": control.paused})

    @router.post("/abort_requests")
    async def abort_requests() -> Response:
        control.abort()
        return JSONResponse({"status": "aborted"})

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> Response:
        return JSONResponse({"success": await control.flush()})

    @router.post("/sleep")
    async def sleep(http: Request) -> Response:
        await control.sleep((), http.query_params.get("mode", "abort"))
        return Response()

    @router.post("/wake_up")
    async def wake_up(http: Request) -> Response:
        await control.wake(http.query_params.getlist("tags"))
        return Response()

    @router.get("/is_sleeping")
    async def is_sleeping() -> Response:
        return JSONResponse({"is_sleeping": bool(control.asleep) or control.paused})

    for path, said in (
        ("/init_weight_transfer_engine", "Weight transfer initialized"),
        ("/start_weight_update", "Weight update started"),
        ("/finish_weight_update", "Weight update finished"),
    ):
        router.add(path, _saying(said))

    @router.post("/update_weights")
    async def update_weights(http: Request) -> Response:
        return await _updated(control, await _body(http, "update_info"), "Weights updated")

    @router.post("/collective_rpc")
    async def collective_rpc(http: Request) -> Response:
        body = fields.parse(await http.body())
        if body.get("method") != "reload_weights":
            return JSONResponse({"error": "only reload_weights can be called here"}, 400)
        kwargs = fields.mapping(body, "kwargs") or {}
        path = {"model_path": kwargs.get("weights_path", "")}
        return await _updated(control, path, "Weights reloaded")


def _add_sglang(router: EngineRoutes, control: EngineControl) -> None:
    @router.post("/pause_generation")
    async def pause_generation(http: Request) -> Response:
        mode = (await _body(http)).get("mode", "abort")
        try:
            await control.pause(str(mode))
        except ControlRefused as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    @router.post("/continue_generation")
    async def continue_generation() -> Response:
        await control.resume()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    @router.post("/abort_request")
    async def abort_request() -> Response:
        control.abort()
        return Response()

    @router.get_and_post("/flush_cache")
    async def flush_cache() -> Response:
        done = await control.flush()
        return PlainTextResponse("Cache flushed.\n", 200 if done else 400)

    @router.post("/update_weights_from_disk")
    async def update_weights_from_disk(http: Request) -> Response:
        return await _updated(control, await _body(http), "Succeeded to update model weights.")

    @router.get_and_post("/release_memory_occupation")
    async def release_memory_occupation(http: Request) -> Response:
        await control.sleep((await _body(http)).get("tags") or (), "wait")
        return JSONResponse(None)

    @router.get_and_post("/resume_memory_occupation")
    async def resume_memory_occupation(http: Request) -> Response:
        await control.wake((await _body(http)).get("tags") or ())
        return JSONResponse(None)


def _saying(text: str) -> Answering:
    async def step() -> Response:
        return JSONResponse({"message": text})

    return step


async def _body(http: Request, within: str = "") -> dict[str, Any]:
    """Raises BadRequest."""
    raw = await http.body()
    body = fields.parse(raw) if raw else {}
    return dict((fields.mapping(body, within) or {}) if within else body)


async def _updated(control: EngineControl, body: dict[str, Any], said: str) -> Response:
    seed = body.get("seed")
    path = f"{builtin.NAME}{SEEDED}{seed}" if seed is not None else str(body.get("model_path", ""))
    try:
        await control.update(path)
    except ControlRefused as error:
        return JSONResponse({"success": False, "message": str(error)}, 400)
    return JSONResponse({"success": True, "message": said})
