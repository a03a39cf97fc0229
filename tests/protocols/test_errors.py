"""Every error is a row of the table that OpenAI's clients know how to read."""

import json

import pytest

from pdgate.protocols import errors
from pdgate.protocols.errors import EngineRejected, GatewayError

CLASSES = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, GatewayError) and found is not EngineRejected
]
OPENAI_TYPES = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "insufficient_quota",
    "server_error",
}


@pytest.mark.parametrize("kind", CLASSES)
def test_each_class_is_an_openai_error(kind: type[GatewayError]) -> None:
    shown = json.loads(json.dumps(kind("why", param="model").as_openai()))

    assert shown == {
        "error": {"message": "why", "type": kind.type, "param": "model", "code": kind.code}
    }
    assert kind.type in OPENAI_TYPES


@pytest.mark.parametrize("kind", CLASSES)
def test_the_status_agrees_with_whose_fault_it_is(kind: type[GatewayError]) -> None:
    """Clients retry 5xx and 429, and must not retry what they did wrong."""
    assert (400 <= kind.status < 500) == (kind.type != "server_error")


@pytest.mark.parametrize("kind", CLASSES)
def test_only_engine_failures_are_worth_another_engine(kind: type[GatewayError]) -> None:
    assert kind.worth_retrying == issubclass(kind, errors.EngineFailed | errors.EngineRefused)


def test_codes_tell_server_errors_apart() -> None:
    """They are what metrics and logs count by; a special case may go by the general one's."""
    servers = [kind for kind in CLASSES if kind.type == "server_error"]
    codes = [kind.code for kind in servers if "code" in vars(kind) or kind is GatewayError]

    assert len(codes) == len(set(codes))


def test_the_message_names_no_engine() -> None:
    """`at` is for us."""
    error = errors.EngineFailed("the engine failed", at="decode-7")

    assert "decode-7" not in json.dumps(error.as_openai())


def test_a_rejection_keeps_the_engines_own_answer() -> None:
    rejected = EngineRejected(422, [(b"content-type", b"text/plain")], b"no", at="d0")

    assert (rejected.answer_status, rejected.body, rejected.at) == (422, b"no", "d0")
    assert not rejected.worth_retrying
