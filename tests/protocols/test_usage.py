"""What engines say that a call took, found at the end of an answer."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pdgate.protocols import sse
from pdgate.protocols.usage import Usage, counts_in, usage_in

SAID = {"prompt_tokens": 40, "total_tokens": 56, "completion_tokens": 16}


def test_a_chat_and_its_cached_tokens() -> None:
    said = {**SAID, "prompt_tokens_details": {"cached_tokens": 32}}

    assert usage_in(sse.event({"choices": [], "usage": said}) + sse.DONE) == Usage(40, 16, 32)


def test_what_responses_and_messages_call_it() -> None:
    said = {"input_tokens": 7, "cache_read_input_tokens": 4, "output_tokens": 3}

    assert usage_in(sse.event({"type": "message_delta", "usage": said})) == Usage(7, 3, 4)


def test_what_is_not_said_is_not_known() -> None:
    assert usage_in(b'{"choices": []}') is None
    assert usage_in(b'{"usage": null}\n\ndata: [DONE]\n\n') is None
    assert counts_in(b'{"prompt_tokens": 5}') == Usage(5, None, None)


@given(st.text())
def test_no_text_can_pass_for_it(text: str) -> None:
    """Quotes are escaped in a JSON text, so that only the engine's own field has the name."""
    told = json.dumps({"usage": SAID, "text": f'"usage": {{"prompt_tokens": 9}} {text}'})

    assert usage_in(told.encode()) == Usage(40, 16, None)
