"""Who gets in, and how much of what one may."""

from dataclasses import replace

import pytest

from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import KNOWN_HEADERS, Authenticator, Bucket, KeyState
from pdgate.gateway.security.keys import ApiKey, hash_of, new_key
from pdgate.protocols.errors import BadRequest, PermissionDenied, RateLimited, Unauthorized
from tests.support.clock import Clock

SECRET = "pdg-of-team-a"
KEY = ApiKey("team-a", hash_of(SECRET.encode()))


def bearer(secret: str = SECRET, scheme: str = "Bearer") -> RequestHeaders:
    return RequestHeaders([(b"host", b"g"), (b"authorization", f"{scheme} {secret}".encode())])


def enter(authenticator: Authenticator, headers: RequestHeaders, model: str | None) -> KeyState:
    key_state = authenticator.screen(headers)
    key_state.enter(model)
    return key_state


def test_who_has_a_key_gets_in_under_its_name() -> None:
    authenticator = Authenticator([KEY, ApiKey("team-b", hash_of(b"other"))])

    assert enter(authenticator, bearer(), "m").name == "team-a"
    assert enter(authenticator, bearer(scheme="bearer"), "m").name == "team-a"
    assert enter(authenticator, bearer("other"), "m").name == "team-b"


@pytest.mark.parametrize(
    "said",
    [
        "",
        "Bearer",
        "Bearer ",
        SECRET,
        f"Basic {SECRET}",
        f"Bearer {SECRET}x",
        f"Bearer {KEY.sha256}",
    ],
)
def test_who_has_none_does_not(said: str) -> None:
    """The hash that is kept opens nothing."""
    authenticator = Authenticator([KEY])

    with pytest.raises(Unauthorized) as caught:
        authenticator.screen(RequestHeaders([(b"authorization", said.encode())] if said else []))

    assert SECRET not in str(caught.value)


def test_two_keys_at_once_are_one_too_many() -> None:
    """What is behind us might read the other one."""
    authenticator = Authenticator([KEY])
    # Known by now, and no shorter way in for that.
    assert authenticator.screen(bearer())

    for more in (bearer("other"), bearer()):
        with pytest.raises(BadRequest, match="authorization came twice"):
            authenticator.screen(RequestHeaders([*bearer().all, *more.all]))


def test_other_headers_may_come_twice() -> None:
    twice = [(b"accept", b"a"), (b"accept", b"b")]

    assert Authenticator([KEY]).screen(RequestHeaders([*twice, *bearer().all]))


def test_a_key_may_come_in_the_header_of_anthropics_clients_once() -> None:
    key = (b"x-api-key", SECRET.encode())
    authenticator = Authenticator([KEY])

    assert authenticator.screen(RequestHeaders([key])).name == "team-a"
    with pytest.raises(BadRequest, match="x-api-key came twice"):
        authenticator.screen(RequestHeaders([key, key]))


def test_made_keys_differ_and_open() -> None:
    first, second = new_key(), new_key()

    assert first != second
    assert Authenticator([replace(KEY, sha256=hash_of(first.encode()))]).key_state(bearer(first))


def test_a_key_is_for_its_models_only() -> None:
    authenticator = Authenticator([replace(KEY, models=frozenset({"a", "b"}))])

    assert enter(authenticator, bearer(), "a")
    with pytest.raises(PermissionDenied, match="may not ask that model"):
        enter(authenticator, bearer(), "c")
    with pytest.raises(PermissionDenied, match="must name one"):
        enter(authenticator, bearer(), None)
    assert authenticator.key_states["team-a"].running == 1


def left(authenticator: Authenticator) -> tuple[bytes, ...]:
    """Limit, remaining and reset, as clients are told; nothing where they are not."""
    return tuple(said for _, said in authenticator.key_states["team-a"].calls_headers())


def test_calls_at_once_are_limited_until_one_leaves() -> None:
    authenticator = Authenticator([replace(KEY, max_calls=2)])
    first = enter(authenticator, bearer(), "m")
    enter(authenticator, bearer(), "m")

    with pytest.raises(RateLimited) as caught:
        authenticator.screen(bearer())
    first.leave()
    enter(authenticator, bearer(), "m")

    assert caught.value.retry_after_seconds == 1
    assert authenticator.key_states["team-a"].refused == {"concurrency": 1}


def test_calls_a_minute_are_limited_and_the_client_told_when_to_come_back() -> None:
    clock = Clock()
    authenticator = Authenticator([replace(KEY, calls_per_minute=6)], clock=clock)
    for _ in range(6):
        enter(authenticator, bearer(), "m").leave()

    with pytest.raises(RateLimited) as caught:
        enter(authenticator, bearer(), "m")
    clock.now = 10.0

    assert caught.value.retry_after_seconds == 10
    assert dict(caught.value.limits) == {
        b"x-ratelimit-limit-requests": b"6",
        b"x-ratelimit-remaining-requests": b"0",
        b"x-ratelimit-reset-requests": b"1m0s",
    }
    assert enter(authenticator, bearer(), "m")
    assert left(authenticator) == (b"6", b"0", b"1m0s")
    clock.now = 35.0
    assert enter(authenticator, bearer(), "m")
    assert left(authenticator) == (b"6", b"1", b"45s")


