"""Media within a body are found by what is around them, and by nothing that a text may have."""

import base64
import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pdgate.protocols.fields import Raw
from pdgate.protocols.inline_media import (
    LEAST_BYTES,
    MEDIA_BYTES,
    counted_beside,
    counted_bytes,
    media_in,
)

DATA = base64.b64encode(Random(1).randbytes(90_000)).decode()
URI = f"data:image/png;base64,{DATA}"


def said(*parts: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": [*parts]}]}).encode()


def found(text: bytes) -> list[str]:
    return [text[begin:end].decode() for begin, end in media_in(text)]


@pytest.mark.parametrize(
    ("part", "medium"),
    [
        ({"type": "image_url", "image_url": {"url": URI, "detail": "low"}}, URI),
        ({"type": "video_url", "video_url": {"url": URI}}, URI),
        ({"type": "input_image", "image_url": URI}, URI),
        ({"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}, DATA),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "a/b", "data": DATA}},
            DATA,
        ),
        ({"type": "image_embeds", "image_embeds": DATA}, DATA),
    ],
)
def test_each_api_s_media_are_found(part: dict[str, Any], medium: str) -> None:
    text = {"type": "text", "text": "What is it? " * 1000}
    for separators in ((",", ":"), (", ", ": "), (" , ", " :\n")):
        body = json.dumps([text, part, text, part], separators=separators).encode()
        assert found(body) == [medium, medium]
        assert counted_bytes(body) == len(body) - 2 * (len(medium) - MEDIA_BYTES)


def test_so_they_are_with_what_net_escapes() -> None:
    """A plus, among the first characters of one picture in four."""
    uri = "data:image/png;base64," + ("ab+/" * 30_000) + "ab=="
    body = said({"type": "image_url", "image_url": {"url": uri}})
    body = body.replace(b"+", rb"\u002B").replace(b"==", rb"\u003D\u003d")

    assert len(found(body)) == 1


def test_media_beside_a_prompt_of_tokens_are_counted_one_by_one() -> None:
    for several in ([DATA] * 3, [{"url": DATA}] * 3, [{"url": "x"}, DATA, DATA]):
        written = json.dumps(several).encode()
        body = b'{"input_ids":[1,2],"image_data":%b}' % written

        counted = counted_beside({"image_data": Raw(written)}, len(body))

        assert counted == len(body) - len(written) + 3 * MEDIA_BYTES


def test_so_they_are_with_the_slashes_that_php_escapes() -> None:
    body = said({"type": "image_url", "image_url": {"url": URI}}).replace(b"/", rb"\/")

    assert found(body) == [URI.replace("/", r"\/")]


@pytest.mark.parametrize(
    "part",
    [
        # Engines read all of these as text.
        {"type": "text", "text": URI},
        {"type": "text", "text": DATA},
        {"type": "text", "text": json.dumps({"image_url": {"url": URI}, "data": DATA})},
        {"type": "text", "text": f'<img src="{URI}">'},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": json.dumps({"url": URI})}}]},
        {"type": "document", "source": {"type": "text", "data": "A plain text. " * 9000}},
        {"type": "image_url", "image_url": {"url": f"https://example.com/{DATA}"}},
        {"type": "image_url", "image_url": {"url": DATA}},
        # What an agent writes, reads and may be called with.
        {"type": "tool_use", "input": {"path": "a.bin", "data": DATA}},
        {"title": "a genome", "data": "ACGT" * 9000},
        {"function": {"parameters": {"properties": {"file": {"default": {"data": DATA}}}}}},
        {"type": "input_audio", "input_audio": {"data": DATA[:100] + "\ta\tword" * 9000}},
    ],
)  # fmt: skip
def test_a_text_is_text_whatever_it_says(part: dict[str, Any]) -> None:
    body = said(part)

    assert found(body) == []
    assert counted_bytes(body) == len(body)


@given(some.lists(some.tuples(some.integers(0, 20_000), some.integers(0, 20_000)), max_size=6))
def test_one_is_found_wherever_it_stands(lengths: list[tuple[int, int]]) -> None:
    """If it is long enough to matter; what is shorter counts as its bytes."""
    uris = ["data:image/png;base64," + DATA[:length] for _, length in lengths]
    parts = [
        part
        for (words, _), uri in zip(lengths, uris, strict=True)
        for part in ({"text": "x " * (words // 2)}, {"image_url": {"url": uri}})
    ]

    assert found(said(*parts)) == [uri for uri in uris if len(uri) >= LEAST_BYTES]


@given(some.binary(max_size=200), some.integers(1, 400))
def test_any_bytes_are_read(piece: bytes, times: int) -> None:
    counted_bytes(piece * times)
