"""Encode, prefill, decode: reference engines, of which one has the tower alone."""

import base64
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from pdgate.protocols.apis import MESSAGES, RESPONSES
from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Gateway

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class EncodedSite:
    alone: Engine
    encoder: Engine
    gateway: Gateway


@pytest.fixture(scope="module", params=["vllm-nixl", "vllm-kvt"])
def site(request: pytest.FixtureRequest) -> Iterator[EncodedSite]:
    """The stage comes before whatever protocol there is."""
    protocol = request.param
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        encoder = fleet.engine("encode", "plain", "tcp")
        pair = fleet.pair(protocol, "tcp")
        with fleet.serve(
            f"--pdd-protocol={protocol}",
            f"--encode={encoder.url}",
            f"--instance=role=prefill,url={pair.prefill.url},kv={pair.prefill.kv}",
            f"--decode={pair.decode.url}",
        ) as gateway:
            yield EncodedSite(fleet.single(), encoder, gateway)


def picture(content: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": url}}


PARTS = [
    picture(b"a cat"),
    {"type": "image_url", "image_url": {"url": "https://example.com/dog.png"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
]


def asked(url: str, *parts: Any, call_id: str = "") -> str:
    content = [{"type": "text", "text": "What is this?"}, *parts]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 24, "temperature": 0}
    headers = {"x-request-id": call_id} if call_id else {}
    answer = HTTP.post(f"{url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_the_answer_is_that_of_an_engine_that_does_it_all(site: EncodedSite) -> None:
    split = asked(site.gateway.url, *PARTS, call_id="pictures")

    assert split == asked(site.alone.url, *PARTS)
    assert split != asked(site.alone.url, picture(b"a dog"), *PARTS[1:])
    attempts: Any = site.gateway.record("pictures")["attempts"]
    [attempt] = attempts
    roles = [leg["role"] for leg in attempt["legs"]]
    assert roles.count("encode") == len(PARTS)


LINK = "https://example.com/dog.png"


def response_of(content: bytes) -> dict[str, Any]:
    """A call of /v1/responses with two pictures, one of them what a tool has returned."""
    said = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": picture(content)["image_url"]["url"]},
    ]
    shown = [{"type": "input_image", "image_url": LINK}]
    result = {"type": "function_call_output", "call_id": "c", "output": shown}
    found = [{"role": "user", "content": said}, result]
    return {"input": found, "max_output_tokens": 24, "temperature": 0}


def message_of(content: bytes) -> dict[str, Any]:
    """The same of /v1/messages."""
    data = base64.b64encode(content).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    shown = [{"type": "image", "source": {"type": "url", "url": LINK}}]
    said = [
        {"type": "tool_result", "tool_use_id": "t", "content": shown},
        {"type": "text", "text": "What is this?"},
        {"type": "image", "source": source},
    ]
    messages = [{"role": "user", "content": said}]
    return {"messages": messages, "max_tokens": 24, "temperature": 0}


def text_of(url: str, path: str, body: dict[str, Any], call_id: str = "") -> str:
    headers = {"x-request-id": call_id} if call_id else {}
    answer = HTTP.post(f"{url}{path}", json={"model": "pdgate-tiny", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    found = said["output"] if path == RESPONSES else [said]
    text: str = found[0]["content"][0]["text"]
    return text


@pytest.mark.parametrize(
    ("path", "body_of"),
    [(RESPONSES, response_of), (MESSAGES, message_of)],
    ids=["responses", "messages"],
)
def test_the_other_apis_have_their_media_encoded_too(
    site: EncodedSite, path: str, body_of: Callable[[bytes], dict[str, Any]]
) -> None:
    call_id = f"media-{path.rpartition('/')[2]}"
    split = text_of(site.gateway.url, path, body_of(b"a cat"), call_id)

    assert split == text_of(site.alone.url, path, body_of(b"a cat"))
    assert split != text_of(site.alone.url, path, body_of(b"a dog"))
    attempts: Any = site.gateway.record(call_id)["attempts"]
    roles = [leg["role"] for leg in attempts[0]["legs"]]
    assert roles.count("encode") == 2


def test_an_encoder_takes_no_text(site: EncodedSite) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = HTTP.post(f"{site.encoder.url}/v1/chat/completions", json=body)

    assert answer.status_code == 400
    assert asked(site.gateway.url)
