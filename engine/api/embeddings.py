"""POST /v1/embeddings, and /score, /rerank, which compare texts by their embeddings.

    /v1/embeddings        input: text or token ids, or a list of them; encoding_format base64, too
    /score                text_1 and text_2: one with each, or pair by pair
    /rerank               query and documents, best first; top_n

A score is the cosine of the angle between two embeddings, as in a vLLM that serves a model
for embeddings.

Source: vLLM 0.32.0, vllm/entrypoints/pooling/embed/protocol.py, EmbeddingResponse;
pooling/scoring/protocol.py, ScoreResponse, RerankResponse.
"""

import asyncio
import base64
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdgate.engine.api import completions, fields
from pdgate.engine.api.ask import check_length
from pdgate.engine.api.fields import Body
from pdgate.engine.api.routes import EngineRoutes
from pdgate.engine.api.service import EngineService
from pdgate.engine.model.weights import Floats
from pdgate.engine.pooling import Pooler
from pdgate.protocols.errors import BadRequest

PATH: Final = "/v1/embeddings"
SCORE_PATHS: Final = ("/score", "/v1/score")
RERANK_PATHS: Final = ("/rerank", "/v1/rerank", "/v2/rerank")

SIDES: Final = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)
"""How the two sides of a score may be called."""


def routes(service: EngineService) -> EngineRoutes:
    router = EngineRoutes()
    pooler = Pooler(service.model)

    async def embedded(prompts: Sequence[Sequence[int]]) -> list[Floats]:
        check_length(service.model, prompts, 0)
        return [await asyncio.to_thread(pooler.embed, prompt) for prompt in prompts]

    async def embed(http: Request) -> Response:
        body = fields.parse(await http.body())
        name = service.model_name(body.get("model"))
        write = _writer(body)
        prompts = completions.token_ids(service.model, body.get("input"), "input")
        found = await embedded(prompts)
        data = [
            {"index": index, "object": "embedding", "embedding": write(vector)}
            for index, vector in enumerate(found)
        ]
        return JSONResponse(_list("embd", name, data, _count(prompts)))

    async def score(http: Request) -> Response:
        body = fields.parse(await http.body())
        name = service.model_name(body.get("model"))
        ones, others = _sides(body)
        prompts = [_prompt(service, text) for text in (*ones, *others)]
        vectors = await embedded(prompts)
        left, right = vectors[: len(ones)], vectors[len(ones) :]
        pairs = zip(left * (len(right) // len(left)), right, strict=True)
        data = [
            {"index": index, "object": "score", "score": _cosine(one, other)}
            for index, (one, other) in enumerate(pairs)
        ]
        return JSONResponse(_list("score", name, data, _count(prompts)))

    async def rerank(http: Request) -> Response:
        body = fields.parse(await http.body())
        name = service.model_name(body.get("model"))
        query, documents = body.get("query"), _texts(body, "documents")
        if not isinstance(query, str):
            raise BadRequest("query must be text", param="query")
        prompts = [_prompt(service, text) for text in (query, *documents)]
        asked, *vectors = await embedded(prompts)
        results: list[dict[str, Any]] = [
            {"index": index, "document": {"text": text}, "relevance_score": _cosine(asked, vector)}
            for index, (text, vector) in enumerate(zip(documents, vectors, strict=True))
        ]
        results.sort(key=lambda result: -result["relevance_score"])
        count = fields.integer(body, "top_n") or len(results)
        usage = _count(prompts)
        return JSONResponse(
            {"id": _id("rerank"), "model": name, "usage": usage, "results": results[:count]}
        )

    router.post(PATH)(embed)
    for path in SCORE_PATHS:
        router.post(path)(score)
    for path in RERANK_PATHS:
        router.post(path)(rerank)
    return router


def _writer(body: Body) -> Any:
    """Vector -> JSON. Raises BadRequest."""
    if body.get("dimensions") is not None:
        raise BadRequest("dimensions: this model has embeddings of one length", param="dimensions")
    match body.get("encoding_format", "float"):
        case "float" | None:
            return lambda vector: [float(number) for number in vector]
        case "base64":
            return lambda vector: base64.b64encode(vector.astype("<f4").tobytes()).decode()
    raise BadRequest("encoding_format must be float or base64", param="encoding_format")


def _sides(body: Body) -> tuple[Sequence[str], Sequence[str]]:
    for one, other in SIDES:
        if one in body and other in body:
            ones, others = _texts(body, one), _texts(body, other)
            if len(ones) not in (1, len(others)):
                raise BadRequest(f"{one} must be one text, or as many as {other}", param=one)
            return ones, others
    raise BadRequest("a score is asked for by text_1 and text_2", param="text_1")


def _texts(body: Body, name: str) -> tuple[str, ...]:
    found = fields.texts(body, name)
    if not found:
        raise BadRequest(f"{name} must hold a text", param=name)
    return found


def _prompt(service: EngineService, text: str) -> Sequence[int]:
    return service.model.tokenizer.encode(text)


def _cosine(one: Floats, other: Floats) -> float:
    """Of vectors of length 1."""
    return float(np.dot(one, other))


def _count(prompts: Sequence[Sequence[int]]) -> dict[str, int]:
    count = sum(len(prompt) for prompt in prompts)
    return {"prompt_tokens": count, "total_tokens": count}


def _id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _list(
    kind: str, name: str, data: Sequence[dict[str, Any]], usage: dict[str, int]
) -> dict[str, Any]:
    return {
        "id": _id(kind),
        "object": "list",
        "created": int(time.time()),
        "model": name,
        "data": data,
        "usage": {**usage, "completion_tokens": 0},
    }
