"""What a call may take is read as engines read its body."""

import json
from typing import Any

import pytest

from pdgate.gateway.intake import Intake
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols.apis import GENERATE, MESSAGES, NATIVE, PASSED, RESPONSES
from pdgate.protocols.bounds import MOST, Bounds, bounds_of
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, Passed

SAID: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def bounds(path: str, **fields: Any) -> Bounds:
    body = json.dumps({"model": "m", **fields}).encode()
    return bounds_of(Intake(1 << 24).call(path, RequestHeaders([]), body, "c"))


@pytest.mark.parametrize(
    ("path", "fields", "generated"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": 7}, 7),
        (CHAT, {"max_completion_tokens": 7}, 7),
        (CHAT, {"max_tokens": 7, "max_completion_tokens": 9}, 9),
        (CHAT, {"max_tokens": 9, "max_completion_tokens": 7}, 9),
        (CHAT, {"max_tokens": "7"}, 7),
        (CHAT, {"max_tokens": " 7.0 "}, 7),
        (CHAT, {"max_tokens": 7.0, "n": "3"}, 21),
        (CHAT, {"max_tokens": 7, "n": 3.0, "best_of": "4"}, 28),
        (CHAT, {"max_tokens": 7, "n": None}, 7),
        # To engines 0 is as if it were not there, and what is no number is refused.
        (CHAT, {"max_tokens": 0}, None),
        (CHAT, {"max_tokens": -1}, None),
        (CHAT, {"max_tokens": None}, None),
        (CHAT, {"max_tokens": "many"}, None),
        (CHAT, {"max_tokens": [7]}, None),
        (CHAT, {"max_tokens": 10**300}, MOST),
        (CHAT, {"max_tokens": 7, "n": 10**300}, MOST),
        # No engine reads these there, so they bound nothing.
        (CHAT, {"max_new_tokens": 7, "max_output_tokens": 7}, None),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 7}, 7),
        (COMPLETIONS, {"prompt": ["a", "b, c", "d"], "max_tokens": 7}, 21),
        (COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 7}, 7),
        (COMPLETIONS, {"prompt": [[1, 2], [3]], "max_tokens": 7, "n": 2}, 28),
        (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 7, "best_of": 3}, 42),
        (COMPLETIONS, {"prompt": "a", "max_completion_tokens": 7}, None),
        (COMPLETIONS, {"prompt": "a", "prompt_embeds": "QUJD", "max_tokens": 7}, 14),
        (COMPLETIONS, {"prompt_embeds": ["QUJD", "QUJE"], "max_tokens": 7}, 14),
        (COMPLETIONS, {"prompt": ["a", "b"], "prompt_embeds": ["QUJD"], "max_tokens": 7}, 21),
        (RESPONSES, {"input": "a", "max_output_tokens": 7}, 7),
        (RESPONSES, {"input": "a", "max_tokens": 7}, None),
        (MESSAGES, {"messages": SAID, "max_tokens": 7}, 7),
        (GENERATE, {"token_ids": [1], "sampling_params": {"max_tokens": 7, "n": 2}}, 14),
        (GENERATE, {"token_ids": [1], "max_tokens": 7, "sampling_params": {}}, None),
        (NATIVE, {"text": "a", "sampling_params": {"max_new_tokens": 7}}, 7),
        (NATIVE, {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 7, "n": 2}}, 28),
        (NATIVE, {"input_ids": [[1], [2]], "sampling_params": {"max_new_tokens": 7}}, 14),
        (
            NATIVE,
            {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 7}, {"max_new_tokens": 9}]},
            16,
        ),
        (NATIVE, {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 7}, {}]}, None),
        ("/v1/embeddings", {"input": ["a", "b"], "max_tokens": 7}, 0),
        ("/tokenize", {"prompt": "a"}, 0),
    ],
)
def test_what_may_be_generated(path: str, fields: dict[str, Any], generated: int | None) -> None:
    if path == CHAT:
        fields = {"messages": SAID, **fields}

    assert bounds(path, **fields).generated == generated


@pytest.mark.parametrize(
    ("path", "fields", "answers"),
    [
        (CHAT, {"messages": SAID, "n": "3"}, 3),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}, 4),
        (NATIVE, {"text": ["a", "b"], "sampling_params": [{}, {"n": 2}]}, 3),
    ],
)
def test_each_answer_that_says_no_bound_may_be_as_long_as_the_model_can(
    path: str, fields: dict[str, Any], answers: int
) -> None:
    assert bounds(path, **fields).most_generated(100) == answers * 100


def test_a_prompt_is_estimated_by_its_bytes_and_token_ids_are_counted() -> None:
    assert bounds(CHAT, messages=[{"role": "user", "content": "x" * 4000}]).prompt >= 1000
    assert bounds(COMPLETIONS, prompt=[1] * 4000).prompt == 4000
    assert bounds("/v1/embeddings", input=[[1] * 2000] * 2).prompt == 4000
    assert bounds("/tokenize", prompt="x" * 4000).prompt == 0
    behind_blanks = b'{"model": "m", "prompt": [%b1%b]}' % (b" " * 99, b",1" * 3999)
    call = Intake(1 << 24).call(COMPLETIONS, RequestHeaders([]), behind_blanks, "c")
    assert bounds_of(call).prompt == 4000


def test_what_passes_to_an_engine_is_bounded_by_what_it_says() -> None:
    def passed(body: bytes) -> Bounds:
        return bounds_of(Call("c", "c", "/v1/x", {}, api=PASSED, passed=Passed("POST", body)))

    assert passed(b'{"max_tokens": 7, "n": "2"}').generated == 14
    assert passed(b"--form").generated == 0
    assert passed(b"{" + b"[" * 9000).generated == 0
    assert passed(b"x" * 4000).prompt == 1000
