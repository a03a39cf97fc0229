"""POST /tokenize and /detokenize, which compute nothing.

    /tokenize      the token ids that a prompt or a chat becomes
    /detokenize    the text of token ids, special ones too

Source: vLLM 0.32.0, vllm/entrypoints/serve/tokenize/protocol.py.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdgate.engine.api import chat, completions, fields
from pdgate.engine.api.fields import Body
from pdgate.engine.api.routes import EngineRoutes
from pdgate.engine.api.service import EngineService
from pdgate.protocols.errors import BadRequest


def routes(service: EngineService) -> EngineRoutes:
    router = EngineRoutes()

    @router.post("/tokenize")
    async def tokenize(http: Request) -> Response:
        body = fields.parse(await http.body())
        service.model_name(body.get("model"))
        tokens = _tokens(service, body)
        text = service.model.tokenizer.token
        strings = fields.flag(body, "return_token_strs")
        return JSONResponse(
            {
                "count": len(tokens),
                "max_model_len": service.model.positions,
                "tokens": list(tokens),
                "token_strs": [text(token) for token in tokens] if strings else None,
            }
        )

    @router.post("/detokenize")
    async def detokenize(http: Request) -> Response:
        body = fields.parse(await http.body())
        service.model_name(body.get("model"))
        if "tokens" not in body:
            raise BadRequest("tokens must be a list of token ids", param="tokens")
        tokens = fields.integers(body, "tokens")
        completions.check_ids(service.model, tokens, "tokens")
        text = service.model.tokenizer.decode(tokens, skip_special=False)
        return JSONResponse({"prompt": text})

    return router


def _tokens(service: EngineService, body: Body) -> Sequence[int]:
    """Raises BadRequest."""
    encode = service.model.tokenizer.encode
    if "messages" in body:
        special = fields.flag(body, "add_special_tokens")
        return encode(chat.text_of(service, body), special=special)
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise BadRequest("prompt must be a string", param="prompt")
    return encode(prompt, special=body.get("add_special_tokens") is not False)