def test_calls_that_come_together_are_no_more_than_a_minutes() -> None:
    """The heads of all were let pass before the first call counted."""
    clock = Clock()
    authenticator = Authenticator([replace(KEY, calls_per_minute=60)], clock=clock)
    together = [authenticator.screen(bearer()) for _ in range(90)]
    for key_state in together[:60]:
        key_state.enter("m")

    for key_state in together[60:]:
        with pytest.raises(RateLimited) as caught:
            key_state.enter("m")
        assert caught.value.retry_after_seconds == 1
    assert authenticator.key_states["team-a"].refused == {"rate": 30}
    assert authenticator.key_states["team-a"].running == 60
    clock.now = 1.0
    enter(authenticator, bearer(), "m")


def test_a_call_that_is_not_allowed_costs_no_allowance() -> None:
    authenticator = Authenticator(
        [replace(KEY, models=frozenset({"a"}), calls_per_minute=1)], clock=Clock()
    )
    with pytest.raises(PermissionDenied):
        enter(authenticator, bearer(), "b")

    assert enter(authenticator, bearer(), "a")


def test_limits_are_divided_among_workers() -> None:
    authenticator = Authenticator(
        [replace(KEY, max_calls=5, calls_per_minute=4)], workers=3, clock=Clock()
    )

    enter(authenticator, bearer(), "m")
    with pytest.raises(RateLimited, match="a minute"):
        enter(authenticator, bearer(), "m")
    assert left(authenticator) == (b"1", b"0", b"45s")
    authenticator.admit([replace(KEY, max_calls=5)])
    assert left(authenticator) == ()
    enter(authenticator, bearer(), "m")
    with pytest.raises(RateLimited, match="running"):
        enter(authenticator, bearer(), "m")


def test_keys_change_while_calls_run() -> None:
    """Those that stay keep count; one that is gone no longer opens, whoever used it before."""
    other = ApiKey("team-b", hash_of(b"other"))
    authenticator = Authenticator([KEY, other])
    running = enter(authenticator, bearer(), "m")
    enter(authenticator, bearer("other"), "m")

    authenticator.admit([replace(KEY, max_calls=1)])

    with pytest.raises(Unauthorized):
        authenticator.screen(bearer("other"))
    with pytest.raises(RateLimited):
        authenticator.screen(bearer())
    running.leave()
    assert enter(authenticator, bearer(), "m").calls == 2


def test_a_share_of_an_uneven_limit_is_told_too() -> None:
    """Some are a rounding above a minute when they are used up."""
    for limit in range(1, 300):
        keys = [replace(KEY, calls_per_minute=limit)]
        authenticator = Authenticator(keys, workers=37, clock=Clock())
        key_state = authenticator.key_states["team-a"]
        assert key_state._bucket is not None
        key_state._bucket.level = 0.0
        assert left(authenticator) == (b"%d" % max(1, limit // 37), b"0", b"1m0s")


def test_a_changed_limit_does_not_begin_a_minute_anew() -> None:
    clock = Clock()
    authenticator = Authenticator([replace(KEY, calls_per_minute=6)], clock=clock)
    for _ in range(6):
        enter(authenticator, bearer(), "m").leave()

    authenticator.admit([replace(KEY, calls_per_minute=8)])

    assert left(authenticator) == (b"8", b"2", b"45s")
    for _ in range(2):
        enter(authenticator, bearer(), "m").leave()
    with pytest.raises(RateLimited) as caught:
        enter(authenticator, bearer(), "m")
    assert dict(caught.value.limits)[b"x-ratelimit-remaining-requests"] == b"0"


def test_headers_that_are_remembered_are_bounded() -> None:
    authenticator = Authenticator([KEY])
    for number in range(KNOWN_HEADERS + 10):
        spaces = b" " * (number % 900 + 1)
        authenticator.key_state(
            RequestHeaders([(b"authorization", b"Bearer" + spaces + SECRET.encode())])
        )
        with pytest.raises(Unauthorized):
            authenticator.key_state(bearer(f"wrong-{number}"))

    assert len(authenticator._by_header) <= KNOWN_HEADERS


def test_no_secret_shows_in_what_is_kept() -> None:
    authenticator = Authenticator([KEY])
    enter(authenticator, bearer(), "m")

    assert SECRET not in repr(authenticator.key_states) + repr(authenticator) + repr(KEY)


def taken(bucket: Bucket, now: float) -> int:
    """How many calls it lets through at once."""
    count = 0
    while not bucket.wait_seconds(now):
        bucket.level -= 1
        count += 1
    return count


def test_a_minutes_calls_may_come_at_once() -> None:
    assert taken(Bucket(60, now=100.0), now=100.0) == 60


def test_later_they_come_as_the_minute_goes() -> None:
    bucket = Bucket(60, now=0.0)
    taken(bucket, now=0.0)

    assert bucket.wait_seconds(0.25) == 0.75
    assert taken(bucket, now=10.0) == 10


def test_a_long_rest_saves_no_more_than_a_minute() -> None:
    bucket = Bucket(60, now=0.0)
    taken(bucket, now=0.0)

    assert taken(bucket, now=3600.0) == 60


def test_asking_takes_nothing() -> None:
    bucket = Bucket(1, now=0.0)

    assert [bucket.wait_seconds(0.0) for _ in range(3)] == [0.0] * 3
