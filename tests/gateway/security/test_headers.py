"""What may pass is a list, and some names cannot be put on it."""

import pytest

from pdgate.gateway.security.headers import Authorization, authorization_of, names, policy
from pdgate.gateway.upstream.settings import FORWARDED


def test_names_stand_between_commas_in_any_case() -> None:
    assert names(" X-Tenant ,x-trace,, ") == {b"x-tenant", b"x-trace"}
    assert names("") == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "content-length", "Transfer-Encoding", "host", "connection", "upgrade", "content-type",
        "x-request-id", "authorization", "te", "a b", "a:", "a\r\nb", "é",
    ],
)  # fmt: skip
def test_what_frames_a_message_or_is_ours_cannot_pass(name: str) -> None:
    with pytest.raises(ValueError, match="header"):
        names(f"x-fine,{name}")


@pytest.mark.parametrize(("authorization", "passes"), [("pass", 1), ("drop", 0), ("replace", 0)])
def test_the_clients_authorization_passes_only_if_it_is_to(
    authorization: Authorization, passes: int
) -> None:
    made = policy(authorization, "x-tenant", "x-model")

    assert (b"authorization" in made.to_engines) == passes
    assert made.to_engines - {b"authorization"} == (FORWARDED - {b"authorization"}) | {b"x-tenant"}
    assert made.to_clients == {b"x-model"}


@pytest.mark.parametrize(
    ("asked", "has_keys", "has_own", "expected"),
    [
        (None, False, False, "pass"),
        (None, True, False, "drop"),
        (None, True, True, "replace"),
        (None, False, True, "replace"),
        ("pass", True, False, "pass"),
        ("drop", False, False, "drop"),
    ],
)
def test_unasked_engines_never_get_a_key_of_the_gateway(
    asked: Authorization | None, has_keys: bool, has_own: bool, expected: str
) -> None:
    assert authorization_of(asked, has_keys=has_keys, has_own=has_own) == expected
