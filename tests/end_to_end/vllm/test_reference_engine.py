"""The project's own engine says what vLLM says, on the same weights and tokenizer."""

import sys
from collections.abc import Iterator

import pytest

from tests.end_to_end.vllm.asking import chat, client, complete, prompt
from tests.end_to_end.vllm.engines import MODEL, Engine, Fleet
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import child

TOKENS = 40
FULL_STOP = 19
"""Behind a prompt that ends in half a character, vLLM 0.32.0 begins its answer with the
end of the prompt, which is no example to follow."""


@pytest.fixture(scope="module")
def small(fleet: Fleet) -> Iterator[Engine]:
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    command = [
        *(sys.executable, "-m", "pdgate", "engine"),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--model", str(fleet.model), "--served-model-name", MODEL),
    ]
    with child(command, log=fleet.logs / "reference-engine.log", name="engine") as process:
        process.wait_for_http(f"{url}/health", 60)
        yield Engine(url, process)


@pytest.mark.parametrize("length", [1, 16, 33, 100, 700])
def test_the_greedy_tokens_of_the_reference_engine_are_vllms(
    length: int, small: Engine, alone: Engine
) -> None:
    asked = [*prompt(length - 1, f"reference {length}"), FULL_STOP]

    with client(small.url) as ours, client(alone.url) as reference:
        said = complete(ours, asked, max_tokens=TOKENS)
        expected = complete(reference, asked, max_tokens=TOKENS)

    assert said.answer == expected.answer
    assert len(said.token_ids) == TOKENS


def test_the_chat_template_and_the_tokenizer_give_vllms_prompt(
    small: Engine, alone: Engine
) -> None:
    asked = "Which of the two gates? Größe 3,5 naïve 🙂"

    with client(small.url) as ours, client(alone.url) as reference:
        assert chat(ours, asked).answer == chat(reference, asked).answer
