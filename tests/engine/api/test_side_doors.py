"""What routers and dashboards read."""

from prometheus_client.parser import text_string_to_metric_families

from pdgate import __version__
from pdgate.protocols.call import CHAT, COMPLETIONS
from tests.engine.api.conftest import Served
from tests.support.engine_cores import tiny


async def test_the_models_are_listed_by_every_name(served: Served) -> None:
    listed = (await served.http.get("/v1/models")).json()["data"]

    assert [card["id"] for card in listed] == ["tiny", "alias"]
    assert listed[0]["max_model_len"] == 2048
    assert listed[0]["root"] == "pdgate-tiny"


async def test_an_answer_says_the_name_that_was_asked_for(served: Served) -> None:
    named = await served.http.post(COMPLETIONS, json={"prompt": "x", "model": "alias"})
    unnamed = await served.http.post(COMPLETIONS, json={"prompt": "x"})

    assert (named.json()["model"], unnamed.json()["model"]) == ("alias", "tiny")


async def test_the_version_is_ours(served: Served) -> None:
    assert (await served.http.get("/version")).json() == {"version": __version__}


async def test_metrics_say_where_prompts_came_from(served: Served) -> None:
    for _ in range(2):
        await served.http.post(COMPLETIONS, json={"prompt": "y" * 40, "max_tokens": 3})

    text = (await served.http.get("/metrics")).text

    found = {
        (sample.name, sample.labels.get("source", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    by_source = "vllm:prompt_tokens_by_source_total"
    assert found[by_source, "local_compute"] == 41 + 9
    assert found[by_source, "local_cache_hit"] == 32
    assert found["vllm:prompt_tokens_total", ""] == 82
    assert found["vllm:kv_cache_usage_perc", ""] == 0
    assert found["pdgate_engine_blocks_free", ""] == 256


async def test_a_prompt_is_tokenized_as_it_would_be_read(served: Served) -> None:
    async def tokens(path: str, **body: object) -> tuple[list[int], list[int]]:
        """As /tokenize says, and as the engine that answers says."""
        told = await served.http.post("/tokenize", json=body)
        read = await served.http.post(
            path, json={**body, "max_tokens": 1, "return_token_ids": True}
        )
        answer = read.json()
        seen = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
        assert told.json()["count"] == len(told.json()["tokens"])
        return told.json()["tokens"], seen

    chat = await tokens(CHAT, messages=[{"role": "user", "content": "hello"}])
    text = await tokens(COMPLETIONS, prompt="hello")

    assert chat[0] == chat[1]
    assert text[0] == text[1] == tiny().tokenizer.encode("hello")


async def test_what_is_no_text_is_not_tokenized(served: Served) -> None:
    bodies: list[dict[str, list[int]]] = [{}, {"prompt": [1, 2]}, {"messages": []}]
    for body in bodies:
        assert (await served.http.post("/tokenize", json=body)).status_code == 400


async def test_tokens_are_text_again(served: Served) -> None:
    told = (
        await served.http.post("/tokenize", json={"prompt": "Hi", "return_token_strs": True})
    ).json()
    text = await served.http.post("/detokenize", json={"tokens": told["tokens"]})

    assert told["token_strs"] == ["<s>", "H", "i"]
    assert text.json() == {"prompt": "<s>Hi"}


async def test_what_is_no_token_is_not_text(served: Served) -> None:
    bodies: list[dict[str, object]] = [{}, {"tokens": "Hi"}, {"tokens": [99_999]}]
    for body in bodies:
        assert (await served.http.post("/detokenize", json=body)).status_code == 400
