"""Values in buckets, as Prometheus has them."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.metrics.histogram import SECONDS, Histogram

values = st.lists(st.floats(0, 1000) | st.sampled_from(SECONDS))


@given(values, values)
def test_a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed(
    some: list[float], more: list[float]
) -> None:
    expected = [0] * (len(SECONDS) + 1)
    for value in (*some, *more):
        expected[bisect_left(SECONDS, value)] += 1

    histogram = Histogram()
    histogram.add(list(some))
    histogram.add(list(more))

    assert histogram.counts == expected
    assert histogram.buckets()[-1] == ("+Inf", len(some) + len(more))
