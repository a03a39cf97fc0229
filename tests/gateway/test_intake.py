"""How long a prompt is taken to be."""

import base64
import json
from random import Random
from typing import Any

import pytest

from pdgate.gateway.intake import Intake
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols.apis import GENERATE, MESSAGES, NATIVE, RESPONSES
from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.inline_media import MEDIA_TOKENS
from pdgate.scheduling.prefix.index import BLOCK_TOKENS, PrefixIndex, blocks_of

TEXT = "What is it? " * 100
DATA = base64.b64encode(Random(1).randbytes(1_000_000)).decode()
OTHER = base64.b64encode(Random(2).randbytes(1_000_000)).decode()


def call(path: str, **fields: Any) -> Call:
    body = json.dumps({"model": "m", **fields}).encode()
    return Intake(1 << 24).call(path, RequestHeaders([]), body, "c")


def picture(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def chat(*content: Any) -> Call:
    return call(CHAT, messages=[{"role": "user", "content": [*content]}])


def words(times: int) -> dict[str, Any]:
    return {"type": "text", "text": TEXT * times}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [picture(DATA), words(1)]}]}),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_image",
                "image_url": f"data:image/png;base64,{DATA}"}, words(1)]}]},
        ),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "image", "source":
                {"type": "base64", "media_type": "image/png", "data": DATA}}, words(1)]}]},
        ),
        (NATIVE, {"text": f"<image>{TEXT}", "image_data": DATA}),
        (NATIVE, {"text": f"<image>{TEXT}", "image_data": [f"data:image/png;base64,{DATA}"]}),
        (NATIVE, {"text": f"<image>{TEXT}", "image_data": [{"url": f"data:a/b;base64,{DATA}"}]}),
    ],
)  # fmt: skip
def test_a_picture_in_the_body_is_no_text(path: str, fields: dict[str, Any]) -> None:
    """One of 1 MB was 333,000 tokens: its engine was taken to be busy for half a minute, and learnt to be fast."""
    text = len(TEXT) // 4

    assert MEDIA_TOKENS + text < call(path, **fields).prompt_tokens < MEDIA_TOKENS + text + 100


def test_where_the_prompt_has_its_tokens_a_picture_counts_by_these() -> None:
    asked = call(
        GENERATE, token_ids=[7] * 2000, features={"mm_hashes": {}, "kwargs_data": {"image": [DATA]}}
    )

    plain = call(GENERATE, token_ids=[7] * 2000)
    assert plain.prompt_tokens <= asked.prompt_tokens < plain.prompt_tokens + 10


def test_what_an_engine_has_of_a_prompt_with_pictures_is_on_the_same_scale() -> None:
    index = PrefixIndex()
    first = chat(words(10), picture(DATA), words(10))
    index.routed(first, "p0")

    same, behind, before = (
        index.matched(one).get("p0", 0)
        for one in (
            chat(words(10), picture(DATA), words(20)),
            chat(words(10), picture(DATA), words(10), picture(OTHER), words(10)),
            chat(words(10), picture(OTHER), words(10)),
        )
    )
    assert same == behind == len(blocks_of(first)) * BLOCK_TOKENS
    assert first.prompt_tokens - 2 * BLOCK_TOKENS < same <= first.prompt_tokens
    text = 10 * len(TEXT) // 4
    assert text - BLOCK_TOKENS < before < text + BLOCK_TOKENS
