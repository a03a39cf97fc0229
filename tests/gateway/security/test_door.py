"""Who gets in, and how much of what one may."""

from dataclasses import replace

import pytest

from pdgate.gateway.heads import Heads
from pdgate.gateway.security.door import KNOWN_HEADERS, Bucket, Door, Holder
from pdgate.gateway.security.keys import ApiKey, hash_of, new_key
from pdgate.protocols.errors import BadRequest, Forbidden, RateLimited, Unauthorized
from tests.support.clock import Clock

SECRET = "pdg-of-team-a"
KEY = ApiKey("team-a", hash_of(SECRET.encode()))


def bearer(secret: str = SECRET, scheme: str = "Bearer") -> Heads:
    return Heads([(b"host", b"g"), (b"authorization", f"{scheme} {secret}".encode())])


def enter(door: Door, heads: Heads, model: str | None) -> Holder:
    holder = door.screen(heads)
    holder.enter(model)
    return holder


def test_who_has_a_key_gets_in_under_its_name() -> None:
    door = Door([KEY, ApiKey("team-b", hash_of(b"other"))])

    assert enter(door, bearer(), "m").name == "team-a"
    assert enter(door, bearer(scheme="bearer"), "m").name == "team-a"
    assert enter(door, bearer("other"), "m").name == "team-b"


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
    door = Door([KEY])

    with pytest.raises(Unauthorized) as caught:
        door.screen(Heads([(b"authorization", said.encode())] if said else []))

    assert SECRET not in str(caught.value)


def test_two_keys_at_once_are_one_too_many() -> None:
    """What is behind us might read the other one."""
    door = Door([KEY])
    # Known by now, and no shorter way in for that.
    assert door.screen(bearer())

    for more in (bearer("other"), bearer()):
        with pytest.raises(BadRequest, match="authorization came twice"):
            door.screen(Heads([*bearer().all, *more.all]))


def test_other_headers_may_come_twice() -> None:
    twice = [(b"accept", b"a"), (b"accept", b"b")]

    assert Door([KEY]).screen(Heads([*twice, *bearer().all]))


def test_a_key_may_come_in_the_header_of_anthropics_clients_once() -> None:
    key = (b"x-api-key", SECRET.encode())
    door = Door([KEY])

    assert door.screen(Heads([key])).name == "team-a"
    with pytest.raises(BadRequest, match="x-api-key came twice"):
        door.screen(Heads([key, key]))


def test_made_keys_differ_and_open() -> None:
    first, second = new_key(), new_key()

    assert first != second
    assert Door([replace(KEY, sha256=hash_of(first.encode()))]).holder(bearer(first))


def test_a_key_is_for_its_models_only() -> None:
    door = Door([replace(KEY, models=frozenset({"a", "b"}))])

    assert enter(door, bearer(), "a")
    with pytest.raises(Forbidden, match="may not ask that model"):
        enter(door, bearer(), "c")
    with pytest.raises(Forbidden, match="must name one"):
        enter(door, bearer(), None)
    assert door.holders["team-a"].running == 1


def test_calls_at_once_are_limited_until_one_leaves() -> None:
    door = Door([replace(KEY, max_calls=2)])
    first = enter(door, bearer(), "m")
    enter(door, bearer(), "m")

    with pytest.raises(RateLimited) as caught:
        door.screen(bearer())
    first.leave()
    enter(door, bearer(), "m")

    assert caught.value.retry_after_seconds == 1
    assert door.holders["team-a"].refused == {"concurrency": 1}


def test_calls_a_minute_are_limited_and_the_client_told_when_to_come_back() -> None:
    clock = Clock()
    door = Door([replace(KEY, calls_per_minute=6)], clock=clock)
    for _ in range(6):
        enter(door, bearer(), "m").leave()

    with pytest.raises(RateLimited) as caught:
        enter(door, bearer(), "m")
    clock.now = 10.0

    assert caught.value.retry_after_seconds == 10
    assert enter(door, bearer(), "m")


def test_calls_that_come_together_are_no_more_than_a_minutes() -> None:
    """The heads of all were let pass before the first call counted."""
    clock = Clock()
    door = Door([replace(KEY, calls_per_minute=60)], clock=clock)
    together = [door.screen(bearer()) for _ in range(90)]
    for holder in together[:60]:
        holder.enter("m")

    for holder in together[60:]:
        with pytest.raises(RateLimited) as caught:
            holder.enter("m")
        assert caught.value.retry_after_seconds == 1
    assert door.holders["team-a"].refused == {"rate": 30}
    assert door.holders["team-a"].running == 60
    clock.now = 1.0
    enter(door, bearer(), "m")


def test_a_call_that_is_not_allowed_costs_no_allowance() -> None:
    door = Door([replace(KEY, models=frozenset({"a"}), calls_per_minute=1)], clock=Clock())
    with pytest.raises(Forbidden):
        enter(door, bearer(), "b")

    assert enter(door, bearer(), "a")


def test_limits_are_divided_among_workers() -> None:
    door = Door([replace(KEY, max_calls=5, calls_per_minute=4)], workers=3, clock=Clock())

    enter(door, bearer(), "m")
    with pytest.raises(RateLimited, match="a minute"):
        enter(door, bearer(), "m")
    door.admit([replace(KEY, max_calls=5)])
    enter(door, bearer(), "m")
    with pytest.raises(RateLimited, match="running"):
        enter(door, bearer(), "m")


def test_keys_change_while_calls_run() -> None:
    """Those that stay keep count; one that is gone no longer opens, whoever used it before."""
    other = ApiKey("team-b", hash_of(b"other"))
    door = Door([KEY, other])
    running = enter(door, bearer(), "m")
    enter(door, bearer("other"), "m")

    door.admit([replace(KEY, max_calls=1)])

    with pytest.raises(Unauthorized):
        door.screen(bearer("other"))
    with pytest.raises(RateLimited):
        door.screen(bearer())
    running.leave()
    assert enter(door, bearer(), "m").calls == 2


def test_headers_that_are_remembered_are_bounded() -> None:
    door = Door([KEY])
    for number in range(KNOWN_HEADERS + 10):
        spaces = b" " * (number % 900 + 1)
        door.holder(Heads([(b"authorization", b"Bearer" + spaces + SECRET.encode())]))
        with pytest.raises(Unauthorized):
            door.holder(bearer(f"wrong-{number}"))

    assert len(door._by_header) <= KNOWN_HEADERS


def test_no_secret_shows_in_what_is_kept() -> None:
    door = Door([KEY])
    enter(door, bearer(), "m")

    assert SECRET not in repr(door.holders) + repr(door) + repr(KEY)


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
