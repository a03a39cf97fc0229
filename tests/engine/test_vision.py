"""Media of a chat in the reference engine: words of the prompt, by an embedding that may come from elsewhere."""

import base64
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pdgate.engine import vision
from pdgate.protocols.errors import BadRequest

CAT, DOG = b"a cat", b"a dog"


def picture(content: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": url}}


SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
TEXT = {"type": "text", "text": "What is this?"}


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **fields}


@contextmanager
def serving(content: bytes, status: int = 200) -> Iterator[dict[str, Any]]:
    """Where an encoder answers with these bytes to whatever it is asked for."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield {"peer_host": "127.0.0.1", "peer_port": server.server_address[1]}
        finally:
            server.shutdown()
            thread.join()


def name_of(part: dict[str, Any]) -> str:
    return vision.item_of(part).name


async def test_each_kind_of_media_becomes_words_of_its_own() -> None:
    parts = [picture(CAT), picture(DOG), SOUND, VIDEO]

    seen = await vision.seen(chat(TEXT, *parts))

    [message] = seen["messages"]
    assert message["content"][0] == TEXT
    assert len({part["text"] for part in message["content"]}) == 5
    assert [part["type"] for part in message["content"]] == ["text"] + [vision.WORDS] * 4


async def test_what_an_encoder_computed_is_what_the_engine_would_have() -> None:
    embedding = vision.item_of(picture(CAT)).embedding().tobytes()
    with serving(embedding) as place:
        told = {"ec_transfer_params": {name_of(picture(CAT)): place}}
        fetched = await vision.seen(chat(picture(CAT), **told))

    assert fetched["messages"] == (await vision.seen(chat(picture(CAT))))["messages"]


async def test_a_wrong_embedding_is_another_prompt() -> None:
    with serving(vision.item_of(picture(DOG)).embedding().tobytes()) as place:
        told = {"ec_transfer_params": {name_of(picture(CAT)): place}}
        fetched = await vision.seen(chat(picture(CAT), **told))

    assert fetched["messages"] != (await vision.seen(chat(picture(CAT))))["messages"]


@pytest.mark.parametrize(("content", "status"), [(b"", 404), (b"short", 200), (b"x" * 600, 200)])
async def test_an_embedding_that_does_not_come_is_a_failure_that_may_be_tried_again(
    content: bytes, status: int
) -> None:
    with serving(content, status) as place:
        told = {"ec_transfer_params": {name_of(picture(CAT)): place}}
        with pytest.raises(vision.EmbeddingLost):
            await vision.seen(chat(picture(CAT), **told))


@pytest.mark.parametrize(
    "place",
    [1, {}, {"peer_host": "127.0.0.1"}, {"peer_host": "192.0.2.1", "peer_port": 80}],
    ids=str,
)
async def test_a_place_that_cannot_be_is_refused(place: Any) -> None:
    told = {"ec_transfer_params": {name_of(picture(CAT)): place}}
    with pytest.raises(BadRequest):
        await vision.seen(chat(picture(CAT), **told))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": "data:,"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}},
        {"type": "input_audio", "input_audio": {"data": "%"}},
    ],
    ids=str,
)
async def test_media_that_are_none_are_refused(part: Any) -> None:
    with pytest.raises(BadRequest):
        await vision.seen(chat(part))


def test_an_item_is_known_by_its_content_and_its_kind() -> None:
    assert name_of(picture(CAT)) == hashlib.sha256(b"image_url\na cat").hexdigest()
    assert name_of(picture(CAT)) != name_of(picture(DOG))
