"""Embeddings are the model's own: equal texts lie at the same place, others elsewhere."""

import base64
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse

from tests.engine.api.conftest import Served
from tests.support.engine_cores import tiny

PATH = "/v1/embeddings"


async def embed(served: Served, found: Any, **fields: Any) -> list[Any]:
    answer = await served.http.post(PATH, json={"input": found, **fields})
    assert answer.status_code == 200, answer.text
    if fields.get("encoding_format") != "base64":
        CreateEmbeddingResponse.model_validate(answer.json(), strict=True)
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["embedding"] for one in data]


async def test_an_embedding_is_a_direction_that_hangs_on_the_text(served: Served) -> None:
    one, other, same = np.array(await embed(served, ["one text", "two text", "one text"]))

    assert len(one) == tiny().config.hidden_size
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
    assert np.array_equal(one, same)
    assert one @ other < 0.99


async def test_text_and_its_tokens_are_the_same(served: Served) -> None:
    tokens = tiny().tokenizer.encode("Hi")
    (text,) = await embed(served, "Hi")

    assert [text] == await embed(served, tokens) == await embed(served, [tokens])


async def test_a_long_text_is_read_in_steps_to_the_same_end(served: Served) -> None:
    """The pages carry what the steps before have read."""
    long = "x" * 700
    first, second = np.array(await embed(served, ["a" + long, "b" + long]))

    assert not np.allclose(first, second)


async def test_the_official_client_asks_for_bytes(served: Served) -> None:
    (numbers,) = await embed(served, "Hi")
    (written,) = await embed(served, "Hi", encoding_format="base64")

    assert np.frombuffer(base64.b64decode(written), "<f4") == pytest.approx(numbers)


async def test_tokens_are_counted(served: Served) -> None:
    answer = await served.http.post(PATH, json={"input": ["Hi", "Hello"]})

    assert answer.json()["usage"] == {
        "prompt_tokens": 9,
        "total_tokens": 9,
        "completion_tokens": 0,
    }


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
async def test_a_score_is_the_cosine_of_two_embeddings(
    served: Served, path: str, names: tuple[str, str]
) -> None:
    vectors = np.array(await embed(served, ["a", "b", "c"]))
    one = await served.http.post(path, json={names[0]: "a", names[1]: ["b", "c", "a"]})
    pairs = await served.http.post(path, json={names[0]: ["a", "b"], names[1]: ["c", "c"]})

    scores = [data["score"] for data in one.json()["data"]]
    assert scores == pytest.approx([vectors[0] @ vectors[1], vectors[0] @ vectors[2], 1], abs=1e-5)
    scores = [data["score"] for data in pairs.json()["data"]]
    assert scores == pytest.approx([vectors[0] @ vectors[2], vectors[1] @ vectors[2]], abs=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_come_best_first(served: Served, path: str) -> None:
    asked = {"query": "the one", "documents": ["another", "the one", "a third"]}
    found = (await served.http.post(path, json=asked)).json()
    best = (await served.http.post(path, json={**asked, "top_n": 1})).json()

    assert found["results"][0]["index"] == 1
    assert found["results"][0]["document"] == {"text": "the one"}
    scores = [result["relevance_score"] for result in found["results"]]
    assert scores == sorted(scores, reverse=True)
    assert {result["index"] for result in found["results"]} == {0, 1, 2}
    assert best["results"] == found["results"][:1]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {}, "input"),
        (PATH, {"input": []}, "input"),
        (PATH, {"input": [9999]}, "input"),
        (PATH, {"input": "x", "dimensions": 3}, "dimensions"),
        (PATH, {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        (PATH, {"input": "x", "model": "none"}, "model"),
        (PATH, {"input": "x" * 3000}, None),
        ("/score", {"text_1": "x"}, "text_1"),
        ("/score", {"text_1": ["x", "y"], "text_2": "x"}, "text_1"),
        ("/rerank", {"documents": ["x"]}, "query"),
        ("/rerank", {"query": "x"}, "documents"),
    ],
)
async def test_what_cannot_be_read_is_refused(
    served: Served, path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = await served.http.post(path, json=body)

    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param
