"""A key's calls a minute, by a clock that the test sets."""

from pdgate.gateway.security.limits import Bucket


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
