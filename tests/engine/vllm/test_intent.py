import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.engine.vllm.intent import Intent, intent, prefill_id, wire_id

RID = "0f3c2a54-8a31-4a54-9d37-0123456789ab"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, Intent.NOTHING),
        ({}, Intent.NOTHING),
        ({"transfer_id": "x"}, Intent.NOTHING),
        ({"do_remote_decode": True}, Intent.HOLD),
        ({"do_remote_decode": True, "do_remote_prefill": False}, Intent.HOLD),
        ({"remote_host": "h", "remote_port": 1, "do_remote_prefill": True}, Intent.FETCH),
        ({"remote_host": "h", "remote_port": 1}, Intent.DELEGATE),
        ({"remote_host": "h", "remote_port": 1, "do_local_prefill": True}, Intent.NOTHING),
        ({"remote_host": "h", "remote_port": 1, "ali_llumnix_disagg": False}, Intent.NOTHING),
        ({"do_remote_prefill": True}, Intent.FETCH),
        ({"do_queued_prefill": True}, Intent.DELEGATE),
        ({"do_queued_prefill": False}, Intent.NOTHING),
    ],
)
def test_params_say_what_is_wanted(params: Any, expected: Intent) -> None:
    assert intent(params) is expected


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)
NAMES = [
    "do_remote_decode",
    "do_remote_prefill",
    "remote_host",
    "do_local_prefill",
    "do_queued_prefill",
    "pdgate_prefill",
]


@given(st.dictionaries(st.sampled_from(NAMES), anything) | anything)
def test_no_json_breaks_it(params: Any) -> None:
    """What raises in vLLM's scheduler ends the engine."""
    sent = json.loads(json.dumps(params))

    assert intent(sent) in Intent
    if isinstance(sent, dict):
        assert prefill_id(sent) is None or isinstance(sent["pdgate_prefill"], str)


@pytest.mark.parametrize("form", ["cmpl-{}-0-{}", "chatcmpl-{}-{}"])
@pytest.mark.parametrize("rid", [RID, "r", "a-0", "x-deadbeef"])
def test_both_engines_find_the_same_id_in_their_own(form: str, rid: str) -> None:
    """The random end is another in each."""
    assert wire_id(form.format(rid, "a3c16386")) == wire_id(form.format(rid, "a530bad0")) == rid


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        ("cmpl-r-0", "r"),
        ("cmpl-r-2-a3c16386", "r#2.0"),
        ("0_cmpl-r-0-a3c16386", "r"),
        ("1_cmpl-r-0-a3c16386", "r#0.1"),
        ("1_chatcmpl-r-a3c16386", "r#0.1"),
        ("generate-tokens-r-a3c16386", "generate-tokens-r"),
    ],
)
def test_each_prompt_and_choice_is_a_request_of_its_own(request_id: str, expected: str) -> None:
    assert wire_id(request_id) == expected
