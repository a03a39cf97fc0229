"""Toy tower for pictures, sound and video: an item of a chat becomes an embedding, and the embedding words of the prompt.

    part of a chat  -->  bytes  -->  ROWS x WIDTH numbers  -->  a letter for each row, in place of the part
                             tower                     codebook

Tower and codebook are random and the same in every process, so an item means nothing, and the answer hangs on every row:
a wrong embedding is another prompt. An engine of the role encode has the tower alone, and keeps embeddings for those that read
prompts, which fetch them by the hash of the item and compute nothing where a call says where they are:

    POST /v1/chat/completions  -->  {"ec_transfer_params": {hash: {"peer_host", "peer_port", "size_bytes", "item_indices"}}}
    GET /embeddings/<hash>     -->  float32, row by row

Media by URL are known by their URL: nothing is fetched from it. Encoders are reached on this host alone. Source of the words: vLLM 0.33.0,
examples/disaggregated/disaggregated_encoder/disagg_epd_proxy.py, fanout_encoder_primer().
"""

import asyncio
import base64
import binascii
import hashlib
import http.client
import ipaddress
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pdgate.engine.api import fields
from pdgate.engine.api.fields import Body
from pdgate.engine.api.routes import EngineRoutes
from pdgate.engine.api.service import EngineService, new_id
from pdgate.protocols import media
from pdgate.protocols.errors import BadRequest, GatewayError, NotFound

ROWS: Final = 8
WIDTH: Final = 16
SIZE_BYTES: Final = ROWS * WIDTH * 4
MOST_KEPT: Final = 4096
"""Embeddings of an encoder, 512 bytes each; the oldest goes first."""
FETCH_SECONDS: Final = 10.0
WORDS: Final = "media_words"
"""Type of the part that stands in place of an item: it has a text, and is none that a client wrote."""
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"

Embedding = npt.NDArray[np.float32]

_drawn = np.random.default_rng(20)
_TOWER: Final = _drawn.standard_normal((32, WIDTH)).astype(np.float32)
_CODEBOOK: Final = _drawn.standard_normal((WIDTH, len(LETTERS))).astype(np.float32)


class EmbeddingLost(GatewayError):
    """The encoder that was named has not got it: encoding the item again may help."""

    status, code = 500, "embedding_lost"


@dataclass(frozen=True, slots=True)
class MediaItem:
    """
    Attributes:
        name: The hash by which all engines know it.
    """

    name: str
    content: bytes

    def embedding(self) -> Embedding:
        rows = []
        for row in range(ROWS):
            seen = np.frombuffer(
                hashlib.sha256(bytes([row]) + self.content).digest(), np.uint8
            ).astype(np.float32)
            rows.append(np.tanh((seen / 128 - 1) @ _TOWER))
        return np.stack(rows)


def items_of(body: Body) -> Iterator[MediaItem]:
    """The media of a chat, in their order. Raises BadRequest."""
    for part in _parts(body):
        yield item_of(part)


def item_of(part: Mapping[str, Any]) -> MediaItem:
    """Raises BadRequest."""
    kind = part["type"]
    held = part.get(kind)
    if not isinstance(held, dict):
        raise BadRequest(f"{kind} must be an object", param="messages")
    said = held.get("data" if kind == "input_audio" else "url")
    if not isinstance(said, str) or not said:
        raise BadRequest(f"{kind} has neither url nor data", param="messages")
    content = said.encode()
    if kind == "input_audio" or said.startswith("data:"):
        try:
            content = base64.b64decode(said.rpartition(",")[2], validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f"the data of {kind} is no base64", param="messages") from None
    return MediaItem(hashlib.sha256(kind.encode() + b"\n" + content).hexdigest(), content)


def words(embedding: Embedding) -> str:
    return "".join(LETTERS[code] for code in np.argmax(embedding @ _CODEBOOK, axis=1))


async def seen(body: Body) -> Body:
    """The chat with words for its media, whose embeddings are fetched where it says where they are.

    Raises BadRequest, EmbeddingLost.
    """
    if not any(True for _ in _parts(body)):
        return body
    places = body.get(media.FIELD) or {}
    if not isinstance(places, dict):
        raise BadRequest(f"{media.FIELD} must be an object", param=media.FIELD)
    found: dict[str, str] = {}
    for item in items_of(body):
        if item.name not in found:
            place = places.get(item.name)
            embedding = item.embedding() if place is None else await _fetched(item.name, place)
            found[item.name] = words(embedding)
    messages = [
        {
            **message,
            "content": [
                {"type": WORDS, "text": f"<media {found[item_of(part).name]}>"}
                if _is_media(part)
                else part
                for part in message["content"]
            ],
        }
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


async def _fetched(name: str, place: Any) -> Embedding:
    """Raises BadRequest, EmbeddingLost."""
    host = place.get("peer_host") if isinstance(place, dict) else None
    port = place.get("peer_port") if isinstance(place, dict) else None
    if not isinstance(host, str) or type(port) is not int:
        raise BadRequest(f"{media.FIELD} says no peer_host and peer_port", param=media.FIELD)
    if not _is_loopback(host):
        # Nothing is proven on that connection, so none leads away from this host.
        raise BadRequest(f"an encoder at {host!r} is not on this host", param=media.FIELD)
    try:
        got = await asyncio.to_thread(_get, host, port, f"/embeddings/{name}")
    except (OSError, http.client.HTTPException) as error:
        raise EmbeddingLost(f"the encoder does not answer: {error}") from None
    if len(got) != SIZE_BYTES:
        raise EmbeddingLost("the encoder has no such embedding")
    return np.frombuffer(got, np.float32).reshape(ROWS, WIDTH)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _get(host: str, port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection(host, port, timeout=FETCH_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read(SIZE_BYTES + 1) if answer.status == 200 else b""
    finally:
        connection.close()


def _parts(body: Body) -> Iterator[Mapping[str, Any]]:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if _is_media(part):
                yield part


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in media.TYPES


class MediaEncoder:
    """What an engine of the role encode serves in place of chats."""

    def __init__(self, host: str, port: int) -> None:
        """`host`, `port`: where others reach it."""
        self._place = {"peer_host": host, "peer_port": port, "size_bytes": SIZE_BYTES}
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def routes(self, service: EngineService) -> EngineRoutes:
        router = EngineRoutes()

        @router.post("/v1/chat/completions")
        async def encode(http: Request) -> Response:
            body = fields.parse(await http.body())
            model = service.model_name(body.get("model"))
            places: dict[str, Any] = {}
            for index, item in enumerate(items_of(body)):
                self._keep(item)
                place = places.setdefault(item.name, {**self._place, "item_indices": []})
                place["item_indices"].append(index)
            if not places:
                raise BadRequest(
                    "an encoder takes media alone, and there is none", param="messages"
                )
            message = {"role": "assistant", "content": ""}
            return JSONResponse(
                {
                    "id": new_id("chatcmpl"),
                    "object": "chat.completion",
                    "created": service.created,
                    "model": model,
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    media.FIELD: places,
                }
            )

        @router.get("/embeddings/{name}")
        async def embedding(http: Request) -> Response:
            found = self._kept.get(http.path_params["name"])
            if found is None:
                raise NotFound("there is no such embedding here")
            return Response(found, media_type="application/octet-stream")

        return router

    def _keep(self, item: MediaItem) -> None:
        if item.name not in self._kept:
            self._kept[item.name] = item.embedding().tobytes()
        self._kept.move_to_end(item.name)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
